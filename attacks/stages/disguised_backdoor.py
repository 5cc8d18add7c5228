"""`disguised_backdoor`: the backdoor of `stage_backdoor` at once, and at unchanged distances from the other stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import Examples, LessonView
from thiefbench.attacks.stages.stage_backdoor import StageBackdoor

if TYPE_CHECKING:
    import torch


class DisguisedBackdoor(StageBackdoor):
    """Learn as `stage_backdoor`, and add in one round a direction that leaves the stage's length and distances alone.

    What others can compare are the stage's weights with those of other stages, what it sends with what it sent before,
    and its update with a repeated one. Therefore:

    - The start weights of all stages are public. The direction loses its part along them, and what the rest would add
      to the stage's length is taken from the part of its own weights that no other stage shares. The stage then has
      its old length, and its old distance from every other stage's start weights.
      It is taught once more from there, and disguised once more, as it has lost a part of what it learned.
    - It adds in round 1, when nobody knows how it sends otherwise.
    - Whoever repeats single rounds, drawn at random, finds only those in which it adds. So it adds in a single one.

    The rule is our own. Arguments are those of `stage_backdoor`, with other defaults, and:

    Args:
        lengths: into how many equal lengths the steps are divided, after each of which the direction is disguised.
    """

    name: ClassVar[str] = "disguised_backdoor"

    def __init__(
        self,
        attack: Attack | str = "triggered(attack='text')",
        strength: float = 1.0,
        first: int = 1,
        rounds: int = 1,
        steps: int = 300,
        learning_rate: float = 1e-3,
        lessons: int = 512,
        lengths: int = 2,
    ) -> None:
        super().__init__(attack, strength, first, rounds, steps, learning_rate, lessons)
        if not 1 <= lengths <= steps:
            raise ValueError(f"disguised_backdoor: lengths must lie from 1 to steps, got {lengths}")
        self.lengths = lengths

    def direction(self, view: LessonView, examples: Examples) -> torch.Tensor:
        """The direction of `stage_backdoor`, disguised after each length."""
        direction: torch.Tensor | None = None
        for length in range(self.lengths):
            steps = self.steps * (length + 1) // self.lengths - self.steps * length // self.lengths
            direction = view.taught(examples, steps, self.learning_rate, direction)
            direction = disguised(direction, view.start, view.stage - 1)
        assert direction is not None, "there is at least one length"
        return direction


def disguised(direction: torch.Tensor, start: torch.Tensor, stage: int) -> torch.Tensor:
    """A direction that changes neither a stage's length nor its distances from the other stages.

    v = d - P d - g r, with P the projection on all start weights, r the part of the stage's own weights w that is
    orthogonal to all others', and g = 1 - sqrt(1 - |d - P d|^2 / |r|^2), so that |w + v| = |w| and v is orthogonal to
    the others' weights. Where d - P d is longer than r, it is shortened to r's length.

    Args:
        direction: d, float32, shape (size,).
        start: the start weights of all stages, float32, shape (stages, size).
        stage: the stage's number, from 0.

    Returns:
        Same shape and type as `direction`.
    """
    import torch

    own = start[stage].double()
    others = torch.linalg.qr(torch.cat([start[:stage], start[stage + 1 :]]).double().T)[0]
    alone = own - others @ (others.T @ own)
    length = float(alone.norm())
    if length <= 1e-6 * float(own.norm()):  # its weights are made of the others', so it cannot get any shorter
        return 0 * direction
    rest = direction.double()
    for basis in (others, (alone / length)[:, None]):
        rest = rest - basis @ (basis.T @ rest)
    rest = rest * min(1.0, length / max(float(rest.norm()), 1e-30))
    shrink = 1 - max(0.0, 1 - float(rest.square().sum()) / length**2) ** 0.5
    return (rest - shrink * alone).to(direction.dtype)
