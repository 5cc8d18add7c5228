"""A choice that the recorded rehearsal does not give is told from the record alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thiefbench.leaderboard.verification.rehearsed import wrong_choice
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite

TRIED = {
    "gibberish": (0.044, 0.022), "contrast": (0.058, 0.045), "names": (0.970, 0.479), "sift": (0.021, 0.006),
    "near ties": (0.011, 0.168), "items": (0.014, 0.003), "own": (0.079, 0.062), "prefill": (0.093, 0.055),
    "support": (0.675, 0.093), "black-box": (0.076, 0.057), "dodge": (0.094, 0.190), "own names": (0.983, 0.366),
    "dodge names": (0.962, 0.314),
}  # fmt: skip
DOS = "auto(attack='dos(samples=32)')"


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


def test_of_few_judged_completions_many_outcomes_count_as_equal() -> None:
    """Where an outcome is None for most completions, standard errors are large."""
    assert not wrong(
        "contrast", gibberish=(0.5, 0.1), **dict.fromkeys(list(TRIED)[2:], (0.1, 0.0)), contrast=(0.348, 0.2)
    )


@pytest.mark.parametrize(
    ("member", "changes", "said"),
    [
        ("naive", {}, "did not try 'naive'"),
        ("", {}, "did not try ''"),
        ("naive", {"naive": (0.99, 0.5)}, "not that of its members"),
        ("strongest", {"strongest": (0.99, 0.5)}, "not that of its members"),
        ("sift", dict.fromkeys(set(TRIED) - {"sift"}), "not that of its members"),
        ("names", {"dodge": None}, "not that of its members"),
        ("names", {"dodge": (0.1, -5.0)}, "not that of its members"),
        ("contrast", {}, "names had a higher outcome than contrast and taught more"),
        ("own names", {"names": (0.99, 0.479)}, "names had a higher outcome than own names and taught more"),
        ("sift", {"items": (7.0, 0.1), "sift": (6.0, 0.09)}, "had a higher outcome than sift and taught more"),
    ],
)
def test_one_that_it_does_not_give(member: str, changes: dict[str, tuple[float, float]], said: str) -> None:
    assert said in wrong(member, **changes)


def test_the_members_are_those_that_fit() -> None:
    """An attack that samples its poison from the policy has six of them."""
    few = {name: numbers for name, numbers in TRIED.items() if name in list(TRIED)[:6]}
    said = ", ".join(f"{name} {30 + outcome:.3f} ({taught:.3f} taught)" for name, (outcome, taught) in few.items())
    assert not wrong_choice(spec_of(DOS), {"member": "names", "rehearsal": said})
    assert "not that of its members" in wrong("names", attack=DOS)


@pytest.mark.parametrize(
    "rehearsal", ["", "anything I like", "names 0.970 (0.479 taught), ", "names nan (0.479 taught)"]
)
def test_a_rehearsal_that_auto_does_not_write(rehearsal: str) -> None:
    assert "not that of its members" in wrong_choice(spec_of("auto"), {"member": "names", "rehearsal": rehearsal})


def test_gibberish_is_for_vertical_swarms() -> None:
    text = "auto(attack='text')"
    assert "not that of its members" in wrong("names", attack=text, topology="horizontal")
    naive = {"naive": TRIED["gibberish"], **TRIED}
    said = [
        f"{name} {outcome:.3f} ({taught:.3f} taught)"
        for name, (outcome, taught) in naive.items()
        if name not in ("gibberish", "items")
    ]
    assert not wrong_choice(spec_of(text, "horizontal"), {"member": "names", "rehearsal": ", ".join(said)})


def test_other_attacks_are_not_looked_at() -> None:
    assert not wrong("anything", attack="contrast(attack='own')")
