"""The engine's results change only where that is meant: see `tests.bench.engine.golden`.

What is integral (tokens, verdicts, rewards, order, seeds, senders) is compared exactly, what is measured within
tolerances that last bits stay in. So the values hold under other versions of torch and on other processors, and a
change of last bits alone is not noticed here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.engine.golden.comparing import differences, told
from tests.bench.engine.golden.parts import PARTS
from tests.bench.engine.golden.stored import read, written

REMAKE = "python -m tests.bench.engine.golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return read()


def test_the_golden_values_are_of_what_is_played(golden: dict[str, Any]) -> None:
    assert list(golden["parts"]) == list(PARTS), f"what is played was changed; make the golden values anew: {REMAKE}"


@pytest.mark.parametrize("part", PARTS)
def test_results_stay(part: str, golden: dict[str, Any]) -> None:
    found = list(differences(golden["parts"].get(part, {}), PARTS[part]()))
    assert not found, (
        f"of the golden values, {part} changed in {len(found)} places:\n{told(found)}\n"
        f"A change like this alters the results of cells. If it was meant, make the values anew with `{REMAKE}` and "
        "say in the changelog, under Results, what changed. If not, it is a mistake."
    )


def test_measured_numbers_may_differ_in_their_last_bits_only() -> None:
    before = {"advantage": [0.5], "log_probs": [-20.0], "reward": 0.5, "tokens": "1 2"}
    near = {"advantage": [0.5 + 1e-7], "log_probs": [-20.001], "reward": 0.5, "tokens": "1 2"}
    assert not list(differences(before, near))
    for name, far in {"advantage": [0.5001], "log_probs": [-20.01], "reward": 0.5 + 1e-7, "tokens": "1 3"}.items():
        (line,) = differences(before, before | {name: far})
        assert line.startswith(name), "a difference says where it is"
    assert next(differences(before, {})) == "advantage: was [0.5], is nothing"
    assert list(differences({"advantage": [0.5]}, {"advantage": [0.5, 0.5]})) == [
        "advantage: was 1 values, is 2 values"
    ]


def test_what_is_written_is_what_is_read() -> None:
    values = {
        "round 1": {"rows": [{"tokens": "1 EOS", "advantage": -0.123456789}], "grad_norm": 1.0},
        "spans": [[0, 1]],
    }
    assert not list(differences(values, json.loads(written(values))))
