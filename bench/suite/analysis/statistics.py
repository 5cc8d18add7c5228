"""Statistics over seeds, pure: a measure's summary, paired differences, and the worst case over attacks.

The seed is the unit. From `FEW_SEEDS` seeds on there is a 95 % interval; below, the points and their range are all
that is known. Importing this module loads neither torch nor the store.

**Worst case.** It is the smallest of the attacks' means over seeds, and it needs more care than a mean. Resampling
seeds and taking the minimum in each resample does not measure its uncertainty: where several attacks are about equally
bad, every resample picks whichever came out low, so the minima lie below the minimum that was seen as that one lies
below the truth. Of 1,500 simulated tables with 5 seeds and 4 equally bad attacks with normal, independent results, the
percentile interval of the minima held the truth in 36 %, and in 48 % with deviations stretched to Student-t width
(tests/bench/suite/analysis/test_statistics.py repeats this). So the joint resamples here only say how sure it is which
attack is worst, and the limits come from Student-t on paired per-seed differences instead:

Let A and B be the means of two defenses by attack. The difference of their worst cases is

    min_a A_a - min_b B_b  =  min_a max_b (A_a - B_b)  =  max_b min_a (A_a - B_b).

Every A_a - B_b has a Student-t interval from the differences at each seed. Lower limits go through min-max, upper ones
through max-min. The lower one errs only if, at the attack that is truly A's worst, some b has its lower limit above
the truth; so with 2.5 % shared among B's attacks (Bonferroni) it errs in at most 2.5 % of cases, and the upper one
likewise with 2.5 % shared among A's. No assumption on how attacks depend on each other is needed. The worst case
itself is its difference to a defense that scores 0 against a single attack.

In the simulation above, this covers 97 % (always at least 95 % for normal results). Like every Student-t interval it
assumes nearly normal seeds: with one attack and 5 strongly skewed (lognormal, sigma 0.8) ones it holds the truth in
87 %, where the percentile bootstrap, which for 5 normal ones has 83 to 85 %, holds it in 76 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

FEW_SEEDS = 5
"""From so many seeds on, an interval over seeds is given."""

RESAMPLES = 10_000
_KEY = int.from_bytes(b"worst case", "big")
_MISS = 0.05

Kind = Literal["interval", "range"]


class StatisticsError(ValueError):
    """Measures cannot be summarised. One sentence for the user."""


class MissingCellError(StatisticsError):
    """A cell that a worst case rests on failed or was not run: that is no score, good or bad."""


@dataclass(frozen=True)
class Summary:
    """A measure over seeds.

    Attributes:
        mean: over seeds.
        low, high: the 95 % Student-t interval of the mean; below `FEW_SEEDS` seeds the smallest and largest point.
        points: (seed, value), by seed.
        kind: "interval" or "range": what low and high are.
    """

    mean: float
    low: float
    high: float
    points: tuple[tuple[int, float], ...]
    kind: Kind

    def text(self, digits: int = 2) -> str:
        """In writing: "0.83 [0.80, 0.86] (95 %, 5 seeds)", or with few seeds the sorted points."""
        if self.kind == "interval":
            bounds = f"[{self.low:z.{digits}f}, {self.high:z.{digits}f}]"
            return f"{self.mean:z.{digits}f} {bounds} (95 %, {len(self.points)} seeds)"
        values = " ".join(f"{value:z.{digits}f}" for value in sorted(value for _, value in self.points))
        return f"{values} ({len(self.points)} seed{'s' if len(self.points) > 1 else ''})"


@dataclass(frozen=True)
class WorstCase:
    """The smallest mean over seeds among attacks.

    Attributes:
        attack: that has it; of several the first by name.
        summary: its mean, its points, and the limits of the worst case (see the module).
        resamples: by attack, in how many of `RESAMPLES` joint resamples of seeds it is the worst (ties count for
            each); empty below `FEW_SEEDS` seeds.
    """

    attack: str
    summary: Summary
    resamples: Mapping[str, int]

    def text(self, digits: int = 2) -> str:
        """In writing, with the attack and how sure it is that this one is the worst."""
        sure = f", worst in {self.resamples[self.attack] / RESAMPLES:.0%} of resamples" if self.resamples else ""
        return f"{self.summary.text(digits)} against {self.attack}{sure}"


def summarize(points: Mapping[int, float]) -> Summary:
    """A measure's values by seed as their mean with its interval or range.

    Raises:
        StatisticsError: there are none, or one is not finite.
    """
    if not points:
        raise StatisticsError("a summary needs a value at one seed at least")
    for seed, value in points.items():
        if not math.isfinite(value):
            raise StatisticsError(f"the value at seed {seed} is {value}; leave out seeds that have no value")
    known = tuple(sorted(points.items()))
    values = np.array([value for _, value in known], float)
    mean = float(values.mean())
    if len(values) < FEW_SEEDS:
        return Summary(mean, float(values.min()), float(values.max()), known, "range")
    half = float(_halves(values, _MISS / 2))
    return Summary(mean, mean - half, mean + half, known, "interval")


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Summary:
    """The difference one - other over the seeds that both have, paired by seed.

    Raises:
        StatisticsError: they share no seed, or a value is not finite.
    """
    shared = one.keys() & other.keys()
    if not shared:
        raise StatisticsError("the two measures share no seed, so they cannot be paired; run both with the same seeds")
    return summarize({seed: one[seed] - other[seed] for seed in shared})


def worst_case(measure: Mapping[str, Mapping[int, float | None]]) -> WorstCase:
    """The worst case over attacks of a measure of which more is better.

    Args:
        measure: by attack and seed; None, or a seed that only other attacks have, is a cell without a score.

    Raises:
        MissingCellError: a cell has no score; the message names it.
        StatisticsError: there are no attacks or seeds, or a value is not finite.
    """
    attacks, seeds, values = _table(measure)
    means = values.mean(1)
    at = int(means.argmin())
    nothing = np.zeros((1, len(seeds)))
    return WorstCase(attacks[at], _difference(seeds, values, nothing), _worst_in(attacks, values))


def worst_case_difference(
    one: Mapping[str, Mapping[int, float | None]], other: Mapping[str, Mapping[int, float | None]]
) -> Summary:
    """The worst case of `one` minus that of `other`, paired by seed.

    Args:
        one, other: as in `worst_case`.

    Returns:
        Its points are the differences, seed by seed, between the two at their worst attacks; from `FEW_SEEDS` seeds on
        it has the 95 % interval of the module's formula.

    Raises:
        MissingCellError: a cell has no score.
        StatisticsError: the two do not have the same seeds, or see `worst_case`.
    """
    _, seeds, ours = _table(one)
    _, others, theirs = _table(other)
    if seeds != others:
        raise StatisticsError("the two worst cases rest on different seeds; run both with the same seeds")
    return _difference(seeds, ours, theirs)


def _difference(seeds: Sequence[int], one: NDArray[np.float64], other: NDArray[np.float64]) -> Summary:
    """The difference of worst cases; `one` and `other` have shape (attacks, seeds)."""
    points = one[one.mean(1).argmin()] - other[other.mean(1).argmin()]
    plain = summarize(dict(zip(seeds, points.tolist(), strict=True)))
    if plain.kind == "range":
        return plain
    differences = one[:, None] - other[None]
    means = differences.mean(2)
    lower = means - _halves(differences, _MISS / 2 / len(other))
    upper = means + _halves(differences, _MISS / 2 / len(one))
    low, high = float(lower.max(1).min()), float(upper.min(0).max())
    return Summary(plain.mean, low, high, plain.points, "interval")


def _halves(values: NDArray[np.float64], miss: float) -> NDArray[np.float64]:
    """Student-t limits of the mean over the last axis: their distance, missing to each side with probability `miss`."""
    count = values.shape[-1]
    halves: NDArray[np.float64] = student_t.ppf(1 - miss, count - 1) * values.std(-1, ddof=1) / math.sqrt(count)
    return halves


def _worst_in(attacks: Sequence[str], values: NDArray[np.float64]) -> dict[str, int]:
    """In how many joint resamples of seeds each attack has the smallest mean; the same seeds for every attack."""
    count = values.shape[1]
    if count < FEW_SEEDS:
        return {}
    drawn = np.random.default_rng([_KEY, count]).integers(0, count, (RESAMPLES, count))
    means = np.stack([row[drawn].mean(1) for row in values], 1)
    smallest = np.isclose(means, means.min(1, keepdims=True), rtol=0, atol=1e-12)
    return dict(zip(attacks, smallest.sum(0).tolist(), strict=True))


def _table(measure: Mapping[str, Mapping[int, float | None]]) -> tuple[list[str], list[int], NDArray[np.float64]]:
    """Attacks by name, seeds sorted, values of shape (attacks, seeds)."""
    attacks, seeds = sorted(measure), sorted({seed for points in measure.values() for seed in points})
    if not attacks or not seeds:
        raise StatisticsError("a worst case needs at least one attack and one seed")
    missing = [(a, seed) for a in attacks for seed in seeds if measure[a].get(seed) is None]
    if missing:
        named = "; ".join(f"{attack} at seed {seed}" for attack, seed in missing)
        raise MissingCellError(f"without a score there is no worst case: {named}")
    values = np.array([[measure[attack][seed] for seed in seeds] for attack in attacks], float)
    if not np.isfinite(values).all():
        raise StatisticsError("a worst case needs finite values; give None for a cell that has none")
    return attacks, seeds, values
