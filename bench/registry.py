"""One registry for attacks, defenses, tasks and suites: entry points for names, files for one's own.

A *spec string* is the same everywhere: ``name``, ``name(key=value, ...)`` or ``path/to/file.py:Class(key=value)``.
Where a constructor's parameter is annotated `Attack`, its value is a spec string too: ``varied(attack="text", ...)``.
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
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_type_hints

from thiefbench.attacks.base import Attack

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


def entry(kind: Kind, name: str) -> EntryPoint:
    """What is declared under a name; nothing of it is loaded.

    Raises:
        SpecStringError: there is no such name; the nearest are offered.
    """
    entries = _entries(kind)
    if name not in entries:
        near = difflib.get_close_matches(name, entries, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise SpecStringError(f"there is no {kind} named {name!r}; {hint}known: {', '.join(sorted(entries))}")
    return entries[name]


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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecStringError(f"malformed {kind} spec: {wanted}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise SpecStringError(f"malformed {kind} spec: {wanted}")
    given = [str(keyword.arg) for keyword in call.keywords if keyword.arg is not None]
    if call.args or len(given) < len(call.keywords) or len(set(given)) < len(given):
        raise SpecStringError(f"malformed {kind} spec: arguments are written key=value, each once, in {spec!r}")
    try:
        values = [ast.literal_eval(keyword.value) for keyword in call.keywords]
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise SpecStringError(f"malformed {kind} spec: values are literals (text in quotes), in {spec!r}") from error
    return ParsedSpec(head.strip(), dict(zip(given, values, strict=True)))


def find(kind: Kind, target: str) -> Any:
    """The class (or suite reference) that a parsed target names.

    Raises:
        SpecStringError: there is no such name (the nearest are offered), file or class.
    """
    return _from_file(kind, target) if ":" in target else entry(kind, target).load()


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
    inner = {name: make("attack", spec) for name, spec in _inner_attacks(kind, parsed, made).items()}
    try:
        return made(**parsed.arguments | inner)
    except (TypeError, ValueError) as error:
        raise SpecStringError(f"{kind} {spec}: {error}") from error


def canonical(kind: Kind, spec: str) -> str:
    """The spec string with sorted arguments and without those that equal the constructor's defaults."""
    parsed = parse(kind, spec)
    made = find(kind, parsed.target)
    defaults = {name: p.default for name, p in inspect.signature(made).parameters.items()}
    inner = {name: canonical("attack", within) for name, within in _inner_attacks(kind, parsed, made).items()}
    given = {name: inner.get(name, value) for name, value in parsed.arguments.items()}
    kept = {name: value for name, value in given.items() if name not in defaults or defaults[name] != value}
    return str(ParsedSpec(parsed.target, kept))


def source_hash(kind: Kind, spec: str) -> str:
    """SHA-256 over what defines the named class.

    A user's file counts whole. A packaged class counts with the modules of its own package that it imports, and with
    the data files beside it, so that a change in an unrelated plugin leaves its results valid. What defines the attacks
    it is built around counts too.
    """
    parsed = parse(kind, spec)
    defined = find(kind, parsed.target)
    module = sys.modules[defined.__module__]
    digest = hashlib.sha256()
    for path in sorted(_sources(module)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for name, inner in sorted(_inner_attacks(kind, parsed, defined).items()):
        digest.update(f"\0{name}={source_hash('attack', inner)}".encode())
    return digest.hexdigest()


def summary(kind: Kind, name: str) -> str:
    """The first line of what a name's docstring says, read from its source without importing it."""
    declared = entry(kind, name)
    located = importlib.util.find_spec(declared.module)
    if located is None or located.origin is None:
        return ""
    for node in ast.parse(Path(located.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == declared.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
    return ""


def _inner_attacks(kind: Kind, parsed: ParsedSpec, made: Any) -> dict[str, str]:
    """The spec strings, given or by default, of the parameters that are attacks themselves.

    Raises:
        SpecStringError: such an argument is no text.
    """
    if not inspect.isclass(made):
        return {}
    try:
        hints = get_type_hints(made.__init__)
    except (NameError, TypeError):  # a user's annotation that only a type checker can resolve names no attack
        return {}
    parameters = inspect.signature(made).parameters
    names = [name for name, hint in hints.items() if name in parameters and Attack in (hint, *get_args(hint))]
    inner = {name: parsed.arguments.get(name, parameters[name].default) for name in names}
    for name, spec in inner.items():
        if name in parsed.arguments and not isinstance(spec, str):
            raise SpecStringError(f"{kind} {parsed.target}: {name} is a spec string such as 'text', not {spec!r}")
    return {name: spec for name, spec in inner.items() if isinstance(spec, str)}


@cache
def _entries(kind: Kind) -> dict[str, EntryPoint]:
    return {declared.name: declared for declared in entry_points(group=f"thiefbench.{kind}s")}


def _from_file(kind: Kind, target: str) -> Any:
    file, _, name = target.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise SpecStringError(f"{kind} {target}: there is no file {file}")
    module = _module_of(path.resolve())
    if not inspect.isclass(getattr(module, name, None)):
        classes = [
            n for n, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise SpecStringError(f"{kind} {target}: {file} has no class {name}; it has {', '.join(classes) or 'none'}")
    return getattr(module, name)


@cache
def _module_of(path: Path) -> ModuleType:
    marked = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two files may share a name
    located = importlib.util.spec_from_file_location(f"thiefbench_user_{marked}_{path.stem}", path)
    assert located is not None
    assert located.loader is not None
    module = importlib.util.module_from_spec(located)
    sys.modules[module.__name__] = module  # dataclasses and pickling look their module up there
    try:
        located.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecStringError(f"{path}: {type(error).__name__} while loading it: {error}") from error
    return module


def _sources(module: ModuleType) -> set[Path]:
    """The module's file, the modules of its own package that it imports, and the data files beside it."""
    package = module.__package__ or ""
    if not package:
        return {Path(str(module.__file__))}
    # Of this package only the module's own room counts: the contracts below it are covered by the engine's revision.
    root = package if package.startswith("thiefbench.") else package.partition(".")[0]
    found: set[Path] = set()
    waiting = [module.__name__]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or not f"{name}.".startswith(f"{root}."):
            continue
        seen.add(name)
        located = _located(name)
        if located is None or located.origin is None or not located.origin.endswith(".py"):
            continue
        found.add(Path(located.origin))
        own = name if located.submodule_search_locations is not None else name.rpartition(".")[0]
        waiting += _imported(Path(located.origin), own)
    folder = Path(str(module.__file__)).parent
    return found | {path for path in folder.iterdir() if path.suffix in {".txt", ".json", ".yaml"}}


def _located(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _imported(path: Path, package: str) -> list[str]:
    """Dotted names that a file may import: modules, and names in them that may be modules too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if node.level else relative
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names
