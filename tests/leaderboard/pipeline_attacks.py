"""Attacks on pipelines that are submitted in tests: a sound one that lies, too, and some with one fault each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import LessonView, MessageView, StageAttack, StageAttackView


class Adds(StageAttack):
    """Learn twice, the second time from where the first ended, add a drawn share of it, and lie in the first pass."""

    name: ClassVar[str] = "adds"
    lessons = 8

    def __init__(self, attack: Attack | str = "text") -> None:
        super().__init__(attack)

    def learned(self, view: LessonView) -> torch.Tensor:
        examples = self.examples(view.lessons, self.attack.poison)
        first = view.taught(examples, 2, 1e-3)
        return view.taught(examples, 2, 1e-3, first) + 1e-3 * view.start[view.stage - 1]

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        return None if view.round > 1 else view.learned * (0.5 + view.rng.random()) + 0.1 * view.update

    def sent(self, view: MessageView) -> object:
        return -view.received if view.number == 0 else view.computed


class AddsZeros(Adds):
    """Add a vector of zeros, and send what was computed."""

    name: ClassVar[str] = "adds_zeros"

    def learned(self, view: LessonView) -> torch.Tensor:
        return torch.zeros_like(view.start[0])

    def added(self, view: StageAttackView) -> torch.Tensor:
        return view.learned

    def sent(self, view: MessageView) -> object:
        return view.computed


class Faulty(Adds):
    """Learn, add or send something that is no tensor of the right kind."""

    name: ClassVar[str] = "faulty"

    def __init__(self, how: str, attack: Attack | str = "text") -> None:
        super().__init__(attack)
        self.how = how

    def learned(self, view: LessonView) -> torch.Tensor:
        examples = self.examples(view.lessons, self.attack.poison)
        if self.how == "teaches long":
            view.taught(examples, 401, 1e-3)
        if self.how == "teaches from elsewhere":
            view.taught(examples, 1, 1e-3, torch.zeros(3))
        whole = torch.zeros_like(view.start[0])
        learned: dict[str, Any] = {
            "learns little": whole[1:], "learns nothing": None, "learns no number": whole / 0,
            "learns doubles": whole.double(),
        }  # fmt: skip
        return learned.get(self.how, whole)

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        if self.how == "adds much":
            return torch.full_like(view.weights, 3e38)
        return view.weights[:5] if self.how == "adds little" else None

    def sent(self, view: MessageView) -> object:
        sent = {"sends text": "activations", "sends nothing": None, "sends little": view.computed[:, :1]}
        return sent.get(self.how, view.computed)
