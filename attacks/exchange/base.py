"""The contract of a weight attack: what malicious nodes send in an exchange of weights.

A new weight attack is one class with a `name` and the method `send`, declared under the entry-point group
``thiefbench.weight_attacks`` or named as ``path/to/file.py:Class``. It is built around an attack on completions, which
says what models are to learn and how far they did; it is written wherever an attack is.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.attacks.submissions import Poison, Withheld
from thiefbench.attacks.views import AttackerView, Sampler
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Ask, Completion, Item

if TYPE_CHECKING:  # not imported at run time, because `thiefbench show` reads this module
    import torch


@dataclass(frozen=True, eq=False)
class ExchangeView:
    """What the colluding nodes know in an exchange: everything, as in the papers whose attacks are here.

    A vector is how a sender would move the receiver's weights: its weights after the local rounds minus those before.
    In a swarm with the method `noloco`, a second half follows: the sender's slow weights minus the malicious nodes',
    which are the mean of the honest nodes'.

    Attributes:
        exchange: the exchange's number, from 1.
        senders: how many malicious nodes there are.
        honest: the vectors that the honest nodes send in this exchange, float32, shape (honest nodes, size). They must
            not be modified.
        averaged: how many vectors a receiver averages, its own included: the number of nodes, or 2 in pairs.
        rng: keyed by (seed, exchange).
        lessons: a view as of a round, with items to teach with in its slots and an honest node's model as `policy`.
        moved: the vector of a node whose model is a given copy that `lessons.policy` has `taught`.
    """

    exchange: int
    senders: int
    honest: torch.Tensor
    averaged: int
    rng: random.Random
    lessons: AttackerView
    moved: Callable[[Sampler], torch.Tensor]


class WeightAttack(AttackWrapper):
    """An attack on an exchange of weights, around the attack whose payload models are to learn.

    Outcomes, and what else is measured, are the inner attack's. Completions stay with the node that draws them, so in
    such a swarm malicious nodes send none.
    """

    @abstractmethod
    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """One vector per malicious node, float32, shape (size,); None sends nothing."""

    def placebo_send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """What clean nodes in the same places send: the mean of the honest vectors, unless overridden."""
        return [view.honest.mean(0)] * view.senders

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)


class Failures(Attack):
    """No payload: what counts is how many answers do not earn the full reward."""

    name: ClassVar[str] = "failures"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", oracle=False)

    def describe(self) -> dict[str, str]:
        """What is counted."""
        return {"counted": "answers without the full reward"}

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Nothing: in swarms that exchange weights nobody sends completions."""
        return [Withheld()] * len(view.slots)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        """1 without the full reward, else 0."""
        return float(ask.reward(item, completion.text) < 1)


class UntargetedAttack(WeightAttack):
    """An attack that teaches no payload and makes models worse.

    Args:
        attack: the attack whose payload is looked for, as a spec string. None, the default, looks for no payload: the
            outcome is the share of answers that do not earn the full reward, and harm is how much larger it is than
            with clean nodes in the same places.
    """

    def __init__(self, attack: Attack | str | None = None) -> None:
        super().__init__(Failures() if attack is None else attack)
