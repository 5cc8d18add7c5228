"""Whether a plugin's constants are what its base class says: a method of the same name would be met much later."""

from __future__ import annotations

from collections.abc import Collection, Set
from inspect import isroutine
from typing import Any, Final, get_args

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.defenses.aggregation.base import AVERAGING
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense, JudgeSpec, Requirement
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.defenses.stages.base import PIPELINE
from thiefbench.error_messages import nearest
from thiefbench.tasks.base import Task, Topology

_MISSING = object()
_WANTED: dict[type, dict[str, tuple[type | tuple[type, ...], str]]] = {
    Attack: {"name": (str, "a string"), "threat": (ThreatModel, "a ThreatModel")},
    Defense: {
        "name": (str, "a string"),
        "requires": (Set, 'a set of strings, as in frozenset({"homogeneous"})'),
        "judge": ((JudgeSpec, type(None)), "a JudgeSpec or None"),
    },
    Task: {"name": (str, "a string"), "splits": (tuple, "a tuple"), "domains": (tuple, "a tuple")},
}
"""By base class, its constants: their type, and what a message calls it."""
_REQUIREMENTS: Final = (*get_args(Requirement), AVERAGING, PIPELINE, ANSWER_KEYS, RULE_REWARDS)
"""Everything that a defense may require."""


def wrong_attribute(made: Any) -> str:
    """What is wrong with the constants of an attack, a defense or a task, in a clause; empty if nothing is.

    Args:
        made: an instance of any class; of other classes nothing is known, so nothing is wrong.
    """
    kind = type(made).__name__
    for base, constants in _WANTED.items():
        for name, (wanted, called) in constants.items() if isinstance(made, base) else ():
            value = getattr(made, name, _MISSING)
            if isinstance(value, wanted):
                continue
            if value is _MISSING:
                return f"{kind} has no {name}; set {name} in the class to {called}"
            if isroutine(value):
                return f"the method {name} of {kind} takes the place of {called}; give the method another name"
            return f"{name} of {kind} must be {called}, not {value!r:.100}"
    if isinstance(made, Defense):
        return _unknown_name(f"requires of {kind}", made.requires, _REQUIREMENTS)
    if isinstance(made, Attack):
        return _unknown_name(f"threat.topologies of {kind}", made.threat.topologies, get_args(Topology))
    return ""


def _unknown_name(constant: str, names: Collection[object], known: Collection[str]) -> str:
    """The first name in a constant that nothing is called by, in a clause; empty if all are known."""
    unknown = next((name for name in sorted(names, key=repr) if name not in known), None)
    if unknown is None:
        return ""
    return f"{constant} has {unknown!r:.100}; {nearest(str(unknown), known)}known: {', '.join(known)}"
