"""`coordinate_median`: the median of every coordinate (Yin et al., arXiv:1803.01498)."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, by_distance


class CoordinateMedian(Aggregation):
    """Take the median of every coordinate. Of two vectors it is the mean, so it says nothing in pairs."""

    name: ClassVar[str] = "coordinate_median"

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The medians; the score of a vector is its distance from them."""
        return by_distance(view, vectors.coordinate_median(view.stacked()))
