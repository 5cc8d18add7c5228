"""`geometric_median`: the point with the least sum of distances to all vectors (Pillutla et al., arXiv:1912.13445)."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, by_distance


class GeometricMedian(Aggregation):
    """Take the point with the least sum of distances to all vectors. Of two it is their mean.

    Args:
        steps: of the smoothed Weiszfeld algorithm.
        floor: distances below this count as this; it keeps the algorithm from dividing by 0.
    """

    name: ClassVar[str] = "geometric_median"

    def __init__(self, steps: int = 32, floor: float = 1e-6) -> None:
        if steps < 1 or not floor > 0:
            raise ValueError("geometric_median: steps must be at least 1 and floor above 0")
        self.steps, self.floor = steps, floor

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The geometric median; the score of a vector is its distance from it."""
        return by_distance(view, vectors.geometric_median(view.stacked(), self.steps, self.floor))
