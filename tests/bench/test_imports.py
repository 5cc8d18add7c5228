"""The floors of the house: imports run downward only, and never in a circle.

Every import counts, also one inside a function or for types alone: who reads a module has to know what it rests on.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "thiefbench"

FLOORS = (
    ("tasks",),
    ("attacks", "defenses"),
    ("",),  # bench: the engine, the suite and the front doors
    ("leaderboard",),
)
"""From the ground, by the first name after the package; rooms of one floor do not import each other."""


@cache
def imports() -> dict[str, frozenset[str]]:
    """Every module of the installed package with the modules of it that its text imports."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parent
    files = {_name(path.relative_to(root)): path for path in root.rglob("*.py")}
    return {name: frozenset(_imported(name, path, files)) for name, path in files.items()}


def _name(path: Path) -> str:
    parts = [PACKAGE, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the full name"
            base = node.module or ""
            # `from package import module` names the module; `from module import name` what is in it.
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        yield from (name for name in names if name in known and name != module)


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others (Tarjan, 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], index[other])
        if lowest[module] == index[module]:
            start = stack.index(module)
            group = stack[start:]
            del stack[start:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return groups


def floor(module: str) -> int:
    room = room_of(module)
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def room_of(module: str) -> str:
    """The top folder: "" for what lies in bench."""
    first = module.partition(".")[2].partition(".")[0]
    return first if any(first in rooms for rooms in FLOORS) else ""


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set[str](), "f": {"g"}, "g": {"f"}}
    assert circles({name: frozenset(to) for name, to in graph.items()}) == [["a", "b", "c"], ["f", "g"]]


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(imports()) == []


def test_imports_run_downward_only() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if floor(other) > floor(module) or (floor(other) == floor(module) and room_of(other) != room_of(module))
    ]
    assert upward == []


def test_what_results_are_does_not_depend_on_how_they_look() -> None:
    pages = f"{PACKAGE}.suite.report"
    below = tuple(f"{PACKAGE}.suite.{room}." for room in ("store", "analysis", "estimates", "execution"))
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if module.startswith(below) and other.startswith(pages)
    ]
    assert upward == []


def folder_of(module: str) -> str:
    """The folder that a module lies in; a package lies in itself."""
    inside = any(other.startswith(f"{module}.") for other in imports())
    return module if inside else module.rpartition(".")[0]


def test_folders_do_not_import_each_other() -> None:
    """Nor by way of other folders. A folder and the one around it may: the outer one holds what its parts share."""
    graph: dict[str, set[str]] = {folder_of(module): set() for module in imports()}
    for module, others in imports().items():
        here = folder_of(module)
        there = {folder_of(other) for other in others}
        graph[here] |= {folder for folder in there if not _nested(here, folder)}
    assert circles({folder: frozenset(to) for folder, to in graph.items()}) == []


def _nested(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def test_the_engine_rests_on_the_contracts_and_little_else() -> None:
    allowed = {f"{PACKAGE}.{name}" for name in ("errors", "limits", "strict_json")}
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if module.startswith(f"{PACKAGE}.engine.")
        and floor(other) == floor(module)
        and other not in allowed
        and not other.startswith(f"{PACKAGE}.engine.")
    ]
    assert upward == []


def test_suites_know_none_of_their_front_doors() -> None:
    doors = tuple(
        f"{PACKAGE}.{name}"
        for name in ("__main__", "cli", "pytest_plugin", "testing", "integrations", "rollouts", "progress", "metrics")
    )
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if module.startswith(f"{PACKAGE}.suite") and other.startswith(doors)
    ]
    assert upward == []


@pytest.mark.parametrize("room", ["attacks", "defenses", "tasks"])
def test_the_engine_knows_no_concrete_plugin(room: str) -> None:
    """It knows the three contracts: of each room the modules that hold no registered plugin."""
    from importlib.metadata import entry_points

    concrete = {entry.module for entry in entry_points(group=f"{PACKAGE}.{room}") if entry.module.startswith(PACKAGE)}
    assert concrete, "the built-in ones are registered by entry points"
    engine = {name: others for name, others in imports().items() if name.startswith(f"{PACKAGE}.engine")}
    assert engine
    assert [f"{name} imports {other}" for name, others in engine.items() for other in others & concrete] == []
