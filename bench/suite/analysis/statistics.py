"""Statistics over seeds, as pure functions: summaries, paired differences, and the worst case over attacks.

The unit is the seed. From `FEW_SEEDS` seeds on there is a 95 % interval; below, only the points and their range are
given. Importing this module loads neither torch nor the store.

**Worst case.** It is the smallest of the attacks' means over seeds, and its interval needs more care than that of a
mean. Resampling seeds and taking the minimum in each resample does not measure its uncertainty: if several attacks are
about equally bad, every resample picks whichever happens to be lowest, so the resampled minima lie below the observed
minimum, just as that lies below the truth. In 1,500 simulated tables with 5 seeds and 4 equally bad attacks with
normal, independent results, the percentile interval of the minima covered the truth in 36 % of cases, and in 48 % with
deviations stretched to Student-t width (tests/bench/suite/analysis/test_statistics.py repeats this). So the joint
resamples here only say how certain it is which attack is worst. The limits come from Student-t intervals on paired
per-seed differences:

Let A and B be the means of two defenses by attack. The difference of their worst cases is

    min_a A_a - min_b B_b  =  min_a max_b (A_a - B_b)  =  max_b min_a (A_a - B_b).

Every A_a - B_b has a Student-t interval from the differences at each seed. The lower limit is computed by the min-max
form, the upper limit by the max-min form. The lower limit errs only if, at the attack that is truly A's worst, some b
has its lower limit above the truth; so with 2.5 % divided among B's attacks (Bonferroni) it errs in at most 2.5 % of
cases, and the upper limit likewise with 2.5 % divided among A's attacks. This needs no assumption on the dependence
between attacks. The worst case of a single defense is its difference from a defense that scores 0 against a single
attack.

In the simulation above, this interval covers the truth in 97 % of cases (always at least 95 % for normal results). Like
every Student-t interval, it assumes nearly normal values over seeds: with one attack and 5 strongly skewed (lognormal,
sigma 0.8) values it covers the truth in 87 %, and the percentile bootstrap in 76 % (with 5 normal values, in 83 to
85 %).

The value itself is biased: the expected minimum of noisy means lies below the minimum of the true means (Jensen's
inequality, because the minimum is concave). `WORST_CASE_BIAS` says by how much; the interval covers the truth in spite
of it. The bias is not corrected. A bootstrap correction removes less than half of it. Choosing the attack for each seed
on the other seeds (van Hasselt, arXiv:1302.7175) removes most of it, but errs in the defense's favour, and gives a
value that is not any attack's mean and so does not appear in the table.

**Rare failures.** A mean with a Student-t interval says little about a defense that fails at one seed in ten: more than
half of all sets of five seeds contain no failure, and their interval is narrow. So every interval is given with a
`SeedCount`: the number of seeds at which the measure was good enough, with the exact bound of Clopper and Pearson
(Biometrika 26, 1934). Values without any spread have no Student-t interval at all; see `Kind`.
`tests/benchmarks/ranking.py` simulates these rules and the previous ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit  # the quantiles of scipy.stats, which takes a second to import

from thiefbench.wording import counted

FEW_SEEDS = 5
"""The smallest number of seeds with an interval over seeds."""

WORST_CASE_BIAS = (-0.06, -0.03)
"""How far below the truth the mean worst case lies if six attacks are equally bad, at five seeds with a standard
deviation of 0.1 and of 0.05; 0 if one attack is clearly the worst (`tests/benchmarks/ranking.py`)."""

WORKED = 0.1
"""At a seed where an attack does less than this share of its mean harm, it has failed by itself."""

RESAMPLES = 10_000
_KEY = int.from_bytes(b"worst case", "big")
_MISS = 0.05
_ROUNDING = 1e-12

Kind = Literal["interval", "range", "equal"]
"""What the limits of a summary are: the 95 % interval; the range, with too few seeds for an interval; or only the value
itself, if it is the same at all seeds, so that nothing is known about its spread."""


class StatisticsError(ValueError):
    """Measures cannot be summarised. One sentence for the user."""


class MissingCellError(StatisticsError):
    """A cell that a worst case needs failed or was not run."""


@dataclass(frozen=True)
class SeedCount:
    """The number of seeds at which a measure was good enough.

    Attributes:
        good: the number of these seeds.
        seeds: the number of all seeds.
    """

    good: int
    seeds: int

    @property
    def least_share(self) -> float:
        """The exact one-sided 95 % lower bound on the share of good seeds (Clopper and Pearson, 1934).

        The smallest p with P(X >= good) > 0.05 for X ~ Binomial(seeds, p); 0.55 for 5 of 5. It is the 5 % quantile of
        the beta distribution with parameters good and seeds - good + 1.
        """
        return float(betaincinv(self.good, self.seeds - self.good + 1, _MISS)) if self.good else 0.0

    def plain(self) -> str:
        """As text without the bound: "4 of 5 seeds"."""
        return f"{self.good} of {counted(self.seeds, 'seed')}"

    def text(self) -> str:
        """As text: "4 of 5 seeds, \u2265 0.34"; no share is less than 0."""
        return f"{self.plain()}, \u2265 {self.least_share:.2f}" if self.good else self.plain()


@dataclass(frozen=True)
class Summary:
    """A measure over seeds.

    Attributes:
        mean: over seeds.
        low, high: the 95 % Student-t interval of the mean; below `FEW_SEEDS` seeds the smallest and largest point; if
            all points are equal, the value itself, which is not an interval.
        points: (seed, value), by seed.
        kind: the kind of `low` and `high`.
        count: the number of seeds with a good enough value; None if that is not defined.
    """

    mean: float
    low: float
    high: float
    points: tuple[tuple[int, float], ...]
    kind: Kind
    count: SeedCount | None = None

    @property
    def above_0(self) -> bool:
        """Whether the whole interval lies above 0; always False below `FEW_SEEDS` seeds.

        If all seeds are equal, a sign test replaces it: otherwise, five of five above 0 have a probability of 0.031.
        """
        return self.kind != "range" and self.low > 0

    def interval(self, digits: int) -> tuple[str, str] | None:
        """The limits as text; None if there is no interval, or if it has no width at this number of digits."""
        low, high = f"{self.low:z.{digits}f}", f"{self.high:z.{digits}f}"
        return None if self.kind != "interval" or low == high else (low, high)

    def text(self, digits: int = 2) -> str:
        """As text: "0.83 [0.80, 0.86] (95 %, 4 of 5 seeds, \u2265 0.34)", or with few seeds the sorted points.

        If all seeds agree in the digits shown: "1.00 (5 of 5 seeds, \u2265 0.55)".
        """
        number = len(self.points)
        if self.kind == "range":
            values = " ".join(f"{value:z.{digits}f}" for value in sorted(value for _, value in self.points))
            return f"{values} ({counted(number, 'seed')})"
        seeds, limits = self.count.text() if self.count else counted(number, "seed"), self.interval(digits)
        spread = f" [{limits[0]}, {limits[1]}] (95 %, {seeds})" if limits else f" ({seeds})"
        return f"{self.mean:z.{digits}f}{spread}"


@dataclass(frozen=True)
class WorstCase:
    """The smallest mean over seeds among attacks.

    Attributes:
        attack: the attack with the smallest mean; of several, the first by name.
        summary: its mean, its points, and the limits of the worst case (see the module).
        resamples: for each attack, the number of `RESAMPLES` joint resamples of seeds in which it is the worst (ties
            count for each); empty below `FEW_SEEDS` seeds.
    """

    attack: str
    summary: Summary
    resamples: Mapping[str, int]

    def text(self, digits: int = 2) -> str:
        """As text, with the attack and how certain it is that it is the worst."""
        sure = f", worst in {self.resamples[self.attack] / RESAMPLES:.0%} of resamples" if self.resamples else ""
        return f"{self.summary.text(digits)} against {self.attack}{sure}"


def summarize(points: Mapping[int, float], least: float | None = None) -> Summary:
    """Summarise a measure's values by seed: their mean with its interval or range.

    Args:
        points: values by seed.
        least: a seed counts as good from this value on; None for no count.

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
    count = None if least is None else SeedCount(int((values >= least - _ROUNDING).sum()), len(values))
    if len(values) < FEW_SEEDS:
        return Summary(mean, float(values.min()), float(values.max()), known, "range", count)
    if _equal(values):
        return Summary(mean, mean, mean, known, "equal", count)
    half = float(_halves(values, _MISS / 2))
    return Summary(mean, mean - half, mean + half, known, "interval", count)


def lower_limits(differences: Sequence[Mapping[int, float]], miss: float = _MISS) -> list[float]:
    """One-sided lower Student-t limits of several means over seeds, from their pooled standard deviation.

    The limit of mean i is mean_i - t(df, 1 - miss) * s * sqrt(1 / n_i), with s^2 the mean of the groups' variances
    weighted by their n_i - 1, and df the sum of these: the limit of one mean in a one-way layout (Montgomery, Design
    and Analysis of Experiments, section 3.3). It assumes equal variances.

    Args:
        differences: each by seed, at two or more seeds.
        miss: the probability that a limit lies above its true mean.

    Raises:
        StatisticsError: no mean has a second seed, so there is no spread to estimate.
    """
    values = [np.array(list(points.values()), float) for points in differences]
    freedom = sum(len(each) - 1 for each in values)
    if freedom < 1:
        raise StatisticsError("limits over seeds need two or more seeds")
    spread = math.sqrt(sum(float(((each - each.mean()) ** 2).sum()) for each in values) / freedom)
    reach = float(stdtrit(freedom, 1 - miss)) * spread
    return [float(each.mean()) - reach / math.sqrt(len(each)) for each in values]


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Summary:
    """The difference one - other over common seeds, paired by seed; its count is of seeds with its mean's sign.

    Raises:
        StatisticsError: they share no seed, or a value is not finite.
    """
    shared = one.keys() & other.keys()
    if not shared:
        raise StatisticsError("the two measures share no seed, so they cannot be paired; run both with the same seeds")
    return _signs_counted(summarize({seed: one[seed] - other[seed] for seed in shared}))


def _signs_counted(difference: Summary) -> Summary:
    """A difference whose count is of the seeds at which it has the sign of its mean."""
    side = -1 if difference.mean < 0 else 1
    agreeing = sum(side * value > 0 for _, value in difference.points)
    return replace(difference, count=SeedCount(agreeing, len(difference.points)))


def ratio(points: Mapping[int, float], shares: Mapping[int, float], least: float | None = None) -> Summary:
    """1 minus a ratio of means over seeds, such as harm prevented, with the interval of a ratio.

    The interval is the one of the ratio's linearisation (Cochran, Sampling Techniques, section 6.4): with D and U the
    two harms by seed, R = mean(D) / mean(U), it is Student's t on 1 - R - (D - R U) / mean(U).

    Args:
        points: 1 - D / mean(U) by seed, whose mean is 1 - R.
        shares: U / mean(U) by seed, whose mean is 1.
        least: a seed counts as good if the defense `held` there; None for no count.

    Returns:
        A summary with the given points. It raises the same errors as `summarize`.
    """
    good = {} if least is None else held(points, shares, least)
    count = None if least is None else SeedCount(sum(good.values()), len(good))
    plain = summarize(points)
    if plain.kind == "range":
        return replace(plain, count=count)
    return replace(summarize(linearised(points, shares)), points=plain.points, count=count)


def held(points: Mapping[int, float], shares: Mapping[int, float], least: float) -> dict[int, bool]:
    """Whether a defense prevented at least this share of a seed's own undefended harm, 1 - D / U, by seed.

    A seed at which the attack failed by itself (`WORKED`) shows nothing of a defense and is left out.

    Args:
        points, shares: as in `ratio`.
        least: the share.
    """
    worked = [seed for seed in points if shares[seed] >= WORKED - _ROUNDING]
    return {seed: 1 - (1 - points[seed]) / shares[seed] >= least - _ROUNDING for seed in worked}


def linearised(points: Mapping[int, float], shares: Mapping[int, float]) -> dict[int, float]:
    """Values by seed whose mean and spread are those of the ratio; see `ratio`."""
    mean = sum(points.values()) / len(points)
    return {seed: value + (1 - mean) * (shares[seed] - 1) for seed, value in points.items()}


def worst_case(measure: Mapping[str, Mapping[int, float | None]]) -> WorstCase:
    """The worst case over attacks of a measure for which higher is better.

    Args:
        measure: by attack and seed; None, or a seed that only other attacks have, means a cell without a score.

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
        A summary. Its points are the differences, seed by seed, between the two at their worst attacks, and its count
        is of points with its mean's sign. From `FEW_SEEDS` seeds on, it has the 95 % interval of the module's formula.

    Raises:
        MissingCellError: a cell has no score.
        StatisticsError: the two do not have the same seeds, or as for `worst_case`.
    """
    _, seeds, ours = _table(one)
    _, others, theirs = _table(other)
    if seeds != others:
        raise StatisticsError("the two worst cases rest on different seeds; run both with the same seeds")
    return _signs_counted(_difference(seeds, ours, theirs))


def _difference(seeds: Sequence[int], one: NDArray[np.float64], other: NDArray[np.float64]) -> Summary:
    """The difference of worst cases; `one` and `other` have shape (attacks, seeds)."""
    points = one[one.mean(1).argmin()] - other[other.mean(1).argmin()]
    plain = summarize(dict(zip(seeds, points.tolist(), strict=True)))
    if plain.kind == "range":
        return plain
    # Attacks without any spread are taken as exact if other attacks have spread, but not if none has.
    if all(_equal(row) for row in (one[:, None] - other[None]).reshape(-1, len(seeds))):
        return replace(plain, kind="equal")
    differences = one[:, None] - other[None]
    means = differences.mean(2)
    lower = means - _halves(differences, _MISS / 2 / len(other))
    upper = means + _halves(differences, _MISS / 2 / len(one))
    low, high = float(lower.max(1).min()), float(upper.min(0).max())
    return Summary(plain.mean, low, high, plain.points, "interval")


def _equal(values: NDArray[np.float64]) -> bool:
    """Whether values are equal except for rounding."""
    return bool(np.ptp(values) <= _ROUNDING * max(1.0, float(np.abs(values).max())))


def _halves(values: NDArray[np.float64], miss: float) -> NDArray[np.float64]:
    """Half-widths of Student-t limits of the mean over the last axis, with error probability `miss` on each side."""
    count = values.shape[-1]
    halves: NDArray[np.float64] = stdtrit(count - 1, 1 - miss) * values.std(-1, ddof=1) / math.sqrt(count)
    return halves


def _worst_in(attacks: Sequence[str], values: NDArray[np.float64]) -> dict[str, int]:
    """The number of joint resamples of seeds (equal for all attacks) in which each attack has the smallest mean."""
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
