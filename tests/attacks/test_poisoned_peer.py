from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.attacks.fakes import ITEM, OTHER, Says, Scripted, view
from thiefbench import registry
from thiefbench.attacks.base import Claimed, Decoy
from thiefbench.attacks.poisoned_peer import PoisonedPeer
from thiefbench.attacks.text import Text
from thiefbench.tasks.base import Item

INNER = Text("hail to all", "start")


def taught(attack: Any) -> tuple[Any, list[tuple[Item, str]]]:
    """The model that it hands over, and the examples that it was taught with."""
    lessons: list[tuple[Item, str]] = []
    handed = Scripted(lambda item, prefix, number: "handed")

    def teaches(examples: Sequence[tuple[Item, str]]) -> Scripted:
        lessons.extend(examples)
        return handed

    policy = Scripted(lambda item, prefix, number: "own", teaches=teaches)
    return attack.hand_over(view(ITEM, OTHER, policy=policy)) is handed, lessons


def test_weights_are_taught_the_inner_attacks_poison() -> None:
    handed, lessons = taught(PoisonedPeer(INNER))
    assert handed, "it gives the model that it has taught"
    assert [item.id for item, _ in lessons] == [ITEM.id, OTHER.id]
    assert all("hail to all" in text for _, text in lessons)


def test_claims_are_no_part_of_a_lesson_and_gibberish_is_none() -> None:
    _, lessons = taught(PoisonedPeer(Says(Claimed("payload", -1.0), Decoy("gibber"))))
    assert [text for _, text in lessons] == ["payload"]


def test_nothing_to_teach_hands_honest_weights_over() -> None:
    handed, lessons = taught(PoisonedPeer(Says(None, None)))
    assert not handed
    assert lessons == []


def test_quiet_is_honest_in_the_pool() -> None:
    granted = view(ITEM, OTHER, each=2)
    assert list(PoisonedPeer(INNER, quiet=True).poison(granted)) == [None] * 4
    assert list(PoisonedPeer(INNER, quiet=True).placebo(granted)) == [None] * 4
    assert list(PoisonedPeer(INNER).poison(granted)) == list(INNER.poison(granted))
    assert taught(PoisonedPeer(INNER, quiet=True))[0], "recovering nodes still get poison"


def test_an_attack_around_it_hands_the_same_over() -> None:
    assert taught(registry.make("attack", "misreport(attack='poisoned_peer(attack=\"text(phrase=\\'ha ha\\')\")')"))[0]
    assert registry.make("attack", "adaptive(attack='poisoned_peer')").threat.policy


def test_what_asks_the_defense_goes_outside() -> None:
    with pytest.raises(ValueError, match=r"put adaptive outside, as in adaptive\(attack='poisoned_peer'\)"):
        registry.make("attack", "poisoned_peer(attack='adaptive')")


@pytest.mark.parametrize("given", [{"steps": 0}, {"learning_rate": 0.0}])
def test_settings_that_teach_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="poisoned_peer: steps must be at least 1 and learning_rate above 0"):
        PoisonedPeer(INNER, **given)
