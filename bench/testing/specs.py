"""The spec string of a defense that a test passes as an object: cells are named, run and resumed by spec strings."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from thiefbench import registry
from thiefbench.defenses.base import Defense
from thiefbench.defenses.composed import Composed
from thiefbench.testing.bounds import MisuseError

_INSTEAD = "or pass a spec string, as in defense='path/to/file.py:Class(key=value)'"


def spec_of(defense: object) -> str:
    """The canonical spec string of a defense.

    Args:
        defense: a spec string; a `Defense` class, made without arguments; or an instance, whose constructor's arguments
            are read from its attributes of the same names.

    Raises:
        MisuseError: it is something else, its class cannot be found from elsewhere, or an argument cannot be read back.
        registry.SpecStringError: a spec string is malformed or names nothing.
    """
    if isinstance(defense, str):
        spec = defense
        registry.make("defense", spec)
    elif inspect.isclass(defense) and issubclass(defense, Defense):
        spec = _target(defense)
        registry.make("defense", spec)
    elif isinstance(defense, Composed):
        spec = "+".join(spec_of(part) for part in defense.parts)
    elif isinstance(defense, Defense):
        spec = _instance(defense)
    else:
        raise MisuseError(
            f"{defense!r} is not a defense; pass an instance or a subclass of thiefbench.defenses.base.Defense, "
            f"{_INSTEAD}"
        )
    return registry.canonical("defense", spec)


def _instance(defense: Defense) -> str:
    defense_class = type(defense)
    arguments = {name: _argument(defense, name) for name in _parameters(defense_class)}
    spec = str(registry.ParsedSpec(_target(defense_class), arguments))
    again = registry.make("defense", spec)
    for name, value in arguments.items():
        restored = getattr(again, name, None)
        # A constructor without the annotation `Defense` would be given the spec string itself.
        lost = isinstance(getattr(defense, name), Defense) and not isinstance(restored, Defense)
        if lost or _plain(restored) != value:
            raise MisuseError(
                f"{defense_class.__name__} does not keep its argument {name} unchanged (made again with {value!r}, it "
                f"holds {restored!r}); write self.{name} = {name} in its constructor, {_INSTEAD}"
            )
    made, other, kept = _literals(again), _literals(registry.make("defense", spec)), _literals(defense)
    for name in kept:  # what differs between two that are fresh, such as a time, was changed by nobody
        if name in made and made[name] != kept[name] and other.get(name) == made[name]:
            raise MisuseError(
                f"{name} of this {defense_class.__name__} is {kept[name]!r}, and made again it is {made[name]!r}: what "
                f"was changed after the constructor is lost in trained swarms; make it an argument, {_INSTEAD}"
            )
    return spec


def _literals(defense: Defense) -> dict[str, Any]:
    """The attributes of an instance that are plain values, which can be compared."""
    found = {}
    for name, value in vars(defense).items():
        try:
            if ast.literal_eval(repr(value)) == value:
                found[name] = value
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return found


def _parameters(defense_class: type[Defense]) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(defense_class).parameters)
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MisuseError(
                f"the constructor of {defense_class.__name__} takes {parameter}, which cannot be read back from an "
                f"instance; name its arguments one by one, {_INSTEAD}"
            )
        assert name.isidentifier()
    return parameters


def _argument(defense: Defense, name: str) -> Any:
    class_name = type(defense).__name__
    if not hasattr(defense, name):
        raise MisuseError(
            f"{class_name} does not keep its argument {name}; write self.{name} = {name} in its constructor, {_INSTEAD}"
        )
    value = _plain(getattr(defense, name))
    try:
        literal = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        literal = None
    if literal != value or type(literal) is not type(value):
        raise MisuseError(
            f"the argument {name} of {class_name} is {value!r}, which a spec string cannot hold; give it a number, a "
            f"string, a list or another literal and build the rest inside, {_INSTEAD}"
        )
    return value


def _plain(value: object) -> object:
    """An argument that is a defense itself as the spec string that makes it."""
    return spec_of(value) if isinstance(value, Defense) else value


def _target(defense_class: type[Defense]) -> str:
    """What names a class: its entry point, its module where that can be imported anywhere, or its file."""
    target = f"{defense_class.__module__}:{defense_class.__qualname__}"
    for name in registry.names("defense"):
        if registry.entry("defense", name).value == target:
            return name
    module = sys.modules.get(defense_class.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or getattr(module, defense_class.__qualname__, None) is not defense_class:
        raise MisuseError(
            f"{defense_class.__qualname__} cannot be found by another process, as it is defined inside a function or "
            f"class; define it at the top level of a module, {_INSTEAD}"
        )
    path = Path(file).resolve()
    if _importable(module, path):
        return target
    inside = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if inside else path}:{defense_class.__qualname__}"


def _importable(module: ModuleType, path: Path) -> bool:
    """Whether a fresh process that searches the same places finds the module by its name.

    What pytest has loaded counts for nothing here, as it may load a test file under a name that only it knows.
    """
    top, *rest = module.__name__.split(".")
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)
    located = next((spec for spec in specs if spec is not None), None)
    if located is None:
        return False
    if not rest:
        return located.origin is not None and Path(located.origin).resolve() == path
    starts = [Path(place).joinpath(*rest) for place in located.submodule_search_locations or ()]
    return any(
        path in (start.with_name(f"{start.name}.py").resolve(), start.resolve() / "__init__.py") for start in starts
    )
