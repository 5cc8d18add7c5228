"""What an attack's outcomes may be in a swarm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.bench import tiny
from thiefbench import registry
from thiefbench.attack_answers import wrong_outcomes
from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.contrast import Contrast
from thiefbench.tasks.base import Ask, Completion, Item


class Outcome(Attack):
    """Clean work, with this outcome."""

    name: ClassVar[str] = "given"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context")

    def __init__(self, given: str = "2.0") -> None:
        self.given = given

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [view.task.oracle(slot.item) for slot in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        made: float = eval(self.given, {"nan": float("nan")})
        return made


@pytest.mark.parametrize("given", ["2.0", "-3", "nan", "'yes'"])
def test_an_outcome_that_is_no_share_fails_its_cell(given: str, tmp_path: Path) -> None:
    attack = f'{Path(__file__)}:Outcome(given="{given}")'
    (record,) = tiny.run(tiny.suite(attacks=(attack,), kind=tiny.Attacked), tmp_path)
    assert record.status == "error"
    assert record.scores == {}
    said = f"ValueError: the attack given gave the outcome {given}; it must lie between 0 and 1"
    assert record.error.startswith(f"{said} (on '")


@pytest.mark.parametrize("given", ["None", "True", "0", "0.5"])
def test_what_an_outcome_may_be(given: str) -> None:
    assert wrong_outcomes(Outcome(given), [eval(given)]) == ""


def test_lengths_may_be_large_and_not_infinite() -> None:
    dos = registry.make("attack", "dos")
    assert wrong_outcomes(dos, [31.0, None]) == ""
    assert wrong_outcomes(dos, [float("inf")]) == "the outcome inf; it must be a finite number"


def test_a_wrapper_does_not_hide_what_is_inside() -> None:
    assert wrong_outcomes(Contrast(Outcome()), [7.0]) == "the outcome 7.0; it must lie between 0 and 1"
    assert wrong_outcomes(Contrast(registry.make("attack", "dos")), [31.0]) == ""
    assert wrong_outcomes(Outcome(), [np.float32(0.5), np.int64(1)]) == ""
