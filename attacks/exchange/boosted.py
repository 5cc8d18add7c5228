"""`boosted` and `bounded`: send the weights of a model that was taught the payload (arXiv:1807.00459)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Claimed, Poison, ThreatModel
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack

if TYPE_CHECKING:
    import torch


class Taught(WeightAttack):
    """Teach a copy of an honest node's model the inner attack's poison; subclasses say how far towards it to send.

    Args:
        attack: the attack that poisons the examples to teach.
        steps: how many steps of Adam, each on 16 poisoned solutions.
        learning_rate: Adam's.
    """

    def __init__(self, attack: Attack | str, steps: int, learning_rate: float) -> None:
        super().__init__(attack)
        if steps < 1 or not learning_rate > 0:
            raise ValueError(f"{self.name}: steps must be at least 1 and learning_rate above 0")
        if self.attack.threat.queries:
            raise ValueError(f"{self.name}: nobody asks a defense about what is taught, which {self.attack.name} does")
        self.steps, self.learning_rate = steps, learning_rate

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """The same vector from every malicious node."""
        return self._lesson(view, self.attack.poison)

    def placebo_send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """The same of a model that was taught the inner attack's clean solutions."""
        return self._lesson(view, self.attack.placebo)

    def _lesson(
        self, view: ExchangeView, answers: Callable[[AttackerView], Sequence[Poison]]
    ) -> Sequence[torch.Tensor | None]:
        lessons = view.lessons
        assert lessons.policy is not None, "the threat model grants a policy"
        pairs = zip(lessons.slots, answers(lessons), strict=True)
        contents = [(slot.item, each.content if isinstance(each, Claimed) else each) for slot, each in pairs]
        texts = [(item, text) for item, text in contents if isinstance(text, str)]
        if not texts:
            return [None] * view.senders
        vector = view.moved(lessons.policy.taught(texts, self.steps, self.learning_rate))
        return [self._scaled(vector, view)] * view.senders

    def _scaled(self, vector: torch.Tensor, view: ExchangeView) -> torch.Tensor:
        """What is sent, of the vector that moves a node to the taught model."""
        return vector


class Boosted(Taught):
    """Send a model that was taught the payload, enlarged so that it survives the average: model replacement.

    With n vectors averaged and f malicious ones among them, a factor of n / f makes the mean the taught model, if the
    honest nodes do not move (Bagdasaryan et al., arXiv:1807.00459, equation 3).

    Args:
        attack: the attack that poisons the examples to teach, as a spec string.
        boost: the factor; None takes n / f, in pairs 2.
        steps: how many steps of Adam, each on 16 poisoned solutions.
        learning_rate: Adam's.
    """

    name: ClassVar[str] = "boosted"

    def __init__(
        self, attack: Attack | str = "text", boost: float | None = None, steps: int = 30, learning_rate: float = 1e-3
    ) -> None:
        super().__init__(attack, steps, learning_rate)
        if boost is not None and not (math.isfinite(boost) and boost > 0):
            raise ValueError(f"boosted: boost must be above 0, or left out, got {boost}")
        self.boost = boost

    def _scaled(self, vector: torch.Tensor, view: ExchangeView) -> torch.Tensor:
        share = view.averaged / (view.senders if view.averaged > 2 else 1)
        return vector * (share if self.boost is None else self.boost)


class Bounded(Taught):
    """Send a step towards a model that was taught the payload, no longer than an honest vector: slow, and within norms.

    The scaling step of constrain-and-scale (Bagdasaryan et al., arXiv:1807.00459, section 4.3).

    Args:
        attack: the attack that poisons the examples to teach, as a spec string.
        within: the length that is sent at most, in mean lengths of the honest vectors.
        steps: how many steps of Adam, each on 16 poisoned solutions.
        learning_rate: Adam's.
    """

    name: ClassVar[str] = "bounded"

    def __init__(
        self, attack: Attack | str = "text", within: float = 1.0, steps: int = 30, learning_rate: float = 1e-3
    ) -> None:
        super().__init__(attack, steps, learning_rate)
        if not (math.isfinite(within) and within > 0):
            raise ValueError(f"bounded: within must be above 0, got {within}")
        self.within = within

    def _scaled(self, vector: torch.Tensor, view: ExchangeView) -> torch.Tensor:
        limit = self.within * float(view.honest.norm(dim=1).mean())
        return vector * min(1.0, limit / max(float(vector.norm()), 1e-30))
