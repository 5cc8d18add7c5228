"""`nearest_mixing`: replace every vector by the mean of its nearest ones (Allouah et al., arXiv:2302.01772)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import (
    Aggregate,
    Aggregation,
    AggregationView,
    SentVector,
    check_malicious,
    inner_rule,
)
from thiefbench.defenses.base import Defense


class NearestMixing(Aggregation):
    """Replace every vector, the node's own included, by the mean of its nearest ones, then join them by another rule.

    Honest vectors that differ much, as after many local rounds, lie closer together afterwards.

    Args:
        f: how many vectors to leave out of every mean.
        rule: the aggregation that joins the mixed vectors, as a spec string.
    """

    name: ClassVar[str] = "nearest_mixing"

    def __init__(self, f: int = 1, rule: Defense | str = "coordinate_median") -> None:
        self.f, self.rule = check_malicious(f, self.name), inner_rule(rule, self.name)

    def aggregate(self, view: AggregationView) -> Aggregate:
        """As the rule, of mixed vectors, with its verdicts on them."""
        own, *others = vectors.nearest_mixing(view.stacked(), self.f)
        mixed = [SentVector(sent.sender, vector) for sent, vector in zip(view.vectors, others, strict=True)]
        return self.rule.aggregate(replace(view, own=own, vectors=tuple(mixed)))
