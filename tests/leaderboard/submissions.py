"""Defenses that `thiefbench leaderboard check` is to find fault with, each with one fault."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict

COUNTER = itertools.count()


class Fine(Defense):
    """Accepts everything, and remembers how many rounds it saw."""

    name: ClassVar[str] = "fine"

    def __init__(self) -> None:
        self.rounds = 0

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [ACCEPT] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Positional(Fine):
    """Judges by place."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("zero") if place % 5 == 0 else ACCEPT for place, _ in enumerate(view.completions)]


class DrawsAndCounts(Positional):
    """Judges by place, after a draw that it does not use."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        view.rng.random()
        return super().inspect(view)


class DrawsBySlot(Fine):
    """Rejects a few that it draws, whatever the order of the pool."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        slots = sorted((offered.group, offered.index) for offered in view.completions)
        drawn = set(view.rng.sample(slots, len(slots) // 8))
        return [Verdict("zero") if (o.group, o.index) in drawn else ACCEPT for o in view.completions]


class Counting(Fine):
    """Counts over all its instances."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        number = float(next(COUNTER))
        return [Verdict("accept", number)] * len(view.completions)


class Hashing(Fine):
    """Judges by Python's own hash of a text."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(hash(offered.text) % 1000)) for offered in view.completions]


class Clock(Fine):
    """Judges by the time."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", time.perf_counter())] * len(view.completions)


class Letters(Fine):
    """Judges by the letters of a pseudonym."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(len(o.sender)) + ord(o.sender[-1])) for o in view.completions]


class Forgets(Fine):
    """Does not take back its state."""

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Hides(Fine):
    """Its verdicts depend on rounds that its state does not tell of."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.rounds += 1
        return [Verdict("accept", float(self.rounds))] * len(view.completions)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Divides(Fine):
    """Finds no mean of an empty pool."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        mean = sum(offered.length for offered in view.completions) / len(view.completions)
        return [Verdict("accept", offered.length / (1 + mean)) for offered in view.completions]


class Encodes(Fine):
    """Trips over a lone surrogate."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("accept", float(len(offered.text.encode()))) for offered in view.completions]


class Half(Fine):
    """Rejects a part of everything."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("drop") if sum(offered.ids) % 4 == 0 else ACCEPT for offered in view.completions]


class Lazy(Fine):
    """Gives one verdict."""

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT]
