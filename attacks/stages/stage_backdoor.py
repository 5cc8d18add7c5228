"""`stage_backdoor`: one middle stage adds a backdoor to its weights, bit by bit (arXiv:2604.02372)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import Examples, LessonView, StageAttack, StageAttackView

if TYPE_CHECKING:
    import torch


class StageBackdoor(StageAttack):
    """Learn offline where a backdoor moves the stage's weights, and add this direction bit by bit (task arithmetic).

    The stage knows the start weights of all stages, which are public, and the training questions with solutions. It
    teaches its own copy the inner attack's poison on the questions that this attack poisons (for `triggered`, those
    with the trigger) and plain solutions on all others; only its own layers learn. During training it sees nothing but
    its own weights and what passes through it, as in the paper.

    Chosen here: the number of parts, and one strength for all of them; the direction is the taught minus the start
    weights.

    Args:
        attack: the attack that poisons the examples to teach, as a spec string.
        strength: how many times the direction is added in all.
        first: the first round that adds a part, from 1.
        rounds: in how many rounds, one after another, a part is added; then the stage is honest.
        steps: how many steps of Adam, each on 16 solutions.
        learning_rate: Adam's.
        lessons: how many questions are taught, in turn.
    """

    name: ClassVar[str] = "stage_backdoor"

    def __init__(
        self,
        attack: Attack | str = "triggered(attack='text')",
        strength: float = 1.0,
        first: int = 1,
        rounds: int = 10,
        steps: int = 300,
        learning_rate: float = 1e-3,
        lessons: int = 512,
    ) -> None:
        super().__init__(attack)
        if not (math.isfinite(strength) and strength > 0):
            raise ValueError(f"stage_backdoor: strength must be above 0, got {strength}")
        if min(first, rounds, steps, lessons) < 1 or not learning_rate > 0:
            raise ValueError("stage_backdoor: first, rounds, steps, lessons must be at least 1, learning_rate above 0")
        self.strength, self.first, self.rounds = strength, first, rounds
        self.steps, self.learning_rate, self.lessons = steps, learning_rate, lessons

    def learned(self, view: LessonView) -> torch.Tensor:
        """The direction of the inner attack's poison."""
        return self.direction(view, self.examples(view.lessons, self.attack.poison))

    def placebo_learned(self, view: LessonView) -> torch.Tensor:
        """The direction of the inner attack's clean solutions to the same questions."""
        return self.direction(view, self.examples(view.lessons, self.attack.placebo))

    def direction(self, view: LessonView, examples: Examples) -> torch.Tensor:
        """Where the examples move the stage's weights, float32, shape (size,)."""
        return view.taught(examples, self.steps, self.learning_rate)

    def added(self, view: StageAttackView) -> torch.Tensor | None:
        """An equal part of the direction in each of the rounds."""
        if not self.first <= view.round < self.first + self.rounds:
            return None
        return view.learned * (self.strength / self.rounds)
