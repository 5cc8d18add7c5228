"""`ipm`: inner-product manipulation (Xie, Koyejo, Gupta, arXiv:1903.03936)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import ExchangeView, UntargetedAttack

if TYPE_CHECKING:
    import torch


class Ipm(UntargetedAttack):
    """Send a small opposite of the honest mean, so that what is joined has a negative inner product with it.

    The vector is - epsilon times the honest mean. A small epsilon stays near the honest vectors, and hides from rules
    that choose by distance; a large one turns the plain mean around.

    Args:
        attack: see `UntargetedAttack`.
        epsilon: a factor; the paper uses 0.1 against Krum and values above n / f - 1 against the mean.
    """

    name: ClassVar[str] = "ipm"

    def __init__(self, attack: Attack | str | None = None, epsilon: float = 0.1) -> None:
        super().__init__(attack)
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"ipm: epsilon must be above 0, got {epsilon}")
        self.epsilon = epsilon

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """The same vector from every malicious node."""
        return [-self.epsilon * view.honest.mean(0)] * view.senders
