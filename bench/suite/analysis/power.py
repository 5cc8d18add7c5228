"""How many seeds distinguish two defenses: the power of the ranking's comparison. Pure functions."""

from __future__ import annotations

import math

from scipy.special import nctdtr, stdtrit  # the distributions of scipy.stats, which takes a second to import

from thiefbench.suite.analysis.statistics import FEW_SEEDS

POWER = 0.8
"""The power to aim for, with the usual value (Cohen, Statistical Power Analysis, 1988)."""
ASSUMED_SPREAD = 0.08
"""The standard deviation of harm prevented over seeds to assume if none was measured; honest seeds have less."""
MOST_SEEDS = 200

_MISS = 0.025


def power(gap: float, spread: float, seeds: int, attacks: int) -> float:
    """The probability that the interval of the difference of two worst cases lies above 0.

    It is the power of a one-sided paired t-test at 2.5 %, divided among the attacks (Bonferroni), by the noncentral t
    distribution: 1 - F(t(n - 1, 1 - 0.025 / A); n - 1, gap sqrt(n) / (sqrt(2) spread)). The two defenses are assumed to
    be independent, each with one clearly worst attack; `tests/benchmarks/ranking.py` compares it with simulations.

    Args:
        gap: difference of the two worst cases, above 0.
        spread: the standard deviation over seeds of one defense's harm prevented.
        seeds, attacks: their numbers in the suite.
    """
    if seeds < FEW_SEEDS:
        return 0.0
    if spread == 0:
        return 1.0
    limit = float(stdtrit(seeds - 1, 1 - _MISS / attacks))
    shift = gap * math.sqrt(seeds / 2) / spread
    found = float(1 - nctdtr(seeds - 1, shift, limit))
    if math.isnan(found):  # at some shifts of about 40, where it is 1
        from scipy.stats import nct

        found = float(nct.sf(limit, seeds - 1, shift))
    return found


def seeds_needed(gap: float, spread: float, attacks: int) -> int | None:
    """The least number of seeds that detects a gap with the power `POWER`; None beyond `MOST_SEEDS`.

    See `power` for the arguments.
    """
    numbers = range(FEW_SEEDS, MOST_SEEDS + 1)
    return next((seeds for seeds in numbers if power(gap, spread, seeds, attacks) >= POWER), None)
