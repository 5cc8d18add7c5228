"""Whether a plugin's constants and methods are what its base class says: otherwise that would be met much later."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Collection, Set
from dataclasses import fields
from functools import cache
from inspect import isroutine
from typing import Final, get_args, get_type_hints

from thiefbench.attacks.base import Attack, ThreatModel
from thiefbench.attacks.exchange.base import WeightAttack
from thiefbench.attacks.stages.base import StageAttack
from thiefbench.defenses.aggregation.base import AVERAGING, Aggregation
from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import Defense, JudgeSpec, Requirement
from thiefbench.defenses.rule_rewards import RULE_REWARDS
from thiefbench.defenses.stages.base import PIPELINE, StageCheck
from thiefbench.error_messages import nearest
from thiefbench.tasks.base import Task, Topology
from thiefbench.wording import one_of

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
_CALLED: Final = (Attack, WeightAttack, StageAttack, Defense, Aggregation, StageCheck, Task)
"""The classes whose methods the benchmark calls."""
_REQUIREMENTS: Final = (*get_args(Requirement), AVERAGING, PIPELINE, ANSWER_KEYS, RULE_REWARDS)
"""Everything that a defense may require."""


def wrong_attribute(made: object) -> str:
    """What is wrong with the constants and methods of a plugin, in a clause; empty if nothing is.

    Args:
        made: an instance of any class; of other classes nothing is known, so nothing is wrong.
    """
    kind = type(made).__name__
    for base, constants in _WANTED.items():
        for name, (wanted, called) in constants.items() if isinstance(made, base) else ():
            value = getattr(made, name, _MISSING)
            if isinstance(value, wanted):
                if isinstance(value, ThreatModel) and (wrong := wrong_grant(value)):
                    return f"in the {name} of {kind}, {wrong}"
                continue
            if value is _MISSING:
                return f"{kind} has no {name}; set {name} in the class to {called}"
            if isroutine(value):
                return f"the method {name} of {kind} takes the place of {called}; give the method another name"
            return f"{name} of {kind} must be {called}, not {value!r:.100}"
    if isinstance(made, Defense) and (wrong := _unknown_name(f"requires of {kind}", made.requires, _REQUIREMENTS)):
        return wrong
    constructor: Callable[..., object] = type(made)
    return _wrong_methods(constructor)


@cache  # plugins are made thousands of times, each of a few classes
def _wrong_methods(kind: Callable[..., object]) -> str:
    """What is wrong with the methods of a class, in a clause; empty if nothing is."""
    assert isinstance(kind, type)
    bases = [base for base in _CALLED if issubclass(kind, base)]
    return next(filter(None, (_wrong_method(kind, base) for base in bases)), "")


def _wrong_method(kind: type, base: type) -> str:
    """The first method of `base` that cannot be called on `kind` as its base class says, in a clause."""
    for name, meant in vars(base).items():
        own = inspect.getattr_static(kind, name)
        if name.startswith("_") or own is meant or not inspect.isfunction(meant):
            continue
        if not callable(getattr(kind, name, None)):
            return f"{name} of {kind.__name__} must be a method, as in {base.__name__}, not {own!r:.100}"
        arguments = list(inspect.signature(meant).parameters.values())[1:]
        try:
            taken = inspect.signature(own.__func__ if isinstance(own, classmethod | staticmethod) else own)
        except (TypeError, ValueError):  # of an object that tells nothing of its parameters
            continue
        first = [] if isinstance(own, staticmethod) else [None]
        every = [each for each in arguments if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = {each.name: None for each in arguments if each.kind is each.KEYWORD_ONLY}
        needed = [each for each in every if each.default is each.empty]
        try:
            taken.bind(*first, *every, **named)
            taken.bind(*first, *needed)
        except TypeError:
            takes = list(taken.parameters.values())[len(first) :]
            return (
                f"the method {name} of {kind.__name__} is called with {_named(arguments)}, as in {base.__name__}, and "
                f"takes {_named(takes)}"
            )
    return ""


def _named(parameters: list[inspect.Parameter]) -> str:
    """Parameters as in a definition, without their types and defaults."""
    empty = inspect.Parameter.empty
    return str(inspect.Signature([each.replace(annotation=empty, default=empty) for each in parameters]))


@cache
def _contexts() -> tuple[str, ...]:
    """What the context of a threat model may be."""
    return get_args(get_type_hints(ThreatModel)["context"])


def wrong_grant(threat: ThreatModel) -> str:
    """What is wrong with the fields of a threat model, in a clause that names the first one; empty if nothing is.

    Args:
        threat: a stranger's, too; what its fields hold is shown shortened.
    """
    kinds, topologies = _contexts(), get_args(Topology)
    for name in (each.name for each in fields(ThreatModel)):
        value = getattr(threat, name)
        if name == "context":
            fits, wanted = value in kinds, one_of([repr(each) for each in kinds])
        elif name == "topologies":
            fits = isinstance(value, Set) and bool(value) and value <= set(topologies)
            wanted = f"a set of one or both of {topologies[0]!r} and {topologies[1]!r}"
        elif name == "queries":
            fits, wanted = type(value) is int and value >= 0, "a whole number of at least 0"
        else:
            fits, wanted = type(value) is bool, "True or False"
        if not fits:
            return f"{name} must be {wanted}, not {reprlib.repr(value)}"
    return ""


def _unknown_name(constant: str, names: Collection[object], known: Collection[str]) -> str:
    """The first name in a constant that nothing is called by, in a clause; empty if all are known."""
    unknown = next((name for name in sorted(names, key=repr) if name not in known), None)
    if unknown is None:
        return ""
    return f"{constant} has {unknown!r:.100}; {nearest(str(unknown), known)}known: {', '.join(known)}"
