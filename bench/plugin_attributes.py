"""Whether a plugin's constants are what its base class says: a method of the same name would be met much later."""

from __future__ import annotations

from collections.abc import Set
from inspect import isroutine
from typing import Any

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.defenses.base import Defense, JudgeSpec
from thiefbench.tasks.base import Task

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
    return ""
