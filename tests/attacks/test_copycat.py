"""`copycat`: others' earlier rewarded work, sent again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.bench.plugins import Sums
from thiefbench.attacks.base import AttackerView, ChoiceView, SeenCompletion, Slot
from thiefbench.attacks.copycat import Copycat
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.base import Defense
from thiefbench.defenses.overlap import Overlap
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.engine.views.attacker import AttackerPolicy
from thiefbench.tasks.base import Item, Message, Sampling, Split
from thiefbench.testing.contracts.attack_fixtures import task_for

TASK = Sums()
ITEMS = [Item.from_row(row) for row in TASK.items("train")]


def seen(*texts: tuple[tuple[int, ...], float]) -> list[SeenCompletion]:
    return [SeenCompletion(number, ids, "", reward) for number, (ids, reward) in enumerate(texts, 1)]


def test_rewarded_work_is_sent_again_the_newest_first(load_policy: Callable[..., Policy]) -> None:
    policy = AttackerPolicy(load_policy(), TASK, Sampling(max_new_tokens=4), (1,))
    slots = tuple(Slot(item, 3, group, sample) for group, item in enumerate(ITEMS[:2]) for sample in range(3))
    history = {ITEMS[0].id: seen(((7, 8), 1.0), ((9,), 0.0), ((5,), 1.0), ((7, 8), 1.0))}
    view = AttackerView(2, slots, TASK, random.Random(1), policy, seen=history)
    eos = policy.eos
    assert list(Copycat().poison(view)) == [(7, 8, eos), (5, eos), (7, 8, eos), None, None, None]
    assert list(Copycat().placebo(view)) == [None] * 6


def test_it_picks_items_that_have_work_to_copy() -> None:
    history = {item.id: seen(((1,), float(number % 2))) for number, item in enumerate(ITEMS[:8])}
    view = ChoiceView(6, 4, TASK, random.Random(1), None, lambda item, at, index: 0, history)
    chosen = Copycat().choose_items_from(ITEMS, view)
    assert {item.id for item in chosen[:4]} == {item.id for item in ITEMS[1:8:2]}
    assert len({item.id for item in chosen}) == 6


class Easy(Sums):
    """Rewards every answer that is not empty."""

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(bool(text)) for text in completions]

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def items(self, split: Split) -> object:
        return super().items(split)


def played(policy: Policy, defense: Defense) -> list[list[CompletionRow]]:
    """The rows of three rounds."""
    shape = SwarmSpec(
        topology="vertical", nodes=4, malicious=1, prompts=8, group=4, sampling=Sampling(max_new_tokens=12)
    )
    swarm = Swarm(shape, "attack", policy, Easy(), Copycat(), defense, 3)
    return [swarm.round(number).rows for number in (1, 2, 3)]


def test_copies_earn_as_work_does(load_policy: Callable[..., Policy]) -> None:
    first, second, third = played(load_policy(), AcceptAll())
    assert not any(row.payload for row in first), "there is nothing to copy yet"
    copies = [row for row in (*second, *third) if row.malicious]
    assert {(row.payload, row.reward) for row in copies} == {(True, 1.0)}
    assert {row.text for row in copies} <= {row.text for row in (*first, *second) if not row.payload}


def test_overlap_stops_copies_of_others(load_policy: Callable[..., Policy]) -> None:
    rounds = played(load_policy(), Overlap(share=0.0, similar=1.0))
    earlier = {(row.item_id, row.text): row.malicious for row in reversed(rounds[0])}
    stopped = 0
    for row in rounds[1]:
        copied = row.payload and not earlier[row.item_id, row.text]
        assert row.action == ("drop" if copied else "accept"), "its own first answers it may send again"
        stopped += copied
    assert stopped


def test_it_fits_every_task() -> None:
    assert task_for(Copycat()) is not None
