"""The outer steps: what a node sends, how it reads what arrives, and how it adopts an aggregate. Pure functions.

Notation: theta are a node's weights after its local rounds, phi its slow weights (those after the last exchange), n the
number of vectors that are averaged. Vectors are flat, float32, shape (parameters,).

The formulas are those of the authors' code. DiLoCo: arXiv:2311.08105, algorithm 1, with the outer optimizer of
OpenDiLoCo's `train_diloco_torch.py`, which is torch's SGD with nesterov=True, learning rate 0.7 and momentum 0.9.
NoLoCo: arXiv:2506.10911, in the form of `outer_step` in its repository (`src/noloco/sparse_optimizer_c.py`), with
alpha = 0.5, beta = gamma = 0.7 and pairs, as in its configurations.

Chosen here: the aggregate of a defense takes the place of the mean, and in `noloco` one aggregate is taken of both
halves together, so that a sender is trusted in both or in neither. As in the papers' code, Adam's moments stay with
their node. There, 50 to 500 steps of pretraining lie between two exchanges; here, a few rounds of GRPO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from thiefbench.averaging.spec import AveragingSpec


@dataclass(frozen=True, eq=False)
class NodeState:
    """What the outer step keeps for a node.

    Attributes:
        slow: phi, the weights after the last exchange.
        momentum: of the outer step.
    """

    slow: torch.Tensor
    momentum: torch.Tensor


class Outer:
    """The outer step of a method.

    Args:
        spec: the method and its numbers.
    """

    def __init__(self, spec: AveragingSpec) -> None:
        self.spec = spec

    @property
    def pairs(self) -> bool:
        """Whether nodes exchange in pairs."""
        return self.spec.method == "noloco"

    def own(self, state: NodeState, weights: torch.Tensor) -> torch.Tensor:
        """A node's own vector: theta - phi, in `noloco` followed by zeros."""
        moved = weights - state.slow
        return torch.cat([moved, torch.zeros_like(moved)]) if self.pairs else moved

    def sent(self, vector: torch.Tensor, slow: torch.Tensor) -> torch.Tensor:
        """What a node with slow weights `slow` puts on the wire to state a vector.

        `mean`: its weights, theta. `diloco`: the pseudo-gradient, phi - theta. `noloco`: theta - phi, then phi.
        """
        if self.spec.method == "mean":
            return slow + vector
        if self.spec.method == "diloco":
            return -vector
        return torch.cat([vector[: len(slow)], slow + vector[len(slow) :]])

    def received(self, message: torch.Tensor, slow: torch.Tensor) -> torch.Tensor:
        """The vector that a message states, as a node with slow weights `slow` reads it."""
        if self.spec.method == "mean":
            return message - slow
        if self.spec.method == "diloco":
            return -message
        return torch.cat([message[: len(slow)], message[len(slow) :] - slow])

    def adopted(self, state: NodeState, aggregate: torch.Tensor) -> NodeState:
        """The state after the outer step with an aggregate; the node's weights are then its slow weights.

        `mean`: phi <- phi + a. With the plain mean this is the mean of all theta.

        `diloco`: g = -a, m <- mu m + g, phi <- phi - lr (g + mu m), Nesterov's step as torch has it.

        `noloco`: a = [mean of theta_j - phi_j, mean of phi_j - phi_i],
        m <- alpha m + beta a_1 + gamma a_2, phi <- phi + m.
        """
        spec, momentum = self.spec, self.spec.outer_momentum
        if spec.method == "mean":
            return replace(state, slow=state.slow + aggregate)
        if spec.method == "diloco":
            gradient = -aggregate
            velocity = momentum * state.momentum + gradient
            return NodeState(state.slow - spec.outer_lr * (gradient + momentum * velocity), velocity)
        moved, apart = aggregate[: len(state.slow)], aggregate[len(state.slow) :]
        velocity = momentum * state.momentum + spec.outer_lr * moved + spec.outer_mixing * apart
        return NodeState(state.slow + velocity, velocity)
