"""Which files define a class: its module, what that imports of its own package, and the data beside it.

A user's file that has an ``__init__.py`` beside it is a module of that folder, which counts whole.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

OF_USER = "thiefbench_user_"
"""How the names of modules begin that are loaded from users' files."""
_DATA = {".txt", ".json", ".yaml"}


def is_of_package(file: Path) -> bool:
    """Whether a user's file is a module of the folder it lies in, which then counts whole."""
    return file.with_name("__init__.py").is_file()


def source_files(file: Path) -> list[Path]:
    """A user's file, or all Python and data files of the package whose module it is, sorted."""
    if not is_of_package(file):
        return [file]
    return sorted(
        p for p in file.parent.rglob("*") if p.suffix in {".py", *_DATA} and p.is_file() and _is_shown(p, file)
    )


def sources(module: ModuleType) -> set[Path]:
    """The module's file, the modules of its own package that it imports, and the data files beside it."""
    package = module.__package__ or ""
    if not package:
        return {Path(str(module.__file__))}
    if package.startswith(OF_USER):
        return set(source_files(Path(str(sys.modules[package.partition(".")[0]].__file__))))
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
    return found | {path for path in folder.iterdir() if path.suffix in _DATA}


def _is_shown(path: Path, beside: Path) -> bool:
    inside = path.relative_to(beside.parent).parts
    return "__pycache__" not in inside and not any(part.startswith(".") for part in inside)


def package_files(module: ModuleType) -> set[Path]:
    """All files of the folder of the module's package, and what `sources` finds elsewhere; without a package its file.

    Left out is what Python compiles and what is hidden.
    """
    found = sources(module)
    if not module.__package__:
        return found
    file = Path(str(module.__file__))
    return found | {path for path in file.parent.rglob("*") if path.is_file() and _is_shown(path, file)}


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
