"""The variants that `varied` applies around any attack."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class AttackSpec:
    """Variants that `varied` applies around any attack.

    Attributes:
        oracle: the attacker has correct solutions. Otherwise it draws `candidates` answers per item from the policy,
            takes the majority's answer as the truth and poisons one of the completions that gave it.
        candidates: how many answers it draws, at least 1.
        gibberish: share of a group's malicious slots that hold gibberish with reward 0, so that poison has a positive
            advantage even if all other answers are right. In vertical swarms, half of the group maximises the total
            advantage of the poison. In [0, 1).
        share: share of the malicious slots of a group (gibberish left out) that carry poison, rounded up; the rest
            are honest samples. In (0, 1].
        start, stop: first and last round in which it poisons, from 1; None means until the end. In other rounds it is
            honest.
        split: colluders divide one goal; the attack must implement `parts`.
        identities: pseudonyms under which each malicious node appears, at least 1.

    Raises:
        ValueError: a value is out of range.
    """

    oracle: bool = True
    candidates: int = 8
    gibberish: float = 0.0
    share: float = 1.0
    start: int = 1
    stop: int | None = None
    split: bool = False
    identities: int = 1

    def __post_init__(self) -> None:
        for name in ("candidates", "start", "identities"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.gibberish < 1:
            raise ValueError(f"gibberish is a share of a group and must lie in [0, 1), got {self.gibberish}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        if self.stop is not None and self.stop < self.start:
            raise ValueError(f"stop is the last round that is poisoned and must not come before start, got {self.stop}")

    def around(self, attack: str) -> str:
        """The spec string of `varied` around `attack`; `attack` itself if nothing is varied."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        arguments = "".join(f", {name}={value!r}" for name, value in sorted(changed.items()))
        return f"varied(attack={attack!r}{arguments})" if arguments else attack

    def active(self, number: int) -> bool:
        """Whether it poisons in round `number`."""
        return self.start <= number <= (math.inf if self.stop is None else self.stop)
