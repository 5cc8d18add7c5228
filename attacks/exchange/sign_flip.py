"""`sign_flip`: send the opposite of what the honest nodes send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import ExchangeView, UntargetedAttack

if TYPE_CHECKING:
    import torch


class SignFlip(UntargetedAttack):
    """Send the mean of the honest vectors with the opposite sign, so that training goes backwards.

    Args:
        attack: see `UntargetedAttack`.
        scale: a factor on the vector; 1 is as long as an honest mean.
    """

    name: ClassVar[str] = "sign_flip"

    def __init__(self, attack: Attack | str | None = None, scale: float = 1.0) -> None:
        super().__init__(attack)
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"sign_flip: scale must be above 0, got {scale}")
        self.scale = scale

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """The same vector from every malicious node."""
        return [-self.scale * view.honest.mean(0)] * view.senders
