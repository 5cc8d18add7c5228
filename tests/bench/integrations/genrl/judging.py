"""Small defenses for these tests."""

from __future__ import annotations

from collections.abc import Sequence

from thiefbench.defenses.base import DefenderView, Defense, Verdict


class Thieves(Defense):
    """Drops what mentions a thief, and remembers what it was shown."""

    name = "thieves"

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        return [Verdict("drop") if "thief" in each.text else Verdict() for each in view.completions]


class Breaks(Defense):
    """Fails."""

    name = "breaks"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        raise RuntimeError("it does not know")


class Weighs(Defense):
    """Weighs single tokens."""

    name = "weighs"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict(token_weights=(0.5,) * each.length) for each in view.completions]
