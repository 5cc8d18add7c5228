from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.fakes import ITEM, OTHER, view
from thiefbench import registry
from thiefbench.attacks.base import AttackerView
from thiefbench.attacks.late_poison import LatePoison
from thiefbench.attacks.text import Text
from thiefbench.attacks.wrapper import AttackWrapper

INNER = Text("hail to all", "start")


@pytest.mark.parametrize("number", [1, 2, 4])
def test_it_is_honest_before_its_start(number: int) -> None:
    attack, given = LatePoison(INNER, start=5), view(ITEM, OTHER, each=2, round=number)
    assert list(attack.poison(given)) == [None] * 4, "every slot is left to an honest sample"
    assert list(attack.placebo(given)) == [None] * 4, "and in the placebo as well"


@pytest.mark.parametrize("number", [5, 6, 100])
def test_from_its_start_on_it_is_the_inner_attack(number: int) -> None:
    attack, given = LatePoison(INNER, start=5), view(ITEM, OTHER, each=2, round=number)
    assert list(attack.poison(given)) == list(INNER.poison(given))
    assert list(attack.placebo(given)) == list(INNER.placebo(given))


class Hands(AttackWrapper):
    name = "hands"

    def hand_over(self, view: AttackerView) -> Any:
        return "poisoned weights"


@pytest.mark.parametrize("around", ["late_poison", "varied"])
def test_weights_are_handed_over_honestly_before_its_start_too(around: str) -> None:
    attack = registry.make("attack", f"{around}(start=5)")
    attack.attack = Hands(INNER)
    assert attack.hand_over(view(ITEM, round=4)) is None, "a node that recovers early gets honest weights"
    assert attack.hand_over(view(ITEM, round=5)) == "poisoned weights"


def test_a_start_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="late_poison: start must be at least 2"):
        LatePoison(INNER, start=1)
