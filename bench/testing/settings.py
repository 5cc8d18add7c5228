"""From the arguments of the marker to a suite; arguments that are left out are as in the released suite `smoke`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from thiefbench.suite.scenario import Suite
from thiefbench.suite.suite_yaml import load_suite, make_suite, merged
from thiefbench.testing.bounds import MisuseError
from thiefbench.zoo.models import misfit

BASE = "smoke"
ARGUMENTS = (
    "attack", "topology", "rounds", "seeds", "task", "model", "swarm", "evaluation", "placebo", "suite",
)  # fmt: skip
_WHOSE = "the marker thiefbench"


def suite_of(arguments: Mapping[str, Any]) -> Suite:
    """The suite that a test's marker describes, with `none` as its only defense.

    Args:
        arguments: of the marker. `attack`, `task` and `model` are spec strings and names; `topology` a word; `rounds` a
            number; `seeds` how many, or which; `swarm` and `evaluation` mappings with some of a suite file's fields;
            `placebo` whether harm is measured against the placebo; `suite` another suite to start from.

    Raises:
        MisuseError: there is no such argument, or its value is not what it should be.
        SuiteError, registry.SpecStringError: a value names nothing or does not fit.
    """
    _check_names(arguments)
    base = load_suite(_text(arguments, "suite", BASE))
    if base.parts:
        raise MisuseError(
            f"{_WHOSE}: the suite {base.name} has parts, and a test is about one attack in one swarm; run it whole "
            f"with pytest --thiefbench-suite {arguments['suite']}"
        )
    fields = asdict(base) | {"attacks": [_text(arguments, "attack", base.attacks[0])], "defenses": ["none"]}
    fields |= {"replayed": [], "recorded": [], "utility": False}
    for name in ("task", "model", "rounds", "placebo"):
        if name in arguments:
            fields[name] = arguments[name]
    for name in ("swarm", "evaluation"):
        fields[name] = merged(fields[name], _mapping(arguments, name))
    if "topology" in arguments:
        fields["swarm"]["topology"] = arguments["topology"]
    if "seeds" in arguments:
        fields["seeds"] = _seeds(arguments["seeds"])
    fields["modified"] = [f"{name} {value}" for name, value in sorted(arguments.items()) if name != "suite"]
    if "task" in arguments and "model" not in arguments:
        _check_model(fields["task"], fields["model"])
    suite = make_suite(fields, _WHOSE)
    suite.cells("cpu", "float32", 1)  # raises where a name does not exist
    return replace(suite, modified=(*base.modified, *suite.modified))


def _check_names(arguments: Mapping[str, Any]) -> None:
    unknown = [name for name in arguments if name not in ARGUMENTS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], ARGUMENTS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise MisuseError(f"{_WHOSE} has no argument {unknown[0]}; {hint}known: {', '.join(ARGUMENTS)}")


def _check_model(task: Any, model: str) -> None:
    """Refuse to keep a built-in model for a declared task that it does not answer."""
    if isinstance(task, str) and (wrong := misfit(task, [model])):
        fitting = wrong.fitting or "a directory or a name on the hub"
        raise MisuseError(
            f"{_WHOSE}: task={wrong.task!r}: the model {model} answers {wrong.answers} alone; add model={fitting!r}"
        )


def _text(arguments: Mapping[str, Any], name: str, default: str) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise MisuseError(f"{_WHOSE}: {name} is one string, not {value!r}; mark one test for each, or parametrize it")
    return value


def _mapping(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = arguments.get(name, {})
    if not isinstance(value, Mapping):
        raise MisuseError(f"{_WHOSE}: {name} is a mapping of fields as in a suite file, such as {{...}}, not {value!r}")
    return value


def _seeds(value: Any) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return list(range(value))
    several = list(value) if isinstance(value, (list, tuple, range)) else []
    if not several or any(isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 for seed in several):
        raise MisuseError(f"{_WHOSE}: seeds is how many, as in seeds=5, or which, as in seeds=[0, 3], not {value!r}")
    return list(dict.fromkeys(several))
