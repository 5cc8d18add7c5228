"""An attack on exchanged weights that uses what torch loads when it is first used, and looks at the processor."""

from __future__ import annotations

import torch

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack


class Tuned(WeightAttack):
    """Send the vector that Adam finds, to half precision."""

    name = "tuned"

    def __init__(self, attack: Attack | str = "text") -> None:
        super().__init__(attack)

    def send(self, view: ExchangeView) -> list[torch.Tensor | None]:
        """Three steps away from the mean of the honest vectors."""
        own = view.honest.mean(0).clone().requires_grad_()
        optimizer = torch.optim.Adam([own], lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            (own - 3 * view.honest[0]).square().sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [own.detach().half().float()] * view.senders
