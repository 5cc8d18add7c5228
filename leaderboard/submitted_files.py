"""What can be told of a submission without running it: sizes, the names of its weights, its imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from thiefbench.leaderboard.limits import DEPENDENCIES, FILE_BYTES, WEIGHTS_BYTES
from thiefbench.leaderboard.surroundings import weights
from thiefbench.suite.results import file_sha256

_FLOORS = ("thiefbench.defenses", "thiefbench.tasks")
_SHOWN = f"the standard library, {', '.join(DEPENDENCIES)}, {' and '.join(_FLOORS)}"


def wrong_size(file: Path) -> str:
    """What is wrong with the size of a submitted file or of the weights beside it; empty where nothing is."""
    if (size := file.stat().st_size) > FILE_BYTES:
        return f"{file.name} has {size:,} bytes, and at most {FILE_BYTES:,} are taken; move data to a safetensors file"
    beside = weights(file)
    if (total := sum(path.stat().st_size for path in beside)) > WEIGHTS_BYTES:
        return f"the safetensors files beside {file.name} have {total:,} bytes, and at most {WEIGHTS_BYTES:,} are taken"
    for path in beside:
        if not path.stem.endswith(f"-{(digest := file_sha256(path))}"):
            plain = path.stem.partition("-")[0]
            return f"{path.name} is not named after its content; rename it to {plain}-{digest}.safetensors"
    return ""


def wrong_import(file: Path) -> str:
    """The first line of a submitted file that imports what it may not, and what to do; empty where none does."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} is no Python: {error}"
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)), key=_line):
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
