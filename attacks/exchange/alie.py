"""`alie`: a little is enough (Baruch, Baruch, Goldberg, arXiv:1902.06156)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import ExchangeView, UntargetedAttack

if TYPE_CHECKING:
    import torch


class Alie(UntargetedAttack):
    """Send the honest mean shifted by a few standard deviations in every coordinate, as outlying honest nodes do.

    All malicious nodes send the same, and the standard deviation is that of the honest vectors.

    Args:
        attack: see `UntargetedAttack`.
        z: how many standard deviations. The paper derives z from the numbers of nodes, which gives less than 0 for as
            few as here, and measures with 1.0 and 1.5.
    """

    name: ClassVar[str] = "alie"

    def __init__(self, attack: Attack | str | None = None, z: float = 1.5) -> None:
        super().__init__(attack)
        if not math.isfinite(z):
            raise ValueError(f"alie: z must be a finite number, got {z}")
        self.z = z

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        """The same vector from every malicious node; one honest node has no deviation, and there is no shift."""
        mean = view.honest.mean(0)
        shifted = mean + self.z * view.honest.std(0) if len(view.honest) > 1 else mean
        return [shifted] * view.senders
