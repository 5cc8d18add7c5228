"""Measured numbers: floats that carry their interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from thiefbench.suite.analysis.statistics import SeedCount, Summary, ratio, summarize
from thiefbench.suite.store.records import Score
from thiefbench.wording import counted

Over = Literal["completions", "range", "seeds"]
DIGITS = 3


class Number(float):
    """The mean of a measure over seeds, to be compared as a float.

    Attributes:
        low, high: at one seed the 95 % interval over its completions (the value itself for measures that compare
            cells); at two to four the smallest and largest seed; from five on the 95 % Student-t interval over seeds.
        count: completions that were judged, at all seeds together; 0 for measures that compare cells.
        points: (seed, value), by seed.
        over: what low and high are: "completions" and "seeds" stand for the intervals, "range" for two to four seeds.
        good: the number of seeds with a good enough value by the suite's rules; None if they do not define it.
    """

    low: float
    high: float
    count: int
    points: tuple[tuple[int, float], ...]
    over: Over
    good: SeedCount | None

    def __new__(
        cls,
        value: float,
        low: float,
        high: float,
        count: int,
        points: tuple[tuple[int, float], ...],
        over: Over,
        good: SeedCount | None = None,
    ) -> Number:
        """A number with its interval."""
        number = super().__new__(cls, value)
        number.low, number.high, number.count, number.points, number.over = low, high, count, points, over
        number.good = good
        return number

    def __repr__(self) -> str:
        completions = counted(self.count, "completion") if self.count else ""
        if self.over == "completions":
            bounds = (
                f" [{self.low:z.{DIGITS}f}, {self.high:z.{DIGITS}f}] (95 %, {completions})"
                if completions
                else " (1 seed)"
            )
            return f"{float(self):z.{DIGITS}f}{bounds}"
        kind: Literal["interval", "range"] = "interval" if self.over == "seeds" else "range"
        return Summary(float(self), self.low, self.high, self.points, kind, self.good).text(DIGITS)

    def __str__(self) -> str:
        return repr(self)

    def __reduce__(self) -> tuple[type[Number], tuple[object, ...]]:
        return Number, (float(self), self.low, self.high, self.count, self.points, self.over, self.good)


def over_seeds(
    scores: Mapping[int, Score], least: float | None = None, shares: Mapping[int, float] | None = None
) -> Number:
    """A measure at every seed as one number.

    Args:
        scores: by seed.
        least: a seed counts as good from this value on; None for no count.
        shares: for a ratio of means, such as harm prevented, the argument of `statistics.ratio`.

    Raises:
        StatisticsError: there is no seed, or one has no value.
    """
    points = {seed: float("nan") if score.value is None else score.value for seed, score in scores.items()}
    summary = summarize(points, least) if shares is None else ratio(points, shares, least)
    count = sum(score.count for score in scores.values())
    if len(scores) > 1:
        return Number(summary.mean, summary.low, summary.high, count, summary.points, _over(summary), summary.count)
    (score,) = scores.values()
    low, high = (summary.mean if limit is None else limit for limit in (score.low, score.high))
    return Number(summary.mean, low, high, count, summary.points, "completions")


def of_summary(summary: Summary) -> Number:
    """A summary over seeds as one number."""
    alone = len(summary.points) == 1
    over: Over = "completions" if alone else _over(summary)
    return Number(summary.mean, summary.low, summary.high, 0, summary.points, over, summary.count)


def of_score(score: Score) -> Number | None:
    """A score over completions alone, without seeds; None if no completion was judged."""
    if score.value is None or score.low is None or score.high is None:
        return None
    return Number(score.value, score.low, score.high, score.count, (), "completions")


def _over(summary: Summary) -> Over:
    return "seeds" if summary.kind == "interval" else "range"
