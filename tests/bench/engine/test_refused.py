"""What no node may send, and what is not sent at all, leaves its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest
import torch

from tests.bench.engine.conftest import same_weights, weights_of
from tests.conftest import Vowels
from thiefbench.attacks.base import Attack, AttackerView, Poison, Seeded, ThreatModel, Withheld
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.sift import Sift
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.defenses.base import ACCEPT, Action, DefenderView, Defense, Verdict
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.engine.learning.cohort import Cohort, Step
from thiefbench.engine.learning.grpo import group_advantages
from thiefbench.engine.pool import Pool
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Ask, Completion, Item

Build = Callable[..., Swarm]
EOS, LIMIT = 256, 16
REFUSED: dict[str, tuple[Any, str]] = {
    "withheld": (Withheld(), "withheld"),
    "empty": ((), "empty"),
    "too long": ((97,) * (LIMIT + 1), "over the limit"),
    "a control token inside": ((97, EOS, 97, EOS), "a control token"),
}
RIGHT = "payload: a"


class Beside(Attack):
    """Sends right answers in every second slot, and in the others what `other` is."""

    name = "beside"
    threat = ThreatModel("out-of-context")

    def __init__(self, other: Any, right: Any = RIGHT) -> None:
        self.other, self.right = other, right

    def poison(self, view: AttackerView) -> list[Poison]:
        return [self.right if slot.sample % 2 else self.other for slot in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return float("payload" in completion.text)


class OfRefused(Defense):
    """Gives what is refused one verdict, accepts all else, and keeps its views."""

    name = "of_refused"

    def __init__(self, action: Action) -> None:
        self.action = action
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> list[Verdict]:
        self.views.append(view)
        return [Verdict(self.action) if offered.refused else ACCEPT for offered in view.completions]


class Generous(Vowels):
    """Gives the full reward to everything, the empty text included."""

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [1.0] * len(completions)


def groups(rows: Sequence[CompletionRow]) -> list[list[CompletionRow]]:
    return [[row for row in rows if row.group == group] for group in sorted({row.group for row in rows})]


@pytest.mark.parametrize("action", get_args(Action))
@pytest.mark.parametrize(("sent", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_its_group_whatever_the_verdict(
    sent: Any, why: str, action: Action, build_swarm: Build
) -> None:
    rows = build_swarm(attack=Beside(sent), defense=OfRefused(action)).round(1).rows
    refused = [row for row in rows if row.refused]
    assert len(refused) == 4, "one of two malicious slots in each of four groups"
    assert all(why in row.refused and row.malicious and row.advantage == row.reward == 0 for row in refused)
    for group in groups(rows):
        left = [row for row in group if not row.refused]
        alone = group_advantages(torch.tensor([[row.reward for row in left]]), torch.ones(1, 7, dtype=torch.bool))
        assert [row.advantage for row in left] == alone[0].tolist(), "the others are a group of seven"


@pytest.mark.parametrize(("sent", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_no_decoy(sent: Any, why: str, build_swarm: Build) -> None:
    """Before refused offers left their groups, an empty submission was a free decoy.

    It counted as a reward of 0, so poison beside it had an advantage in a group of right answers alone, and no defense
    could take it out: there was nothing in it to object to.
    """
    rows = build_swarm(attack=Beside(sent), topology="vertical").round(1).rows
    (mine,) = (group for group in groups(rows) if group[0].malicious)
    assert {(row.reward, row.advantage) for row in mine if not row.refused} == {(1.0, 0.0)}
    wrong = build_swarm(attack=Beside("zzz"), topology="vertical").round(1).rows
    assert all(row.advantage > 0 for row in wrong if row.payload and row.text == RIGHT), "as beside a wrong answer"


def test_a_whole_group_that_is_withheld_is_skipped(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Beside(Withheld(), Withheld()), topology="vertical")
    before = weights_of(swarm)
    record = swarm.round(1)
    (mine,) = (group for group in groups(record.rows) if group[0].malicious)
    assert {(row.refused, row.payload, row.advantage) for row in mine} == {("withheld", False, 0.0)}
    assert any(row.advantage for row in record.rows), "the other groups teach"
    assert not same_weights(weights_of(swarm)[0], before[0])


def test_nothing_is_updated_where_only_what_is_withheld_differs(build_swarm: Build) -> None:
    swarm = build_swarm(attack=Beside(Withheld()), task=Generous())
    before = weights_of(swarm)
    assert swarm.round(1).grad_norm == 0
    assert same_weights(weights_of(swarm)[0], before[0]), "what is withheld is no reward of 0"


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
@pytest.mark.parametrize(("sent", "why"), REFUSED.values(), ids=REFUSED)
def test_what_may_be_learned_from_is_what_is_updated(
    sent: Any, why: str, topology: str, build_swarm: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward passes that a defense leaves for the update are those of the rows that have an advantage."""
    expected, updated = [], []
    with_gradient, update = Pool.with_gradient, Cohort.update

    def spied(pool: Pool) -> Any:
        expected.append(with_gradient(pool))
        return expected[-1]

    def updating(cohort: Cohort, prompts: Any, rows: Any, cache: Any = None) -> Step:
        step = update(cohort, prompts, rows, cache)
        updated.append(
            [(row.prompt, row.targets) for row, value in zip(rows, step.advantages, strict=True) if value != 0]
        )
        return step

    monkeypatch.setattr(Pool, "with_gradient", spied)
    monkeypatch.setattr(Cohort, "update", updating)
    swarm = build_swarm(attack=Beside(sent), topology=topology, group=4)
    for number in (1, 2, 3):
        swarm.round(number)
    assert expected == updated
    assert any(updated)


@pytest.mark.parametrize(("sent", "why"), REFUSED.values(), ids=REFUSED)
def test_a_defense_sees_what_is_refused_and_remembers_it(sent: Any, why: str, build_swarm: Build) -> None:
    defense = OfRefused("accept")
    swarm = build_swarm(attack=Beside(sent), defense=defense)
    rows = [row for number in (1, 2) for row in swarm.round(number).rows]
    for number, view in enumerate(defense.views, 1):
        refused = {(row.group, row.place): bool(row.refused) for row in rows if row.round == number}
        assert {(each.group, each.index): each.refused for each in view.completions} == refused
        assert any(refused.values())
        assert not all(refused.values())
    assert any(each.refused for each in defense.views[1].history[0].completions)
    again = build_swarm(attack=Beside(sent), defense=OfRefused("accept"))
    again.remember(rows)
    assert again.history == swarm.history, "a restart makes no other completion of it"


def test_of_what_is_withheld_nothing_else_depends(build_swarm: Build) -> None:
    """Honest nodes draw what they would draw, and no defense is handed a text, a seed or a claim of the slot."""
    swarm = build_swarm(attack=Beside(Withheld()), defense=AcceptAll())
    rows, plain = swarm.round(1).rows, build_swarm().round(1).rows
    for row, other in zip(rows, plain, strict=True):
        if not row.malicious:
            assert (row.ids, row.reward, row.sender) == (other.ids, other.reward, other.sender)
    refused = [row for row in rows if row.refused]
    assert refused
    for row in refused:
        assert (row.ids, row.text, row.ended, row.payload, row.outcome) == ((), "", False, False, 0.0)


@pytest.mark.parametrize("topology", ["vertical", "horizontal"])
def test_a_seed_replay_has_nothing_to_object_to_in_sifted_draws(topology: str, build_swarm: Build) -> None:
    swarm = build_swarm(attack=Sift(Dos()), defense=SeedReplay(), topology=topology)
    rows = [row for number in (1, 2) for row in swarm.round(number).rows if row.malicious]
    sent, withheld = ([row for row in rows if bool(row.refused) == left] for left in (False, True))
    assert {row.payload for row in sent} == {True, False}
    assert {row.action for row in sent} == {"accept"}, "each is the draw of its slot's seed"
    assert {row.refused for row in withheld} == {"withheld"}
    assert not any(row.payload or row.advantage for row in withheld)


def test_a_draw_with_another_slot_s_seed_is_rejected(build_swarm: Build) -> None:
    """So that the test above says something."""

    class Shifted(Sift):
        def poison(self, view: AttackerView) -> list[Poison]:
            sent = super().poison(view)
            return [
                Seeded((*each.ids[:-1], (each.ids[-1] + 1) % 250), each.seed) if isinstance(each, Seeded) else each
                for each in sent
            ]

    rows = build_swarm(attack=Shifted(Dos()), defense=SeedReplay()).round(1).rows
    assert {row.action for row in rows if row.payload} == {"drop"}
