# my_aggregation.py
import torch

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, VectorVerdict


class SimilarLength(Aggregation):
    """Average only vectors that are not much longer than the node's own."""

    name = "similar_length"

    def __init__(self, most: float = 2.0) -> None:
        self.most = most

    def aggregate(self, view):
        lengths = [float(sent.vector.norm()) for sent in view.vectors]
        limit = self.most * float(view.own.norm())
        kept = [sent.vector for sent, length in zip(view.vectors, lengths, strict=True) if length <= limit]
        verdicts = [VectorVerdict("accept" if length <= limit else "reject") for length in lengths]
        return Aggregate(torch.stack([view.own, *kept]).mean(0), tuple(verdicts))
