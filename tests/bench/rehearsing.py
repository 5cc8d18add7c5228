"""An attack that rehearses, apart from the other plugins: who isolates a defense hides the attacks from it."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.attacks.auto import Auto
from thiefbench.attacks.base import Attack
from thiefbench.attacks.varied import Varied


class Rehearses(Auto):
    """`auto` with two members."""

    name: ClassVar[str] = "rehearses"

    def __init__(self, attack: Attack | str = "text(phrase='All hail to the thief', position='start')") -> None:
        super().__init__(attack)

    def members(self) -> dict[str, Attack]:
        return {"half": Varied(self.attack, share=0.5), "naive": self.attack}
