"""Defenses that are listed in tests of attacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict


class Deaf(Defense):
    """Knows the suite's own attack and no other: it drops what has no digit."""

    name: ClassVar[str] = "deaf"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT for _ in view.completions]


class Fragile(Deaf):
    """Fails at one word."""

    name: ClassVar[str] = "fragile"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        if any("crash" in offered.text for offered in view.completions):
            raise ValueError("a word that it does not know")
        return super().inspect(view)
