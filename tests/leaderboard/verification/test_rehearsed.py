"""A choice that the recorded rehearsal does not give is told from the record alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thiefbench.leaderboard.verification.rehearsed import wrong_choice
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite

TRIED = {
    "gibberish": (0.044, 0.022), "contrast": (0.058, 0.045), "names": (0.970, 0.479), "sift": (0.021, 0.006),
    "items": (0.014, 0.003), "own": (0.079, 0.062), "own names": (0.983, 0.366),
}  # fmt: skip


def spec_of(attack: str, topology: str = "vertical") -> CellSpec:
    cell = next(cell for cell in load_suite("standard-v2").cells("cpu", "float32", 1) if cell.attack == "auto")
    return replace(cell, attack=attack, swarm=replace(cell.swarm, topology=topology))


def wrong(member: str, attack: str = "auto", topology: str = "vertical", **changes: tuple[float, float] | None) -> str:
    tried = {name: numbers for name, numbers in (TRIED | changes).items() if numbers}
    said = ", ".join(f"{name} {outcome:.3f} ({taught:.3f} taught)" for name, (outcome, taught) in tried.items())
    return wrong_choice(spec_of(attack, topology), {"member": member, "rehearsal": said})


def test_a_choice_that_the_rehearsal_gives() -> None:
    assert not wrong("names"), "it taught most of those that count as equal"
    assert not wrong("own names"), "unless two standard errors are less than 0.013, which the record does not say"
    assert not wrong("items", "auto(attack='dos(samples=32)')", items=(41.0, 0.2), own=None, **{"own names": None})


@pytest.mark.parametrize(
    ("member", "changes", "said"),
    [
        ("prefill", {}, "did not try 'prefill'"),
        ("naive", {}, "did not try 'naive'"),
        ("naive", {"naive": (0.99, 0.5)}, "not one of its members"),
        ("strongest", {"strongest": (0.99, 0.5)}, "not one of its members"),
        ("contrast", {}, "contrast had the outcome 0.058, and own names 0.983"),
        ("own names", {"names": (0.99, 0.479)}, "names had a higher outcome than own names and taught more"),
        ("sift", {"items": (7.0, 0.1), "sift": (6.0, 0.09)}, "items had a higher outcome than sift and taught more"),
    ],
)
def test_one_that_it_does_not_give(member: str, changes: dict[str, tuple[float, float]], said: str) -> None:
    assert said in wrong(member, **changes)


@pytest.mark.parametrize(
    "rehearsal", ["", "anything I like", "names 0.970 (0.479 taught), ", "names 0.97 (0.479 taught)",
                  "own names 0.983 (0.366 taught), names 0.970 (0.479 taught)", "names nan (0.479 taught)"],
)  # fmt: skip
def test_a_rehearsal_that_auto_does_not_write(rehearsal: str) -> None:
    assert "not one of its members" in wrong_choice(spec_of("auto"), {"member": "names", "rehearsal": rehearsal})


def test_gibberish_is_for_vertical_swarms() -> None:
    assert "not one of its members" in wrong("names", topology="horizontal")
    assert not wrong("names", topology="horizontal", gibberish=None)


def test_other_attacks_are_not_looked_at() -> None:
    assert not wrong("anything", attack="contrast(attack='own')")
