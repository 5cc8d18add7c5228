# my_aggregation.py
import torch

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, VectorVerdict


class SameDirection(Aggregation):
    """Average only the vectors that point in about the direction of the node's own."""

    name = "same_direction"

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def aggregate(self, view):
        cosines = [float(torch.cosine_similarity(view.own, sent.vector, dim=0)) for sent in view.vectors]
        kept = [sent.vector for sent, cosine in zip(view.vectors, cosines, strict=True) if cosine > self.least]
        verdicts = [VectorVerdict("accept" if cosine > self.least else "reject", score=-cosine) for cosine in cosines]
        return Aggregate(torch.stack([view.own, *kept]).mean(0), tuple(verdicts))
