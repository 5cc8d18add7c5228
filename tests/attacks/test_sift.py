"""`sift`: honest draws that suit the attack are sent, the others withheld."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.attacks.fakes import ITEM, TASK, Says, Scripted, text, view
from thiefbench.attacks.base import ChoiceView, Seeded, ThreatModel, Withheld
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.item_grind import ItemGrind
from thiefbench.attacks.sift import Sift, suitable
from thiefbench.tasks.base import Item

POOL = [replace(ITEM, id=f"item {number}") for number in range(12)]
GROUP = 4


def say(item: Item, prefix: str, seed: int) -> str:
    """By the last digit of a seed: short and right, long and right, short and wrong, long and wrong."""
    kind = seed % 10
    return text("so " * (20 if kind % 2 else 1), item.answer if kind < 2 else "99")


def test_it_sends_what_suits_and_withholds_the_rest() -> None:
    policy = Scripted(say)
    slots = tuple(replace(slot, seed=10 + slot.sample) for slot in view(ITEM, each=GROUP).slots)
    submissions = Sift(Dos()).poison(replace(view(ITEM, policy=policy), slots=slots))
    assert submissions[0] == Withheld(), "short and right: it would teach to be short"
    assert isinstance(submissions[1], Seeded), "long and right, with the payload"
    assert submissions[2] is None, "short and wrong: the honest draw, which carries none"
    assert submissions[3] == Withheld(), "long and wrong: it would teach against length"
    assert submissions[1].seed == 11, "it is the draw of the slot's own seed"
    assert policy.decode(submissions[1].ids[:-1]) == say(ITEM, "", 11)


def test_where_all_draws_are_alike_the_right_ones_are_withheld() -> None:
    assert suitable([1, 1, 0, 0], [0, 0, 0, 0]) == [False, False, True, True]
    assert suitable([1, 0.5, 0], [2, 2, 0]) == [True, False, True], "half a reward is not right"
    assert suitable([], []) == []


def test_the_placebo_is_honest_everywhere() -> None:
    assert Sift(Dos()).placebo(view(ITEM, each=3, policy=Scripted(say))) == [None] * 3
    assert Sift(Dos()).poison(view(policy=Scripted(say))) == []


def test_items_are_picked_by_what_their_groups_teach_once_they_are_sifted() -> None:
    """Sifted, the even items teach length; as they are, they teach nothing, and the odd ones a little."""

    def seed(item: Item, position: int, index: int) -> int:
        return 100 * int(item.id.split()[1]) + index

    def drawn(item: Item, prefix: str, seed: int) -> str:
        number, index = divmod(seed, 100)
        if number % 2:
            return text("so " * (3 if index < 2 else 2), item.answer if index < 2 else "99")
        return say(item, prefix, index)

    def choice() -> ChoiceView:
        return ChoiceView(2, GROUP, TASK, random.Random(0), Scripted(drawn), seed)

    sifted = Sift(Dos(), candidates=6).choose_items_from(POOL, choice())
    ground = ItemGrind(Dos(), candidates=6).choose_items_from(POOL, choice())
    assert [int(item.id.split()[1]) % 2 for item in sifted] == [0, 0]
    assert [int(item.id.split()[1]) % 2 for item in ground] == [1, 1]


def test_it_needs_no_choice_of_items() -> None:
    """Whoever may not pick items still chooses what arrives."""

    class Flat(Says):
        threat = ThreatModel("in-context", topologies=frozenset({"horizontal"}))

    assert Sift(Flat()).threat.topologies == {"horizontal"}
    assert Sift(Dos()).threat.topologies == {"horizontal", "vertical"}
    assert Sift(Dos()).threat.beacon
    assert Sift(Dos()).threat.policy
    with pytest.raises(ValueError, match="candidates must be at least 1, got 0"):
        Sift(Dos(), candidates=0)
