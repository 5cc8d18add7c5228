"""The one spec string of a defense that a test hands over as an object: a cell is named, run and resumed by it."""

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
            f"{defense!r} is no defense; pass an instance or a subclass of thiefbench.defenses.base.Defense, {_INSTEAD}"
        )
    return registry.canonical("defense", spec)


def _instance(defense: Defense) -> str:
    made = type(defense)
    arguments = {name: _argument(defense, name, parameter) for name, parameter in _parameters(made).items()}
    spec = str(registry.ParsedSpec(_target(made), arguments))
    again = registry.make("defense", spec)
    for name, value in arguments.items():
        held = getattr(again, name, None)
        # A constructor without the annotation `Defense` would be given the spec string itself.
        lost = isinstance(getattr(defense, name), Defense) and not isinstance(held, Defense)
        if lost or _plain(held) != value:
            raise MisuseError(
                f"{made.__name__} does not keep its argument {name} as it was given (made again with {value!r}, it "
                f"holds {held!r}); write self.{name} = {name} in its constructor, {_INSTEAD}"
            )
    return spec


def _parameters(made: type[Defense]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(made).parameters)
    for name, parameter in found.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MisuseError(
                f"the constructor of {made.__name__} takes {parameter}, which cannot be read back from an instance; "
                f"name its arguments one by one, {_INSTEAD}"
            )
        assert name.isidentifier()
    return found


def _argument(defense: Defense, name: str, parameter: inspect.Parameter) -> Any:
    who = type(defense).__name__
    if not hasattr(defense, name):
        raise MisuseError(
            f"{who} does not keep its argument {name}; write self.{name} = {name} in its constructor, {_INSTEAD}"
        )
    value = _plain(getattr(defense, name))
    try:
        literal = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        literal = None
    if literal != value or type(literal) is not type(value):
        raise MisuseError(
            f"the argument {name} of {who} is {value!r}, which a spec string cannot hold; give it a number, a text, a "
            f"list or another literal and build the rest inside, {_INSTEAD}"
        )
    return value


def _plain(value: object) -> object:
    """An argument that is a defense itself as the spec string that makes it."""
    return spec_of(value) if isinstance(value, Defense) else value


def _target(made: type[Defense]) -> str:
    """What names a class: its entry point, its module where that can be imported anywhere, or its file."""
    where = f"{made.__module__}:{made.__qualname__}"
    for name in registry.names("defense"):
        if registry.entry("defense", name).value == where:
            return name
    module = sys.modules.get(made.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or getattr(module, made.__qualname__, None) is not made:
        raise MisuseError(
            f"{made.__qualname__} cannot be made again elsewhere, as it is defined inside something; define it at the "
            f"top of a module, {_INSTEAD}"
        )
    path = Path(file).resolve()
    if _importable(module, path):
        return where
    inside = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if inside else path}:{made.__qualname__}"


def _importable(module: ModuleType, path: Path) -> bool:
    """Whether a fresh process that searches the same places finds the module by its name.

    What pytest has loaded counts for nothing here, as it may load a test file under a name that only it knows.
    """
    top, *rest = module.__name__.split(".")
    found = (finder.find_spec(top, None) for finder in sys.meta_path)
    located = next((spec for spec in found if spec is not None), None)
    if located is None:
        return False
    if not rest:
        return located.origin is not None and Path(located.origin).resolve() == path
    starts = [Path(place).joinpath(*rest) for place in located.submodule_search_locations or ()]
    return any(
        path in (start.with_name(f"{start.name}.py").resolve(), start.resolve() / "__init__.py") for start in starts
    )
