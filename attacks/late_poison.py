"""`late_poison`: honest until a given round, so that the sender has a good record when the poison begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thiefbench.attacks.base import Attack, AttackerView, Poison, Sampler
from thiefbench.attacks.wrapper import AttackWrapper


class LatePoison(AttackWrapper):
    """Answer honestly first, so that defenses that keep a record of senders (`reputation`) trust the attacker.

    Args:
        attack: the attack that begins in round `start`.
        start: the first poisoned round.
    """

    name = "late_poison"

    def __init__(self, attack: Attack | str = "text", start: int = 30) -> None:
        super().__init__(attack)
        if start < 2:
            raise ValueError(f"late_poison: start must be at least 2, as there is no round before 1, got {start}")
        self.start = start

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Honest samples before `start`, then the inner attack's submissions."""
        return self._from_start(view, self.attack.poison)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Honest samples before `start`, then the inner attack's placebo."""
        return self._from_start(view, self.attack.placebo)

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """Honest weights before `start`, then those that the inner attack hands over."""
        return self.attack.hand_over(view) if view.round >= self.start else None

    def _from_start(self, view: AttackerView, submit: Callable[[AttackerView], Sequence[Poison]]) -> Sequence[Poison]:
        return submit(view) if view.round >= self.start else [None] * len(view.slots)
