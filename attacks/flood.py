"""`flood`: an attacker offers many more groups than it owes, in a swarm whose nodes draw from all offers."""

from __future__ import annotations

from thiefbench.attacks.base import Attack
from thiefbench.attacks.wrapper import AttackWrapper


class Flood(AttackWrapper):
    """Offer so many groups that nodes which sample uniformly take most groups from the attacker.

    In a swarm that shares by count (arXiv:2509.08721, `SwarmSpec.sharing`) a node takes J of the other nodes' groups,
    each with the same chance. If attackers are a share s of those nodes and offer `copies` times as many groups a share
    copies * s / (1 + (copies - 1) * s) of the offered groups is theirs.

    Args:
        attack: poisons the groups.
        copies: how many groups are offered for each one that is owed.
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
