"""`centered_clipping`: no vector may pull a node far from its own (He, Karimireddy, Jaggi, arXiv:2202.01545)."""

from __future__ import annotations

from typing import ClassVar

import torch

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict, finite


class CenteredClipping(Aggregation):
    """Shorten every vector's difference from the node's own vector, then average: self-centred clipping.

    The radius is relative to the length of the node's own vector, which no sender can change. The paper's is absolute
    and follows from the variance among honest nodes, which a node does not know.

    Args:
        radius: the longest difference that counts in full, in lengths of the node's own vector.
        steps: how often to clip, each time around the last result.
    """

    name: ClassVar[str] = "centered_clipping"

    def __init__(self, radius: float = 1.0, steps: int = 1) -> None:
        if not radius > 0 or steps < 1:
            raise ValueError("centered_clipping: radius must be above 0 and steps at least 1")
        self.radius, self.steps = radius, steps

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The clipped mean; the score of a vector is its distance from the own one, in radii."""
        limit = self.radius * float(torch.linalg.vector_norm(view.own))
        joined = vectors.centered_clipping(view.stacked(), view.own, limit, self.steps)
        verdicts = [
            clip_verdict(float(torch.linalg.vector_norm(sent.vector - view.own)), limit) for sent in view.vectors
        ]
        return Aggregate(joined, tuple(verdicts))


def clip_verdict(length: float, limit: float) -> VectorVerdict:
    """The verdict on a vector that counts only up to a length; the score is its length in units of the limit."""
    score = finite(length / limit) if limit > 0 else None
    return VectorVerdict("clip", score, "shortened") if length > limit else VectorVerdict(score=score)
