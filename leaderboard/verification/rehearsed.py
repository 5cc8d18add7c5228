"""Does what an attack is said to have chosen in a rehearsal follow from the results of that rehearsal?

Only running the rehearsal again shows whether these results are true. But a choice that they do not give, or a member
that was not tried, is told from the record alone. What they leave open is the standard error of the highest outcome,
which they do not name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from thiefbench import registry
from thiefbench.attacks.auto import COMPLETIONS, Auto
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import CHOSEN

_MEMBER: Final = re.compile(r"([a-z][a-z -]*) (-?\d{1,9}\.\d{3}) \((-?\d{1,9}\.\d{3}) taught\)")
_ROUNDING: Final = 0.001
"""Two numbers with three decimals that differ by more than this differ before they are rounded, too."""
_NEAR: Final = 2 * 0.5 / (COMPLETIONS - 1) ** 0.5
"""Two standard errors of a mean of so many outcomes between 0 and 1, at most (half of them 0, the others 1)."""


class _Tried(NamedTuple):
    outcome: float
    taught: float


def wrong_choice(spec: CellSpec, payload: Mapping[str, str]) -> str:
    """Why the member that `auto` played is not the one that its rehearsal gives, in a clause; empty if it may be.

    Args:
        spec: of an attacked cell; a cell of another attack is not looked at.
        payload: what its attack says of itself, with the member and the rehearsal's results.
    """
    attack = registry.make("attack", spec.attack)
    if not isinstance(attack, Auto):
        return ""
    member, said = payload.get(CHOSEN, ""), payload.get("rehearsal", "")
    found = [_MEMBER.fullmatch(each) for each in said.split(", ")]
    tried = {each[1]: _Tried(float(each[2]), float(each[3])) for each in found if each}
    left_out = "naive" if spec.swarm.topology == "vertical" else "gibberish"
    possible = [name for name in attack.members() if name != left_out]
    if len(tried) < len(found) or [name for name in possible if name in tried] != list(tried):
        return "its rehearsal is not one of its members, each with an outcome and what it taught"
    if member not in tried:
        return f"its rehearsal did not try {member!r:.60}"
    return _beaten(member, tried)


def _beaten(member: str, tried: Mapping[str, _Tried]) -> str:
    own = tried[member]
    highest = max(tried, key=lambda name: tried[name].outcome)
    shares = all(0 <= each.outcome <= 1 for each in tried.values())
    if shares and tried[highest].outcome - own.outcome > _NEAR + _ROUNDING:
        return f"{member} had the outcome {own.outcome:.3f}, and {highest} {tried[highest].outcome:.3f}"
    for name, other in tried.items():
        if other.outcome > own.outcome + _ROUNDING and other.taught > own.taught + _ROUNDING:
            return f"{name} had a higher outcome than {member} and taught more"
    return ""
