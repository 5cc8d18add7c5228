"""Checks of a defense or an entry that run none of its code.

For submitted files: their sizes, the names of their weights, their imports. For an entry: whether its cells are those
of its suite, and its files those with which its cells were run.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from thiefbench import __version__, registry
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.isolation.limits import DEPENDENCIES, FILE_BYTES, WEIGHTS_BYTES, WEIGHTS_NAME
from thiefbench.leaderboard.isolation.sandbox_paths import Guests, files, weights
from thiefbench.leaderboard.rows import wanted
from thiefbench.sources import is_of_package, source_files
from thiefbench.suite.scenario import CellSpec, Suite, heading
from thiefbench.suite.store.records import file_sha256

_FLOORS: dict[Guests, tuple[str, str]] = {
    "defense": ("thiefbench.defenses", "thiefbench.tasks"),
    "attack": ("thiefbench.attacks", "thiefbench.tasks"),
}


def cells_of(entry: Entry, suite: Suite) -> list[tuple[str, CellSpec]]:
    """The cells of the suite that an entry's row needs, each with its part of the suite.

    Raises:
        EntryError: the entry has other seeds, or lacks cells, has more, or has them in another order.
    """
    manifest = entry.manifest
    if manifest.seeds != suite.seeds:
        raise EntryError(f"it was run at the seeds {manifest.seeds}, but {suite.title} has {suite.seeds}")
    specs = [(suite.part_of(s), s) for s in wanted(suite, manifest.seeds, manifest.numerics, manifest.defense)]
    expected = [(part, s.role, s.attack, s.defense, s.seed) for part, s in specs]
    present = [(c.part, c.role, c.attack, c.defense, c.seed) for c in entry.cells]
    for difference, names in (
        ("lacks", set(expected) - set(present)),
        ("has, beside those of the suite,", set(present) - set(expected)),
    ):
        if names:
            part, role, attack, defense, seed = min(names)
            of = f"{role} cell, {heading(part, attack)} x {defense}, seed {seed}"
            raise EntryError(f"it {difference} {len(names)} cells, such as the {of}")
    if expected != present:
        raise EntryError("its cells are in another order than the suite's")
    return specs


def check_source(entry: Entry) -> None:
    """Check that the files may be submitted, and are those in the cells' identities.

    Raises:
        EntryError: they are not, or the entry was made with another version of the benchmark.
    """
    for file in files(entry.spec):
        if wrong := wrong_size(file) or wrong_import(file):
            raise EntryError(wrong)
    manifest = entry.manifest
    if registry.source_hash("defense", entry.spec, load=False) == manifest.source_sha256:
        return
    if not entry.source:  # the entry contains no source, so the difference is in this version's defense
        raise EntryError(other_version("it was", f"the source of {manifest.defense} changed"))
    if (made_with := manifest.versions.get("thiefbench", "unknown")) != __version__:
        raise EntryError(other_version("it was", f"thiefbench {made_with}; this is {__version__}"))
    raise EntryError(
        "the submitted source is not the one that its cells were run with (or it is a class of your own that takes a "
        "defense as an argument: its source cannot be checked without running it, and it is not accepted)"
    )


def other_version(subject: str, difference: str) -> str:
    """Why an entry that was made with another version cannot be verified here, in one sentence.

    Args:
        subject: subject and verb of the sentence: "it was", "3 of its 6 cells were".
        difference: how the two versions differ.
    """
    return (
        f"{subject} made with another version of the benchmark ({difference}), so its results cannot be checked "
        "against this one; thiefbench leaderboard submit makes it again"
    )


def wrong_size(file: Path) -> str:
    """What is wrong with the size of a submitted file, or with the weights beside it; empty if nothing is.

    A file that is a module of a package counts with all files of the package.
    """
    name = file.parent.name if is_of_package(file) else file.name
    if (size := sum(path.stat().st_size for path in source_files(file))) > FILE_BYTES:
        return f"{name} has {size:,} bytes, and at most {FILE_BYTES:,} are allowed; move data to a safetensors file"
    beside = weights(file)
    if (total := sum(path.stat().st_size for path in beside)) > WEIGHTS_BYTES:
        return (
            f"the safetensors files beside {file.name} have {total:,} bytes, and at most {WEIGHTS_BYTES:,} are allowed"
        )
    for path in beside:
        named, digest = WEIGHTS_NAME.fullmatch(path.name), file_sha256(path)
        if named is None or named.group(2) != digest:
            plain = re.sub(r"[^A-Za-z0-9_]", "_", path.stem.partition("-")[0])[:23]
            return f"{path.name} is not named after its content; rename it to {plain}-{digest}.safetensors"
    return ""


def wrong_import(file: Path, kind: Guests = "defense") -> str:
    """The first forbidden import of a submitted file, and what to do about it; empty if there is none.

    A file that is a module of a package counts with all files of the package, which may import each other.
    """
    for path in source_files(file):
        if path.suffix == ".py":
            depth = len(path.relative_to(file.parent).parts) if is_of_package(file) else 0
            if wrong := _wrong_import(path, depth, kind):
                return wrong
    return ""


def _wrong_import(file: Path, depth: int, kind: Guests) -> str:
    """As `wrong_import`, of one file; its relative imports may have at most `depth` dots."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file.name} is not valid Python: {error}"
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)), key=_line):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= depth:
            continue
        for name in _imported(node):
            if not _allowed(name, kind):
                shown = f"the standard library, {', '.join(DEPENDENCIES)}, {' and '.join(_FLOORS[kind])}"
                return f"line {node.lineno} of {file.name} imports {name}; it may import only {shown}"
    return ""


def _line(node: ast.stmt) -> int:
    return node.lineno


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [f"thiefbench.{alias.name}" for alias in node.names] if module == "thiefbench" else [module]


def _allowed(name: str, kind: Guests) -> bool:
    top = name.partition(".")[0]
    if top == "thiefbench":
        return any(f"{name}.".startswith(f"{floor}.") for floor in _FLOORS[kind])
    return top in sys.stdlib_module_names or top in DEPENDENCIES
