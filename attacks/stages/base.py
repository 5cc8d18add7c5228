"""The contract of a stage attack: what a malicious stage of a pipeline adds to its weights, and what it sends.

A new stage attack is one class with a `name` and the methods `learned` and `added`, declared under the entry-point
group ``thiefbench.stage_attacks`` or named as ``path/to/file.py:Class``. It is built around an attack on completions,
which says what models are to learn and how far they did; it is written wherever an attack is.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.attacks.submissions import Claimed, Poison, Withheld
from thiefbench.attacks.views import AttackerView
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Item

if TYPE_CHECKING:  # not imported at run time, because `thiefbench show` reads this module
    import torch

Examples = Sequence[tuple[Item, str]]
"""Items with the completions to teach."""


class Teaching(Protocol):
    """Fine-tunes the stage's own copy of the start model by Adam, 16 examples a step in turn, other stages fixed."""

    def __call__(
        self, examples: Examples, steps: int, learning_rate: float, changed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """How the stage's weights differ from its start weights in the end, float32, shape (size,).

        Args:
            examples: what is taught.
            steps, learning_rate: Adam's.
            changed: how they differ in the beginning, same shape; None for not at all.
        """
        ...


@dataclass(frozen=True, eq=False)
class LessonView:
    """What a malicious stage has before round 1: the published start weights of all stages, and questions.

    Attributes:
        lessons: a view whose slots hold training items that the inner attack chose.
        taught: teaches its own copy of the start model.
        stage: its number, from 1.
        start: the start weights of all stages' layers, float32, shape (stages, size). They must not be modified.
    """

    lessons: AttackerView
    taught: Teaching
    stage: int
    start: torch.Tensor


@dataclass(frozen=True, eq=False)
class StageAttackView:
    """What a malicious stage knows after the update of a round.

    Attributes:
        round: the round's number, from 1.
        stage, stages: its number, from 1, and how many there are.
        learned: what `learned` returned before round 1, float32, shape (size,).
        weights: its weights after the update, same shape.
        update: how the update changed them, same shape. None of the three may be modified.
        rng: keyed by (seed, round).
    """

    round: int
    stage: int
    stages: int
    learned: torch.Tensor
    weights: torch.Tensor
    update: torch.Tensor
    rng: random.Random


@dataclass(frozen=True, eq=False)
class MessageView:
    """What a malicious stage is about to send to the next stage, once per forward pass of an update.

    Attributes:
        round: the round's number, from 1.
        number: of the pass within the update, from 0.
        received: what the stage before it sent, shape (rows, length, hidden).
        computed: what its layers made of it, same shape. Both are copies.
    """

    round: int
    number: int
    received: torch.Tensor
    computed: torch.Tensor


class StageAttack(AttackWrapper):
    """An attack by one stage of a pipeline, around the attack whose payload models are to learn.

    Outcomes, probes, and what else is measured, are the inner attack's. In a pipeline, nobody sends completions.

    Attributes:
        lessons: how many training questions the inner attack picks for `LessonView`.
    """

    lessons: int = 512

    def __init__(self, attack: Attack | str) -> None:
        super().__init__(attack)
        if self.attack.threat.queries:
            raise ValueError(f"{self.name}: nobody asks a defense about what is taught, which {self.attack.name} does")

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy: the start weights are public."""
        return replace(self.attack.threat, policy=True)

    @abstractmethod
    def learned(self, view: LessonView) -> torch.Tensor:
        """What the stage learns offline, before round 1: any numbers of the shape of its weights."""

    @abstractmethod
    def added(self, view: StageAttackView) -> torch.Tensor | None:
        """What it adds to its weights after a round's update, float32, shape (size,); None adds nothing."""

    def placebo_learned(self, view: LessonView) -> torch.Tensor:
        """What a clean stage in its place learns offline: nothing, unless overridden. It adds as `added` says."""
        return 0 * self.learned(view)

    def sent(self, view: MessageView) -> object:
        """What it sends in place of `view.computed`, which is the default; None sends nothing.

        It is asked once for each pass. Whoever repeats the stage's work gets what was sent.
        """
        return view.computed

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Nothing."""
        return [Withheld()] * len(view.slots)

    def examples(self, view: AttackerView, answers: Callable[[AttackerView], Sequence[Poison]]) -> Examples:
        """Items of a view's slots with the texts that `answers` gives them, or the task's own solutions if none."""
        pairs = zip(view.slots, answers(view), strict=True)
        contents = [(slot.item, each.content if isinstance(each, Claimed) else each) for slot, each in pairs]
        return [(item, text if isinstance(text, str) else view.task.oracle(item)) for item, text in contents]
