"""`flood`: one attacker offers many times what it owes, where nodes draw from all that is offered."""

from __future__ import annotations

from thiefbench.attacks.base import Attack
from thiefbench.attacks.wrapper import AttackWrapper


class Flood(AttackWrapper):
    """Offer so many groups that uniform sampling takes most of them from the attacker.

    In a swarm that shares by count (arXiv:2509.08721, `SwarmSpec.sharing`) a node takes J of the others' groups, every
    one with the same chance: attackers who are a share s of these others and offer `copies` times as many groups have
    the share copies * s / (1 + (copies - 1) * s) of what is drawn from.

    Args:
        attack: what the groups carry.
        copies: groups offered for each that is owed.
    """

    name = "flood"

    def __init__(self, attack: Attack | str = "text", copies: int = 4) -> None:
        super().__init__(attack)
        if copies < 2:
            raise ValueError(f"flood: copies must be at least 2, got {copies}")
        self._copies = copies

    @property
    def copies(self) -> int:  # type: ignore[override]  # see AttackWrapper
        """As constructed."""
        return self._copies
