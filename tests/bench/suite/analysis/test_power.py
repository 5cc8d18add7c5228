"""How many seeds tell two defenses apart, against simulations of the ranking's own comparison."""

from __future__ import annotations

import numpy as np
import pytest

from thiefbench.suite.analysis.power import MOST_SEEDS, POWER, power, seeds_needed
from thiefbench.suite.analysis.statistics import worst_case_difference


def told_apart(gap: float, spread: float, seeds: int, attacks: int, runs: int = 400) -> float:
    """The share of simulated runs in which the better of two defenses is ahead; one attack is the worst of both."""
    rng = np.random.default_rng(0)
    truth = np.array([0.0, *[1.0] * (attacks - 1)])[:, None]
    told = 0
    for _ in range(runs):
        one, other = (
            {str(a): {s: float(v) for s, v in enumerate(row)} for a, row in enumerate(values)}
            for values in (truth + rng.normal(shift, spread, (attacks, seeds)) for shift in (gap, 0.0))
        )
        told += worst_case_difference(one, other).above_0
    return told / runs


@pytest.mark.parametrize(
    ("gap", "spread", "seeds", "attacks"), [(0.2, 0.08, 5, 6), (0.2, 0.08, 8, 6), (0.1, 0.04, 5, 1), (0.1, 0.08, 15, 6)]
)
def test_the_formula_is_what_simulated_runs_show(gap: float, spread: float, seeds: int, attacks: int) -> None:
    """With 400 runs a share is exact to about five points."""
    assert power(gap, spread, seeds, attacks) == pytest.approx(told_apart(gap, spread, seeds, attacks), abs=0.07)


def test_more_seeds_wider_gaps_and_fewer_attacks_tell_more() -> None:
    assert power(0.2, 0.08, 5, 6) < power(0.2, 0.08, 6, 6) < power(0.3, 0.08, 6, 6) < power(0.3, 0.08, 6, 1)
    assert power(0.2, 0.0, 5, 6) == 1.0, "without a spread anything is seen"
    assert power(0.9, 0.01, 4, 1) == 0.0, "few seeds rank nothing"


def test_so_many_seeds_are_needed_and_no_fewer() -> None:
    needed = seeds_needed(0.2, 0.08, 6)
    assert needed is not None
    assert power(0.2, 0.08, needed, 6) >= POWER > power(0.2, 0.08, needed - 1, 6)
    assert seeds_needed(0.5, 0.01, 1) == 5, "five at least"
    assert seeds_needed(0.001, 0.5, 6) is None
    assert power(0.001, 0.5, MOST_SEEDS, 6) < POWER
