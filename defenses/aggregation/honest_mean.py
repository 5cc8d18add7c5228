"""What `oracle` means where nodes exchange weights: the plain mean of what honest nodes sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict
from thiefbench.defenses.aggregation.mean import Mean

REASON = "labelled as malicious"
"""The reason of its rejections."""


class HonestMean(Aggregation):
    """Average the vectors of honest senders. It knows who is malicious, so it is an anchor and cannot be submitted.

    No plug-in name stands for it: the benchmark takes it for the defense `oracle`. Where no sender is malicious, it is
    `Mean`, bit for bit.

    Args:
        malicious: the malicious senders' pseudonyms.
    """

    name: ClassVar[str] = "oracle"
    sees_labels: ClassVar[bool] = True

    def __init__(self, malicious: Collection[str] = ()) -> None:
        self.malicious = frozenset(malicious)
        self._rule = Mean()

    def aggregate(self, view: AggregationView) -> Aggregate:
        """As `Mean`, of the own vector and of those from honest senders; the others are rejected."""
        honest = [sent for sent in view.vectors if sent.sender not in self.malicious]
        joined = self._rule.aggregate(replace(view, vectors=tuple(honest)))
        accepted = iter(joined.verdicts)
        verdicts = [
            VectorVerdict("reject", reason=REASON) if sent.sender in self.malicious else next(accepted)
            for sent in view.vectors
        ]
        return Aggregate(joined.vector, tuple(verdicts))
