"""`held_out`: try every vector before adopting it (the before and after of Gauntlet, arXiv:2505.21684)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, get_args

import torch

from thiefbench.defenses.aggregation.base import (
    Aggregate,
    Aggregation,
    AggregationView,
    SentVector,
    VectorVerdict,
    finite,
    inner_rule,
)
from thiefbench.defenses.base import Defense

Measure = Literal["reward", "loss"]


class HeldOut(Aggregation):
    """Reject a vector if the mean of it and the node's own makes the node's model worse than the own one alone.

    Gauntlet compares the loss with and without one contribution to the shared model; here a node does so for itself,
    because each may hold other weights.

    Args:
        measure: "reward" answers questions (a payload that leaves answers right passes); "loss" asks how probable the
            node's own rewarded completions remain.
        tolerance: how much worse is still accepted: of the reward, in absolute terms; of the loss, as a share.
        rule: the aggregation that joins the accepted vectors, as a spec string.
    """

    name: ClassVar[str] = "held_out"

    def __init__(self, measure: Measure = "loss", tolerance: float = 0.05, rule: Defense | str = "mean") -> None:
        if measure not in get_args(Measure):
            raise ValueError(f"held_out: measure must be {' or '.join(get_args(Measure))}, got {measure!r}")
        if not tolerance >= 0:
            raise ValueError(f"held_out: tolerance must be at least 0, got {tolerance}")
        self.measure, self.tolerance, self.rule = measure, tolerance, inner_rule(rule, self.name)

    def aggregate(self, view: AggregationView) -> Aggregate:
        """As the rule, of the vectors that passed; the score is how much worse the model became."""
        if not view.vectors:
            return self.rule.aggregate(view)
        alone = self._measured(view, view.own)
        worse = [self._worse(alone, self._measured(view, (view.own + sent.vector) / 2)) for sent in view.vectors]
        passed = [number for number, by in enumerate(worse) if by <= self.tolerance]
        kept: list[SentVector] = [view.vectors[number] for number in passed]
        joined = self.rule.aggregate(replace(view, vectors=tuple(kept)))
        verdicts = [
            VectorVerdict("reject", finite(by), f"{self.measure} is worse with it than without") for by in worse
        ]
        for number, verdict in zip(passed, joined.verdicts, strict=True):
            verdicts[number] = replace(verdict, score=finite(worse[number]))
        return Aggregate(joined.vector, tuple(verdicts))

    def _measured(self, view: AggregationView, vector: torch.Tensor) -> float:
        return view.reward(vector) if self.measure == "reward" else view.loss(vector)

    def _worse(self, alone: float, joined: float) -> float:
        """How much worse the model is; not a number, which no tolerance covers, if its loss is not."""
        if self.measure == "reward":
            return alone - joined
        return joined / alone - 1 if alone > 0 else joined
