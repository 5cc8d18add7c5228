"""`mean`: the plain mean of all vectors."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, by_distance


class Mean(Aggregation):
    """Average all vectors, the node's own included: no defense. The defense `none` means the same."""

    name: ClassVar[str] = "mean"

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The mean; every vector is accepted, and its score is its distance from the mean."""
        return by_distance(view, view.stacked().mean(0))
