"""The contract of an aggregation: it sees the vectors that a node received in an exchange, and gives one vector.

A new aggregation is one class with a `name` and the method `aggregate`, declared under the entry-point group
``thiefbench.aggregations`` or named as ``path/to/file.py:Class``. It is written wherever a defense is. It does not see
who is malicious.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, cast

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict

if TYPE_CHECKING:  # as in `defenses/base.py`
    import torch

AVERAGING: Final = cast(Requirement, "averaging")
"""What every aggregation has in `requires`: nodes exchange weights, not completions."""

VectorAction = Literal["accept", "clip", "reject"]


@dataclass(frozen=True)
class VectorVerdict:
    """What an aggregation made of one vector, for reports and rates; only the aggregate changes a node's weights.

    Attributes:
        action: "accept"; "clip" if it counted with a changed length; "reject" if it did not count.
        score: how suspicious it is, in a unit that the aggregation chooses; None if it has none.
        reason: a few words for reports.
    """

    action: VectorAction = "accept"
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class SentVector:
    """One vector as a node received it. All its numbers are finite and its shape is that of the node's own.

    Attributes:
        sender: the sending node's pseudonym, constant during a run.
        vector: float32, shape (size,). It must not be modified.
    """

    sender: str
    vector: torch.Tensor


@dataclass(frozen=True, eq=False)
class AggregationView:
    """What a node knows when it joins the vectors of an exchange.

    A vector is how a sender would move the node's weights: its weights after the local rounds minus those before. In a
    swarm with the method `noloco`, a second half follows: the sender's slow weights minus the node's own, so that the
    second half of the node's own vector is 0.

    Attributes:
        exchange: the exchange's number, from 1.
        own: the node's own vector, float32, shape (size,).
        vectors: the others', in a shuffled order that carries no information; empty if none arrived.
        rng: keyed by (seed, exchange, node).
        reward: the mean task reward, in [0, 1], that the node's model has on questions it did not train on in this
            exchange, once it has adopted a given aggregate. The questions, and the noise of the answers, are the same
            for all calls of an exchange.
        loss: the mean negative log-probability, per token, of the node's own rewarded completions of the last round
            under the model that has adopted a given aggregate.
    """

    exchange: int
    own: torch.Tensor
    vectors: tuple[SentVector, ...]
    rng: random.Random
    reward: Callable[[torch.Tensor], float]
    loss: Callable[[torch.Tensor], float]

    def stacked(self) -> torch.Tensor:
        """All vectors, the own one first, shape (1 + received, size)."""
        import torch  # not at the top, because `thiefbench show` reads this module

        return torch.stack([self.own, *(sent.vector for sent in self.vectors)])


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What an aggregation returns.

    Attributes:
        vector: the vector that the node adopts, float32, shape (size,).
        verdicts: one per vector of the view, in its order.
    """

    vector: torch.Tensor
    verdicts: tuple[VectorVerdict, ...]


class Aggregation(Defense):
    """A rule that joins the vectors of an exchange. Constructor arguments are its parameters, as of any defense.

    It counts as a defense, so it is named wherever a defense is, and what inspects completions inspects none here.
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({AVERAGING})

    @abstractmethod
    def aggregate(self, view: AggregationView) -> Aggregate:
        """The vector to adopt, and one verdict per vector of `view`, in its order.

        It must give finite numbers for all finite ones, also if no vector arrived. Nodes that see equal views must get
        equal results, and the order of the vectors must not matter (beyond rounding).
        """

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Accept all completions: where weights are exchanged, nobody sends any."""
        return [Verdict() for _ in view.completions]


def by_distance(view: AggregationView, vector: torch.Tensor) -> Aggregate:
    """An aggregate that accepted every vector; the score is a vector's distance from it."""
    distances = [float((sent.vector - vector).norm()) for sent in view.vectors]
    return Aggregate(vector, tuple(VectorVerdict(score=finite(distance)) for distance in distances))


def finite(score: float) -> float | None:
    """A score as a verdict may hold it: None if it is not finite, as where huge vectors overflow."""
    return score if math.isfinite(score) else None


def inner_rule(rule: Defense | str, name: str) -> Aggregation:
    """The aggregation that another one is built around.

    Raises:
        TypeError: it is still a spec string.
        ValueError: it is a defense that inspects completions.
    """
    if isinstance(rule, str):
        raise TypeError(f"{name}: rule is an aggregation; thiefbench.registry.make makes one of {rule!r}")
    if not isinstance(rule, Aggregation):
        raise ValueError(f"{name}: rule must be an aggregation such as 'mean', and {rule.name} inspects completions")
    return rule


def check_malicious(f: int, name: str) -> int:
    """The number of malicious senders that a rule is to withstand.

    Raises:
        ValueError: it is no such number.
    """
    if type(f) is not int or f < 0:
        raise ValueError(f"{name}: f is the number of malicious nodes to withstand, at least 0, got {f!r}")
    return f
