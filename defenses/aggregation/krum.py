"""`krum` and `multi_krum`: keep the vectors that lie nearest to most others (Blanchard et al., NeurIPS 2017)."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.aggregation import vectors
from thiefbench.defenses.aggregation.base import (
    Aggregate,
    Aggregation,
    AggregationView,
    VectorVerdict,
    check_malicious,
    finite,
)


class MultiKrum(Aggregation):
    """Average the vectors with the lowest scores, a score being the sum of squared distances to the nearest others.

    Of two vectors both have the same score.

    Args:
        f: how many malicious vectors to withstand; this is guaranteed if at least 2 f + 3 are present.
        keep: how many vectors to average; None keeps all but f.
    """

    name: ClassVar[str] = "multi_krum"

    def __init__(self, f: int = 1, keep: int | None = None) -> None:
        if keep is not None and (type(keep) is not int or keep < 1):
            raise ValueError(f"{self.name}: keep is how many vectors to average, at least 1, got {keep!r}")
        self.f, self.keep = check_malicious(f, self.name), keep

    def aggregate(self, view: AggregationView) -> Aggregate:
        """The mean of the kept vectors; the others are rejected, and Krum's score is the score."""
        stacked = view.stacked()
        if len(stacked) == 1:
            return Aggregate(view.own.clone(), ())
        scores = vectors.krum_scores(stacked, self.f)
        keep = max(1, len(stacked) - self.f) if self.keep is None else min(self.keep, len(stacked))
        kept = set(scores.sort(stable=True).indices[:keep].tolist())
        verdicts = [
            VectorVerdict("accept" if place in kept else "reject", finite(float(scores[place])))
            for place in range(1, len(stacked))
        ]
        return Aggregate(stacked[sorted(kept)].mean(0), tuple(verdicts))


class Krum(MultiKrum):
    """Adopt the one vector with the lowest sum of squared distances to its nearest others.

    Of two vectors both have the same score, and the node keeps its own.

    Args:
        f: how many malicious vectors to withstand; this is guaranteed if at least 2 f + 3 are present.
    """

    name: ClassVar[str] = "krum"

    def __init__(self, f: int = 1) -> None:
        super().__init__(f, keep=1)
