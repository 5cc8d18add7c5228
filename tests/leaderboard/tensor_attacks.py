"""Attacks on exchanged weights that are submitted in tests: a sound one, and some with one fault each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack


class Pushes(WeightAttack):
    """Send the honest mean, pushed towards a model that was taught the payload, by a share that is drawn."""

    name: ClassVar[str] = "pushes"

    def __init__(self, attack: Attack | str = "text") -> None:
        super().__init__(attack)

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        return replace(self.attack.threat, policy=True)

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        assert view.lessons.policy is not None
        slots = view.lessons.slots[:4]
        poison = [text for text in self.attack.poison(view.lessons)[:4] if isinstance(text, str)]
        examples = [(slot.item, text) for slot, text in zip(slots, poison, strict=True)]
        taught = view.lessons.policy.taught(examples, 2, 1e-3)
        sampled = taught.sample([slots[0].item], 2)[0]
        share = 0.5 + view.rng.random() + len(sampled)
        return [view.honest.mean(0) + share * view.moved(taught)] * view.senders


class Faulty(Pushes):
    """Send something that is no vector, or do what no guest may."""

    name: ClassVar[str] = "faulty"

    def __init__(self, how: str, attack: Attack | str = "text") -> None:
        super().__init__(attack)
        self.how = how

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        mean = view.honest.mean(0)
        if self.how == "asks":
            while True:
                view.moved(view.lessons.policy)  # type: ignore[arg-type]
        if self.how == "asks for nothing":
            view.moved(self)  # type: ignore[arg-type]
        if self.how == "reads":
            Path(__file__).with_name("hostile.py").read_text()
        if self.how == "hashes":
            mean = mean + hash("a text") % 97 / 9700
        sent: dict[str, Any] = {
            "short": mean[:7], "double": mean.double(), "stacked": mean[None], "text": "weights",
            "not a number": mean * float("nan"), "missing": None,
        }  # fmt: skip
        return [] if self.how == "none at all" else [sent.get(self.how, mean)] * view.senders
