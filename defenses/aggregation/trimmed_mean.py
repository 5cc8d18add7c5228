"""`trimmed_mean`: the mean of every coordinate without its extreme values (Yin et al., arXiv:1803.01498)."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import (
    Aggregate,
    Aggregation,
    AggregationView,
    by_distance,
    check_malicious,
)


class TrimmedMean(Aggregation):
    """Average every coordinate without its largest and smallest values. Of two vectors it is the mean.

    Args:
        f: how many values to leave out at either end; fewer where none would remain.
    """

    name: ClassVar[str] = "trimmed_mean"

    def __init__(self, f: int = 1) -> None:
        self.f = check_malicious(f, self.name)

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The trimmed means; the score of a vector is its distance from them."""
        return by_distance(view, vectors.trimmed_mean(view.stacked(), self.f))
