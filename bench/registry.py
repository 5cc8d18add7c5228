"""One registry for attacks, defenses, tasks and suites: entry points for names, files for one's own.

A *spec string* is the same everywhere: ``name``, ``name(key=value, ...)`` or ``path/to/file.py:Class(key=value)``.
Listing names loads nothing.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Kind = Literal["attack", "defense", "task", "suite"]


class SpecStringError(ValueError):
    """A spec string names nothing or is malformed. One sentence for the user."""


@dataclass(frozen=True)
class ParsedSpec:
    """A spec string taken apart: what it names (an entry point's name or ``file.py:Class``) and its arguments."""

    target: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"{self.target}({given})" if given else self.target


def names(kind: Kind) -> list[str]:
    """Every declared name of a kind, sorted."""
    return sorted(_entries(kind))


def parse(kind: Kind, spec: str) -> ParsedSpec:
    """Take a spec string apart.

    Raises:
        SpecStringError: it is malformed.
    """
    text = spec.strip()
    head, bracket, rest = text.partition("(")
    wanted = f"write a name, name(key=value, ...) or path/to/file.py:Class(key=value), not {spec!r}"
    if not head.strip() or (bracket and not rest.rstrip().endswith(")")):
        raise SpecStringError(f"malformed {kind} spec: {wanted}")
    if not bracket:
        return ParsedSpec(head.strip(), {})
    try:
        call = ast.parse(f"_({rest}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise SpecStringError(f"malformed {kind} spec: arguments are written key=value, in {spec!r}")
        return ParsedSpec(head.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
    except (SyntaxError, AssertionError) as error:
        raise SpecStringError(f"malformed {kind} spec: {wanted}") from error
    except ValueError as error:
        if isinstance(error, SpecStringError):
            raise
        raise SpecStringError(f"malformed {kind} spec: values are literals (text in quotes), in {spec!r}") from error


def find(kind: Kind, target: str) -> Any:
    """The class (or suite reference) that a parsed target names.

    Raises:
        SpecStringError: there is no such name (the nearest are offered), file or class.
    """
    if ":" in target:
        return _from_file(kind, target)
    entries = _entries(kind)
    if target not in entries:
        near = difflib.get_close_matches(target, entries, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise SpecStringError(f"there is no {kind} named {target!r}; {hint}known: {', '.join(sorted(entries))}")
    return entries[target].load()


def make(kind: Kind, spec: str) -> Any:
    """The object that a spec string describes.

    Raises:
        SpecStringError: see `parse` and `find`, or the arguments are not the constructor's, or it refuses their values.
    """
    parsed = parse(kind, spec)
    made = find(kind, parsed.target)
    try:
        inspect.signature(made).bind(**parsed.arguments)
    except TypeError as error:
        allowed = ", ".join(inspect.signature(made).parameters) or "none"
        raise SpecStringError(f"{kind} {parsed.target}: {error}; its arguments: {allowed}") from error
    try:
        return made(**parsed.arguments)
    except (TypeError, ValueError) as error:
        raise SpecStringError(f"{kind} {spec}: {error}") from error


def canonical(kind: Kind, spec: str) -> str:
    """The spec string with sorted arguments and without those that equal the constructor's defaults."""
    parsed = parse(kind, spec)
    defaults = {name: p.default for name, p in inspect.signature(find(kind, parsed.target)).parameters.items()}
    kept = {name: value for name, value in parsed.arguments.items() if name not in defaults or defaults[name] != value}
    return str(ParsedSpec(parsed.target, kept))


def source_hash(kind: Kind, spec: str) -> str:
    """SHA-256 over what defines the named class.

    A user's file counts whole. A packaged class counts with the modules of its own package that it imports, and with
    the data files beside it, so that a change in an unrelated plugin leaves its results valid.
    """
    defined = find(kind, parse(kind, spec).target)
    module = sys.modules[defined.__module__]
    digest = hashlib.sha256()
    for path in sorted(_sources(module)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def summary(kind: Kind, name: str) -> str:
    """The first line of what a name's docstring says, read from its source without importing it."""
    entry = _entries(kind)[name]
    located = importlib.util.find_spec(entry.module)
    if located is None or located.origin is None:
        return ""
    for node in ast.parse(Path(located.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == entry.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
    return ""


@cache
def _entries(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"thiefbench.{kind}s")}


def _from_file(kind: Kind, target: str) -> Any:
    file, _, name = target.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise SpecStringError(f"{kind} {target}: there is no file {file}")
    module = _module_of(path.resolve())
    if not hasattr(module, name):
        classes = [
            n for n, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise SpecStringError(f"{kind} {target}: {file} has no class {name}; it has {', '.join(classes) or 'none'}")
    return getattr(module, name)


@cache
def _module_of(path: Path) -> ModuleType:
    located = importlib.util.spec_from_file_location(f"thiefbench_user_{path.stem}", path)
    assert located is not None
    assert located.loader is not None
    module = importlib.util.module_from_spec(located)
    sys.modules[module.__name__] = module  # dataclasses and pickling look their module up there
    try:
        located.loader.exec_module(module)
    except Exception as error:
        raise SpecStringError(f"{path}: {type(error).__name__} while loading it: {error}") from error
    return module


def _sources(module: ModuleType) -> set[Path]:
    """The module's file, the modules of its own package folder that it imports, and the data files beside it."""
    found: set[Path] = set()
    waiting = [Path(str(module.__file__))]
    package = module.__package__
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        if not package:
            continue
        imports = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        siblings = (
            node.module.removeprefix(f"{package}.").replace(".", "/")
            for node in imports
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
        )
        waiting += [path.parent / f"{name}.py" for name in siblings]
    if package:
        folder = Path(str(module.__file__)).parent
        found |= {path for path in folder.iterdir() if path.suffix in {".txt", ".json", ".yaml"}}
    return found
