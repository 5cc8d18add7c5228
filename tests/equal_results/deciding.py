"""The decision: compare the small cells and run the tests, then write declarations and hashes; see `__main__`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import thiefbench
from tests.equal_results.cells import CELLS, Hashes, hashes_of, surroundings
from thiefbench.engine_revision import DECLARATIONS, Declarations, sources_digest

CHECKOUT = Path(__file__).parents[2]
FOLDERS = {"bench": "", "tasks": "tasks", "attacks": "attacks", "defenses": "defenses", "leaderboard": "leaderboard"}
"""The checkout's folders, with their places in the installed package."""
TESTS = (
    "tests/bench/engine/test_golden.py", "tests/bench/engine/backends", "tests/bench/integrations/test_trl.py",
    "tests/bench/testing/test_recipe.py", "tests/bench/testing/test_recorded.py",
)  # fmt: skip
"""Tests that must pass, none of them skipped: the other backends agree with the one that plays the small cells."""
LEFT_OUT = ("tests/bench/integrations/test_trl.py::test_an_adapter_is_part_of_the_model_that_is_read",)
"""Those of them that need a package which the tested set of dependencies does not have (peft)."""


class UndecidedError(Exception):
    """Nothing can be declared; the message says why."""


@dataclass(frozen=True)
class Files:
    """What the command reads and writes.

    Attributes:
        declarations: declared sources.
        values: hashes of what the small cells leave at the base revision, by machine and cell.
    """

    declarations: Path
    values: Path

    def declared(self) -> Declarations:
        """The declarations."""
        content = json.loads(self.declarations.read_text(encoding="utf-8"))
        return Declarations(content["base"], content["equal"])

    def declare(self, declarations: Declarations) -> None:
        """Write the declarations."""
        _write(self.declarations, {"base": declarations.base, "equal": dict(declarations.equal)})

    def machines(self, base: str) -> dict[str, dict[str, Hashes]]:
        """The hashes of a base revision."""
        content = json.loads(self.values.read_text(encoding="utf-8"))
        machines: dict[str, dict[str, Hashes]] = content["machines"] if content["base"] == base else {}
        return machines

    def keep(self, base: str, machines: dict[str, dict[str, Hashes]]) -> None:
        """Write the hashes of a base revision."""
        _write(self.values, {"base": base, "machines": machines})


FILES = Files(CHECKOUT / "bench" / DECLARATIONS, Path(__file__).with_name("values.json"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str], files: Files = FILES) -> int:
    """Decide as asked; 0 if that was written, 1 if results differ, 2 if it cannot be decided here."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.equal_results", description="Decide what a change to the engine means for stored results."
    )
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--equal", metavar="WHY", help="declare the code equal to the base revision, if it is")
    one.add_argument("--new-base", action="store_true", help="make the code the base revision: its results are new")
    one.add_argument("--this-machine", action="store_true", help="add this machine's hashes of the base revision")
    asked = parser.parse_args(arguments)
    digest, declared = sources_digest(), files.declared()
    try:
        check_installed()
        if asked.this_machine:
            add_machine(digest, declared, files)
        elif asked.new_base:
            set_base(digest, files)
        else:
            return declare_equal(digest, declared, _reason(asked.equal), files)
    except UndecidedError as error:
        print(error)
        return 2
    return 0


def declare_equal(digest: str, declared: Declarations, why: str, files: Files) -> int:
    """Declare the code equal to the base revision if all agrees; 1 if something differs, and nothing is written.

    Raises:
        UndecidedError: there is nothing to declare, or no hashes of this machine.
    """
    if declared.revision_of(digest) == declared.base:
        raise UndecidedError(f"The engine's code has the base revision {declared.base} already.")
    before = files.machines(declared.base).get(surroundings())
    if before is None:
        raise UndecidedError(
            f"There are no hashes of the base revision {declared.base} for this machine ({surroundings()}); check out "
            "a commit of that revision, run python -m tests.equal_results --this-machine, and bring "
            f"{files.values.name} along."
        )
    found = [*differing_cells(before), *failing_tests(TESTS)]
    for line in found:
        print(f"differs: {line}")
    if found:
        print(f"Results differ from those of revision {declared.base}, so nothing is declared.")
        return 1
    files.declare(Declarations(declared.base, {**declared.equal, digest: why}))
    print(f"The sources {digest} are declared equal to revision {declared.base}; commit {files.declarations.name}.")
    return 0


def set_base(digest: str, files: Files) -> None:
    """Make the code the base revision, with this machine's hashes."""
    files.keep(digest, {surroundings(): _played()})
    files.declare(Declarations(digest, {}))
    print(f"The base revision is {digest}; say in the changelog, under Results, what changed.")


def add_machine(digest: str, declared: Declarations, files: Files) -> None:
    """Add this machine's hashes of the base revision.

    Raises:
        UndecidedError: the code has another revision.
    """
    if declared.revision_of(digest) != declared.base:
        raise UndecidedError(f"The engine's code is not of the base revision {declared.base}; its digest is {digest}.")
    files.keep(declared.base, {**files.machines(declared.base), surroundings(): _played()})
    print(f"The hashes of revision {declared.base} on this machine are in {files.values.name}.")


def differing_cells(before: dict[str, Hashes]) -> Iterator[str]:
    """What the small cells leave otherwise than before, one line for each."""
    for name in CELLS:
        now = hashes_of(name)
        for kind in before.get(name) or now:
            if before.get(name, {}).get(kind) != now[kind]:
                yield f"the cell {name!r}: {kind}"


def failing_tests(paths: Sequence[str]) -> Iterator[str]:
    """The tests that fail or are skipped, one line for each."""
    with tempfile.TemporaryDirectory(prefix="thiefbench-equal-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["--import-mode=importlib", "-m", "not slow", f"--junit-xml={report}", *paths]
        command += [f"--deselect={test}" for test in LEFT_OUT]
        subprocess.run(command, cwd=CHECKOUT, check=False)
        if not report.is_file():
            yield f"the tests in {', '.join(paths)} did not run"
            return
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    if not cases:
        yield f"there are no tests in {', '.join(paths)}"
    for case in cases:
        for outcome in ("failure", "error", "skipped"):
            if (found := case.find(outcome)) is not None:
                message = str(found.get("message")).partition("\n")[0]
                yield f"the test {case.get('classname')}::{case.get('name')}: {outcome}, {message:.200}"


def check_installed(checkout: Path = CHECKOUT) -> None:
    """Check that the installed package, which is what runs, has the checkout's code.

    Raises:
        UndecidedError: it has not.
    """
    installed = Path(thiefbench.__file__).parent
    for folder, place in FOLDERS.items():
        for path in sorted((checkout / folder).rglob("*.py")):
            if path.is_relative_to(checkout / "leaderboard" / "entries"):
                continue  # submissions are no part of the package
            copy = installed / place / path.relative_to(checkout / folder)
            if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                raise UndecidedError(f"The installed package has another {folder}/{copy.name}; write make install.")


def _played() -> dict[str, Hashes]:
    return {name: hashes_of(name) for name in CELLS}


def _reason(why: str) -> str:
    if not (reason := " ".join(why.split())):
        raise UndecidedError("Say why, in a few words.")
    return reason
