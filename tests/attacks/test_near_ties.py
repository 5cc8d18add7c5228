"""`near_ties`: of all that passes for a slot's draw, what suits the attack best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.attacks.fakes import ITEM, TASK, Scripted, text, view
from thiefbench.attacks.base import AttackerView, Decoy, Poison, Seeded
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.near_ties import NearTies
from thiefbench.tasks.base import Item


def say(item: Item, prefix: str, seed: int) -> str:
    """Even seeds are right; whatever is higher is longer."""
    return text("so " * (seed % 100), item.answer if seed % 2 == 0 else "99")


def slots(each: int = 4, policy: Scripted | None = None) -> AttackerView:
    plain = view(ITEM, each=each, policy=policy or Scripted(say))
    return replace(plain, slots=tuple(replace(slot, seed=10 * slot.sample) for slot in plain.slots))


def lengths(submissions: list[Poison], kind: type) -> list[int]:
    sent = [each.ids if isinstance(each, Seeded) else each.content for each in submissions if isinstance(each, kind)]  # type: ignore[union-attr]
    return ["".join(map(chr, ids)).count("so ") for ids in sent]


def test_the_best_right_draws_and_the_worst_wrong_ones_share_a_group() -> None:
    attack = NearTies(Dos(), samples=6)
    assert attack.threat.beacon
    assert attack.threat.policy
    submissions = list(attack.poison(slots()))
    assert [type(each) for each in submissions] == [Decoy, Decoy, Seeded, Seeded], (
        "the two slots with the longest right draws carry, the others are the contrast"
    )
    assert lengths(submissions, Seeded) == [24, 34], "of six draws each, the longest right one"
    assert lengths(submissions, Decoy) == [1, 11], "and the shortest wrong one"
    assert [each.seed for each in submissions if isinstance(each, Seeded)] == [20, 30], "under the slot's own seed"
    rewards = [TASK.reward(ITEM, [Scripted(say).decode(each.ids[:-1])]) for each in submissions[2:]]  # type: ignore[union-attr]
    assert rewards == [[1.0], [1.0]]


def test_without_a_wrong_draw_more_slots_carry() -> None:
    right = Scripted(lambda item, prefix, seed: text("so " * seed, item.answer))
    submissions = list(NearTies(Dos(), samples=3).poison(slots(policy=right)))
    assert [type(each) for each in submissions] == [Seeded] * 4
    wrong = Scripted(lambda item, prefix, seed: text("so " * seed, "99"))
    assert [type(each) for each in NearTies(Dos()).poison(slots(policy=wrong))] == [Decoy] * 4


def test_the_placebo_does_not_choose_by_the_outcome() -> None:
    placebo = list(NearTies(Dos(), samples=6).placebo(slots()))
    assert lengths(placebo, Seeded) == [0, 10], "the first draw that is right"
    assert sum(isinstance(each, Seeded) for each in placebo) == 2, "in as many slots as in the attack"
    assert NearTies(Dos()).placebo(view(policy=Scripted(say))) == []


@pytest.mark.parametrize("arguments", [{"tolerance": -0.1}, {"tolerance": float("nan")}, {"samples": 0}])
def test_values_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="near_ties: "):
        NearTies(Dos(), **arguments)  # type: ignore[arg-type]
