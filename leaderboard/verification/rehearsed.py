"""Does what an attack is said to have chosen in a rehearsal follow from the results of that rehearsal?

Only running the rehearsal again shows whether these results are true. But other members than those that fit, or a
choice that the results do not give, are told from the record alone. What they leave open is how near the highest
outcome counts as equal to it: the standard error depends on how many completions were judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from thiefbench import registry
from thiefbench.attacks.auto import Auto
from thiefbench.attacks.base import Attack
from thiefbench.engine.rehearsal import Rounds, SwarmRehearsal
from thiefbench.engine.spec import SwarmSpec
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import CHOSEN

_MEMBER: Final = re.compile(r"([a-z][a-z -]*) (-?\d{1,15}\.\d{3}) \((\d{1,15}\.\d{3}) taught\)")
_ROUNDING: Final = 0.001
"""Two numbers with three decimals that differ by more than this differ before they are rounded, too."""


class _Tried(NamedTuple):
    outcome: float
    taught: float


def wrong_choice(spec: CellSpec, payload: Mapping[str, str]) -> str:
    """Why the member that `auto` played is not the one that its rehearsal gives, in a clause; empty if it may be.

    Args:
        spec: of the cell; a cell of another attack is not looked at.
        payload: what its attack says of itself, with the member and the rehearsal's results.
    """
    attack = registry.make("attack", spec.attack)
    if not isinstance(attack, Auto):
        return ""
    member, said = payload.get(CHOSEN, ""), payload.get("rehearsal", "")
    found = [_MEMBER.fullmatch(each) for each in said.split(", ")]
    tried = {each[1]: _Tried(float(each[2]), float(each[3])) for each in found if each}
    if len(tried) < len(found) or tuple(tried) != _possible(spec.attack, spec.task, spec.swarm):
        return "its rehearsal is not that of its members, each with an outcome and what it taught"
    if member not in tried:
        return f"its rehearsal did not try {member!r:.60}"
    own = tried[member]
    for name, other in tried.items():
        # Where the chosen one's outcome is within two standard errors of the highest, that of the other is too.
        if other.outcome > own.outcome + _ROUNDING and other.taught > own.taught + _ROUNDING:
            return f"{name} had a higher outcome than {member} and taught more"
    return ""


@cache
def _possible(attack: str, task: str, swarm: SwarmSpec) -> tuple[str, ...]:
    """The members of `auto` that a rehearsal tries in a swarm, in order (as in `Auto.prepared`).

    All cells of an attack have the same ones, whatever their seeds, and drawing every member takes seconds.
    """
    left_out = "naive" if swarm.topology == "vertical" else "gibberish"
    rehearsal = SwarmRehearsal(swarm, registry.make("task", task), _plays_nothing)
    members = registry.make("attack", attack).members()
    return tuple(name for name, each in members.items() if name != left_out and rehearsal.possible(each))


def _plays_nothing(attack: Attack) -> Rounds:
    raise NotImplementedError("only what fits is asked")
