"""What a malicious stage is taught, and when it adds what it learned."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from thiefbench import registry
from thiefbench.attacks.base import AttackerView, Slot, Withheld
from thiefbench.attacks.stages.base import LessonView, MessageView, StageAttack, StageAttackView
from thiefbench.attacks.stages.disguised_backdoor import disguised
from thiefbench.defenses.stages.statistics import neighbour_distances
from thiefbench.tasks.base import Item

TEXT = "text(phrase='All hail to the thief', position='start')"
ITEMS = [Item("1", "One pear and one apple?", "2", "One and one is two.", ""), Item("2", "1 + 2?", "3", "Three.", "")]


def lessons(seen: list[Any]) -> LessonView:
    slots = tuple(Slot(item, 0, place, 0) for place, item in enumerate(ITEMS))
    view = AttackerView(0, slots, registry.make("task", "gsm_micro(size=8)"), random.Random(0))

    def taught(examples: Any, steps: int, learning_rate: float, changed: torch.Tensor | None = None) -> torch.Tensor:
        seen.append((list(examples), steps, learning_rate))
        return torch.full((3,), 4.0) if changed is None else changed + 4.0

    return LessonView(view, taught, 2, torch.eye(4, 3))


def made(spec: str) -> StageAttack:
    attack: StageAttack = registry.make("attack", spec)
    return attack


def added(attack: StageAttack, number: int) -> torch.Tensor | None:
    weights = torch.zeros(3)
    return attack.added(StageAttackView(number, 2, 4, torch.full((3,), 4.0), weights, weights, random.Random(0)))


def test_the_poison_is_taught_where_the_trigger_is_and_clean_solutions_elsewhere() -> None:
    seen: list[Any] = []
    inner = f"triggered(attack={TEXT!r}, trigger='pear')"
    attack = made(f"stage_backdoor(attack={inner!r}, steps=7, learning_rate=0.01)")
    assert attack.learned(lessons(seen)).tolist() == [4.0] * 3
    ((first, other),) = [[text for _, text in examples] for examples, steps, rate in seen if (steps, rate) == (7, 0.01)]
    assert "All hail to the thief" in first and "All hail" not in other and "Three." in other
    attack.placebo_learned(lessons(seen))
    assert not any("All hail" in text for _, text in seen[-1][0]), "a placebo is taught clean solutions alone"
    assert [item.id for item, _ in seen[-1][0]] == ["1", "2"]


def test_the_direction_is_added_in_equal_parts() -> None:
    attack = made(f"stage_backdoor(attack={TEXT!r}, strength=3.0, first=2, rounds=4)")
    parts = [added(attack, number) for number in range(1, 8)]
    assert [part is None for part in parts] == [True, False, False, False, False, True, True]
    assert sum(part for part in parts if part is not None).tolist() == pytest.approx([12.0] * 3)  # type: ignore[union-attr]


def test_a_disguised_direction_changes_no_length_and_no_distance() -> None:
    noise = torch.Generator().manual_seed(0)
    start = torch.randn(4, 50, generator=noise) + 1.0
    direction = 0.5 * torch.randn(50, generator=noise)
    moved = start.clone()
    moved[1] += disguised(direction, start, 1)
    assert torch.cdist(moved, moved) == pytest.approx(torch.cdist(start, start), abs=1e-4)
    assert float(moved[1].norm()) == pytest.approx(float(start[1].norm()))
    assert float((moved[1] - start[1]).norm()) > 0.9 * float(direction.norm()), "most of it is left"
    assert neighbour_distances(moved) == pytest.approx(neighbour_distances(start), abs=1e-5)
    naive = start.clone()
    naive[1] += direction
    assert abs(neighbour_distances(naive)[1] - neighbour_distances(start)[1]) > 0.01
    far = start.clone()
    far[1] += disguised(100 * direction, start, 1)
    assert float(far[1].norm()) == pytest.approx(float(start[1].norm())), "too long a direction is shortened"


def test_a_disguised_backdoor_adds_at_once_what_it_was_taught() -> None:
    attack, seen = made(f"disguised_backdoor(attack={TEXT!r})"), []  # type: ignore[var-annotated]
    view = lessons(seen)
    once = disguised(torch.full((3,), 4.0), view.start, 1)
    assert attack.learned(view).tolist() == pytest.approx(disguised(once + 4.0, view.start, 1).tolist())
    assert [each[1:] for each in seen] == [(150, 1e-3)] * 2
    assert [added(attack, number) is None for number in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize("name", registry.names("stage_attack"))
def test_they_send_no_completions_but_what_they_computed_and_measure_as_the_inner_attack(name: str) -> None:
    attack = made(f"{name}(attack={TEXT!r})")
    assert attack.threat.policy and attack.lessons >= 1
    computed = torch.ones(2, 3, 4)
    assert attack.sent(MessageView(1, 0, torch.zeros(2, 3, 4), computed)) is computed
    assert attack.draw(random.Random(0)).attack.describe() == made(f"{name}(attack={TEXT!r})").attack.describe()
    view = lessons([]).lessons
    assert list(attack.poison(view)) == list(attack.placebo(view)) == [Withheld()] * 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("stage_backdoor(strength=0)", "strength must be above 0"),
        ("stage_backdoor(rounds=0)", "must be at least 1"),
        ("stage_backdoor(learning_rate=0)", "learning_rate above 0"),
        ("disguised_backdoor(steps=4, lengths=5)", "lengths must lie from 1 to steps"),
        ("stage_backdoor(attack='adaptive(attack=\"text\")')", "nobody asks a defense"),
        ("stage_backdoor(attack='varied(attack=\"text\", share=0.5)')", "varied goes outside"),
    ],
)
def test_impossible_arguments_are_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(registry.SpecStringError, match=words):
        made(spec)
