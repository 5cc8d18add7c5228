"""`norm_bound`: no vector counts with more than a bounded length (Sun et al., arXiv:1911.07963, section 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, SentVector, inner_rule
from thiefbench.defenses.aggregation.centered_clipping import clip_verdict
from thiefbench.defenses.base import Defense


class NormBound(Aggregation):
    """Shorten every received vector to a multiple of the length of the node's own, then join them by another rule.

    Args:
        factor: the longest vector that counts in full, in lengths of the node's own vector.
        rule: the aggregation that joins the vectors, as a spec string.
    """

    name: ClassVar[str] = "norm_bound"

    def __init__(self, factor: float = 1.0, rule: Defense | str = "mean") -> None:
        if not factor > 0:
            raise ValueError(f"norm_bound: factor must be above 0, got {factor}")
        self.factor, self.rule = factor, inner_rule(rule, self.name)

    def aggregate(self, view: AggregationView) -> Aggregate:
        """As the rule, of shortened vectors; what the rule accepts after shortening counts as clipped."""
        limit = self.factor * float(torch.linalg.vector_norm(view.own))
        lengths = [float(torch.linalg.vector_norm(sent.vector)) for sent in view.vectors]
        short = [SentVector(each.sender, vectors.clipped(each.vector[None], limit)[0]) for each in view.vectors]
        joined = self.rule.aggregate(replace(view, vectors=tuple(short)))
        verdicts = [
            verdict if verdict.action != "accept" else clip_verdict(length, limit)
            for verdict, length in zip(joined.verdicts, lengths, strict=True)
        ]
        return Aggregate(joined.vector, tuple(verdicts))
