"""What can be told of a submission without running it: sizes, the names of its weights, its imports."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from thiefbench.leaderboard.isolation.limits import DEPENDENCIES, FILE_BYTES, WEIGHTS_BYTES, WEIGHTS_NAME
from thiefbench.leaderboard.isolation.sandbox_paths import weights
from thiefbench.sources import is_of_package, source_files
from thiefbench.suite.store.records import file_sha256

_FLOORS = ("thiefbench.defenses", "thiefbench.tasks")
_SHOWN = f"the standard library, {', '.join(DEPENDENCIES)}, {' and '.join(_FLOORS)}"


def wrong_size(file: Path) -> str:
    """What is wrong with the size of a submitted file or of the weights beside it; empty where nothing is.

    A file that is a module of a package stands for all of the package's files.
    """
    name = file.parent.name if is_of_package(file) else file.name
    if (size := sum(path.stat().st_size for path in source_files(file))) > FILE_BYTES:
        return f"{name} has {size:,} bytes, and at most {FILE_BYTES:,} are taken; move data to a safetensors file"
    beside = weights(file)
    if (total := sum(path.stat().st_size for path in beside)) > WEIGHTS_BYTES:
        return f"the safetensors files beside {file.name} have {total:,} bytes, and at most {WEIGHTS_BYTES:,} are taken"
    for path in beside:
        named, digest = WEIGHTS_NAME.fullmatch(path.name), file_sha256(path)
        if named is None or named.group(2) != digest:
            plain = re.sub(r"[^A-Za-z0-9_]", "_", path.stem.partition("-")[0])[:23]
            return f"{path.name} is not named after its content; rename it to {plain}-{digest}.safetensors"
    return ""


def wrong_import(file: Path) -> str:
    """The first line of a submitted file that imports what it may not, and what to do; empty where none does.

    A file that is a module of a package stands for all of the package's files, which may import each other.
    """
    for path in source_files(file):
        if path.suffix == ".py":
            depth = len(path.relative_to(file.parent).parts) if is_of_package(file) else 0
            if wrong := _wrong_import(path, depth):
                return wrong
    return ""


def _wrong_import(file: Path, depth: int) -> str:
    """As `wrong_import`, of one file that may import with so many dots."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} is no Python: {error}"
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)), key=_line):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= depth:
            continue
        for name in _imported(node):
            if not _allowed(name):
                return f"line {node.lineno} of {file.name} imports {name}; write it with {_SHOWN} alone"
    return ""


def _line(node: ast.stmt) -> int:
    return node.lineno


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [f"thiefbench.{alias.name}" for alias in node.names] if module == "thiefbench" else [module]


def _allowed(name: str) -> bool:
    top = name.partition(".")[0]
    if top == "thiefbench":
        return any(f"{name}.".startswith(f"{floor}.") for floor in _FLOORS)
    return top in sys.stdlib_module_names or top in DEPENDENCIES
