"""Attacks and defenses that the tests of trainers name as `path/to/parts.py:Class(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict
from thiefbench.tasks.base import Ask, Completion, Item


class Silent(Attack):
    """Submits nothing at all."""

    name: ClassVar[str] = "silent"
    threat: ClassVar[ThreatModel] = ThreatModel("out-of-context")

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [() for _ in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return float(not completion.ids)


class Grinds(Silent):
    """Wants to know the seeds of its slots."""

    name: ClassVar[str] = "grinds"
    threat: ClassVar[ThreatModel] = ThreatModel("out-of-context", beacon=True)


class Remembers(Defense):
    """Zeroes a third of what it sees, drops another, and remembers what it was shown."""

    name: ClassVar[str] = "remembers"

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.seeds: set[int | None] = set()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds.append((view.round, len(view.history)))
        assert all(view.policy.in_support([offered])[0].size == offered.length for offered in view.completions[:2])
        self.seeds |= {offered.seed for offered in view.completions}
        given = (ACCEPT, Verdict("zero"), Verdict("drop"))
        return [given[offered.index % 3] for offered in view.completions]


class Weighs(Defense):
    """Accepts all, at half the weight."""

    name: ClassVar[str] = "weighs"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict(token_weights=(0.5,) * offered.length) for offered in view.completions]
