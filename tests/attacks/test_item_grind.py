"""`item_grind`: it picks the items whose one draw suits the attack."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.attacks.fakes import ITEM, TASK, Scripted, text, view
from thiefbench.attacks.base import Attack, ChoiceView, Seeded, ThreatModel
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.item_grind import ItemGrind, push
from thiefbench.attacks.text import Text
from thiefbench.attacks.varied import Varied
from thiefbench.tasks.base import Item

POOL = [replace(ITEM, id=f"item {number}") for number in range(40)]
GROUP = 4


def seed(item: Item, position: int, index: int) -> int:
    return 1000 * int(item.id.split()[1]) + 10 * position + index


def say(item: Item, prefix: str, seed: int) -> str:
    """The second half of every item's group is right, and longer for higher numbers of item and position."""
    right = seed % 10 >= GROUP // 2
    return text("so " * (seed // 10 if right else 1), item.answer if right else "99")


def choice(count: int = 3) -> ChoiceView:
    return ChoiceView(count, GROUP, TASK, random.Random(0), Scripted(say), seed)


def test_each_position_gets_its_candidate_that_pushes_most() -> None:
    attack = ItemGrind(Dos(), candidates=5)
    chosen = list(attack.choose_items_from(POOL, choice()))
    tried = Dos().choose_items(POOL, 15, random.Random(0))
    best = [max(tried[at::3], key=lambda item: int(item.id.split()[1])) for at in range(3)]
    assert chosen == best, "for each position the candidate with the longest right draws"
    assert len({item.id for item in chosen}) == 3


def test_all_items_are_tried_where_there_are_few() -> None:
    chosen = ItemGrind(Dos(), candidates=99).choose_items_from(POOL, choice(1))
    assert chosen == [POOL[-1]]


def test_the_honest_draws_are_submitted_and_the_right_ones_are_payload() -> None:
    slots = [replace(slot, seed=seed(POOL[7], 0, slot.sample)) for slot in view(POOL[7], each=GROUP).slots]
    granted = replace(view(POOL[7], policy=Scripted(say)), slots=tuple(slots))
    submissions = ItemGrind(Dos()).poison(granted)
    assert [poison is None for poison in submissions] == [True, True, False, False]
    for poison, slot in zip(submissions[2:], slots[2:], strict=True):
        assert isinstance(poison, Seeded)
        assert poison.seed == slot.seed, "it submits the draw of the slot's seed"
        assert Scripted(say).decode(poison.ids[:-1]) == say(POOL[7], "", poison.seed)
    assert ItemGrind(Dos()).placebo(granted) == [None] * GROUP, "a placebo would make the same choice of items"


def test_a_push_is_the_outcomes_weighed_by_the_advantages() -> None:
    assert push([0, 0, 1, 1], [5, 5, 9, 9]) == pytest.approx(8 / (1 / 3) ** 0.5 * 0.5, rel=1e-3)
    assert push([1, 1, 1], [1, 2, 3]) == 0, "a group of equal rewards teaches nothing"
    assert push([0, 1], [9, 1]) < 0, "long wrong answers are unlearned"


def test_it_is_granted_the_beacon_and_passes_it_through_varied() -> None:
    attack = Varied(ItemGrind(Dos(), candidates=2), share=0.5)
    assert attack.threat.beacon
    assert attack.threat.topologies == {"vertical"}
    assert list(attack.choose_items_from(POOL, choice())) == list(
        ItemGrind(Dos(), candidates=2).choose_items_from(POOL, choice())
    )
    assert not Varied(Dos()).threat.beacon, "no other attack is granted it"
    assert ItemGrind(Text("hail to all", "start")).reference == "control"


def test_what_chooses_no_items_is_refused() -> None:
    class Flat(Text):
        threat = ThreatModel("in-context", topologies=frozenset({"horizontal"}))

    inner: Attack = Flat("hail to all", "start")
    with pytest.raises(ValueError, match="items are chosen in the vertical topology, which text is not for"):
        ItemGrind(inner)
    with pytest.raises(ValueError, match="candidates must be at least 1, got 0"):
        ItemGrind(Dos(), candidates=0)


def test_a_view_without_items_is_empty() -> None:
    assert ItemGrind(Dos()).poison(view(policy=Scripted(say))) == []
