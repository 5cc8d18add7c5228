"""How many seeds tell two defenses apart: the power of the ranking's comparison. Pure functions."""

from __future__ import annotations

import math

from scipy.special import stdtrit

from thiefbench.suite.analysis.statistics import FEW_SEEDS

POWER = 0.8
"""The share of runs in which a gap is to be seen, as is usual (Cohen, Statistical Power Analysis, 1988)."""
ASSUMED_SPREAD = 0.08
"""A standard deviation of harm prevented over seeds, where none was measured: that of honest seeds lies below it."""
MOST_SEEDS = 200

_MISS = 0.025


def power(gap: float, spread: float, seeds: int, attacks: int) -> float:
    """The chance that the interval of the difference of two worst cases lies above 0.

    It is the power of a paired t-test at 2.5 % to one side, shared among the attacks (Bonferroni), by the noncentral t
    distribution: 1 - F(t(n - 1, 1 - 0.025 / A); n - 1, gap sqrt(n) / (sqrt(2) spread)). The two defenses are taken for
    independent, each with one clearly worst attack; `tests/benchmarks/ranking.py` compares it with simulations.

    Args:
        gap: of the two worst cases, above 0.
        spread: the standard deviation over seeds of one defense's harm prevented.
        seeds, attacks: of the suite.
    """
    if seeds < FEW_SEEDS:
        return 0.0
    if spread == 0:
        return 1.0
    from scipy.stats import nct  # takes a second to import

    limit = float(stdtrit(seeds - 1, 1 - _MISS / attacks))
    return float(nct.sf(limit, seeds - 1, gap * math.sqrt(seeds / 2) / spread))


def seeds_needed(gap: float, spread: float, attacks: int) -> int | None:
    """The least number of seeds that tells a gap apart with the chance `POWER`; None beyond `MOST_SEEDS`.

    See `power` for the arguments.
    """
    numbers = range(FEW_SEEDS, MOST_SEEDS + 1)
    return next((seeds for seeds in numbers if power(gap, spread, seeds, attacks) >= POWER), None)
