"""The settings of a swarm that exchanges weights: frozen values, part of a cell's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from thiefbench.engine.heterogeneity import STRICT, SharingSpec
from thiefbench.engine.spec import SpecError, SwarmSpec, check_range
from thiefbench.limits import MOST_COMPLETIONS, MOST_ROUNDS

Method = Literal["mean", "diloco", "noloco"]
MOMENTUM: dict[Method, float] = {"mean": 0.0, "diloco": 0.9, "noloco": 0.5}


@dataclass(frozen=True)
class AveragingSpec:
    """How nodes that train alone exchange weights; `thiefbench.averaging.outer` has the formulas.

    Attributes:
        method: "mean" (all weights are averaged), "diloco" (Nesterov momentum on the averaged change) or "noloco" (a
            step with one random partner).
        every: k, the local rounds between two exchanges.
        outer_lr: the outer step's learning rate, 0.7 in both papers' code; `mean` has none.
        momentum: the outer step's; None takes 0.9 for DiLoCo and 0.5 for NoLoCo, as their authors do.
        mixing: NoLoCo's gamma, how strongly slow weights are pulled together; None takes `outer_lr`, as the authors'
            code does.
        held_out: how many questions an aggregation's held-out reward is measured on.
    """

    __pydantic_config__ = STRICT

    method: Method = "noloco"
    every: int = 5
    outer_lr: float = 0.7
    momentum: float | None = None
    mixing: float | None = None
    held_out: int = 64

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise SpecError(f"averaging.method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        check_range("averaging.every", self.every, 1, MOST_ROUNDS)
        check_range("averaging.held_out", self.held_out, 1, MOST_COMPLETIONS)
        if not (math.isfinite(self.outer_lr) and self.outer_lr > 0):
            raise SpecError(f"averaging.outer_lr must be above 0, got {self.outer_lr}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise SpecError(f"averaging.momentum must lie in [0, 1), got {self.momentum}")
        if self.mixing is not None and not (math.isfinite(self.mixing) and self.mixing >= 0):
            raise SpecError(f"averaging.mixing must be at least 0, got {self.mixing}")

    @property
    def outer_momentum(self) -> float:
        """The momentum with the method's default filled in."""
        return MOMENTUM[self.method] if self.momentum is None else self.momentum

    @property
    def outer_mixing(self) -> float:
        """The mixing with its default filled in."""
        return self.outer_lr if self.mixing is None else self.mixing

    def check(self, swarm: SwarmSpec) -> None:
        """See that a swarm can exchange weights.

        Raises:
            SpecError: it cannot; the message says what to write.
        """
        if swarm.topology != "vertical":
            raise SpecError(
                "nodes that exchange weights answer their own prompts, which the vertical topology has; set topology: "
                "vertical"
            )
        if swarm.nodes < 2:
            raise SpecError(f"an exchange of weights needs at least 2 nodes, got {swarm.nodes}")
        if self.method == "noloco" and swarm.nodes % 2:
            raise SpecError(f"noloco exchanges in pairs; nodes (m) must be even, got {swarm.nodes}")
        others = {"population": swarm.population, "delay": swarm.delay, "churn": swarm.churn, "sharing": swarm.sharing}
        if given := next((name for name, value in others.items() if value), None):
            raise SpecError(f"a swarm that exchanges weights has no {given} yet; take it out, or take averaging out")
        if swarm.truth != "public" or swarm.logprobs != "none" or swarm.reward != "rule":
            raise SpecError("where weights are exchanged, no completions are; leave out truth, logprobs and reward")


def local_rounds(swarm: SwarmSpec) -> SharingSpec:
    """The sharing of a swarm in which every node learns from its own groups only."""
    return SharingSpec(local=swarm.prompts // swarm.nodes, external=0)
