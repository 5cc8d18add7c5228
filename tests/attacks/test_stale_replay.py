from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.attacks.fakes import ITEM, OTHER, TASK, text, view
from thiefbench.attacks.base import ChoiceView, Claimed, SeenCompletion
from thiefbench.attacks.misreport import Misreport
from thiefbench.attacks.stale_replay import StaleReplay
from thiefbench.attacks.text import Text

INNER = Text("Hail to all", "start")
ATTACK = StaleReplay(INNER)


def seen(number: int, reasoning: str, reward: float = 1.0) -> SeenCompletion:
    return SeenCompletion(number, (), text(reasoning, "7"), reward)


HISTORY = {
    ITEM.id: [
        seen(1, "Old way."),
        seen(2, "Wrong way.", 0.0),
        seen(4, "New way."),
        SeenCompletion(5, (), "no block", 1.0),
    ],
    OTHER.id: [seen(3, "Wrong as well.", 0.0)],
}


def told(submissions: Any) -> list[tuple[str, int | None]]:
    return [(each.content, each.version) for each in submissions if isinstance(each, Claimed)]


def test_old_right_answers_come_back_with_the_payload() -> None:
    submissions = ATTACK.poison(view(ITEM, each=3, round=6, seen=HISTORY))
    assert [version for _, version in told(submissions)] == [3, 0, 3], (
        "the newest first, then again from the newest, each with its version"
    )
    for written, wanted in zip(told(submissions), ("New way.", "Old way.", "New way."), strict=True):
        assert wanted in written[0], "the swarm wrote the text"
        assert "Hail to all" in written[0]
        assert ITEM.answer in written[0]


def test_wrong_answers_and_unknown_items_are_left_to_honest_samples() -> None:
    assert list(ATTACK.poison(view(OTHER, each=2, seen=HISTORY))) == [None, None]
    assert list(ATTACK.poison(view(ITEM, each=2))) == [None, None], "as in the first round"


def test_the_placebo_is_the_same_without_the_payload() -> None:
    granted = view(ITEM, each=3, round=6, seen=HISTORY)
    pairs = list(zip(told(ATTACK.poison(granted)), told(ATTACK.placebo(granted)), strict=True))
    assert len(pairs) == 3
    for (poison, version), (clean, same) in pairs:
        assert version == same
        assert "Hail to all" not in clean
        assert TASK.reward(ITEM, [poison, clean]) == [1, 1]


def test_the_inner_attacks_claims_stay() -> None:
    (submission,) = StaleReplay(Misreport(INNER, -30.0)).poison(view(ITEM, round=6, seen=HISTORY))
    assert isinstance(submission, Claimed)
    assert (submission.logprob, submission.version) == (-30.0, 3), "together with the version"


def choice(count: int, history: Any, seed: int = 1) -> ChoiceView:
    return ChoiceView(count, 2, TASK, random.Random(seed), None, lambda item, at, index: 0, history)


def test_it_picks_items_that_were_answered_rightly() -> None:
    items = [replace(ITEM, id=str(number)) for number in range(20)]
    history = {item.id: [seen(1, "Way.", float(int(item.id) < 5))] for item in items}
    chosen = [item.id for item in ATTACK.choose_items_from(items, choice(8, history))]
    assert set(map(str, range(5))) == set(chosen[:5]), "those first"
    assert len(set(chosen)) == 8, "the rest is drawn from all other items"
    few = ATTACK.choose_items_from(items, choice(3, history))
    assert all(int(item.id) < 5 for item in few)
    drawn = [ATTACK.choose_items_from(items, choice(2, history, seed)) for seed in range(50)]
    counts = Counter(item.id for several in drawn for item in several)
    assert len(counts) == 5, "the choice among them is drawn"


def test_it_is_granted_the_history_and_no_oracle() -> None:
    assert ATTACK.threat.history
    assert not ATTACK.threat.oracle
    assert ATTACK.threat.topologies == {"vertical"}, "only in the vertical topology nodes pick their items"
