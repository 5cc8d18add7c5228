"""Running cells inside a pytest session, on the session's store; the process is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from thiefbench.progress import watch
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.run_comparisons import trained_comparisons
from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.execution.jobs import Listener
from thiefbench.suite.execution.runner import jobs_of, run_of, run_suite
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Record, Store


@dataclass
class Runs:
    """The cells of a session.

    Attributes:
        store: where records are found and left.
        threads: of each process, part of a cell's identity.
        tell: writes a message to the terminal at once.
        tried: cells that this session has run; one that failed is not tried again.
    """

    store: Store
    threads: int
    tell: Callable[[str], None]
    tried: set[CellSpec] = field(default_factory=set)

    def cells(self, suite: Suite) -> list[CellSpec]:
        """All cells of a suite, as this session runs them."""
        return suite.cells("cpu", "float32", self.threads)

    def run(self, suite: Suite, cells: Sequence[CellSpec], try_first: bool = False) -> None:
        """Run those of some cells of a suite that are missing; for `try_first` see `run_suite`.

        Raises:
            KeyboardInterrupt: stopped by the user; the store keeps all finished work.
            Exception: as `run_suite`.
        """
        _ignored_by_git(self.store.root)
        fresh = [cell for cell in cells if cell not in self.tried]
        known = [cell for cell in cells if cell in self.tried]
        with _threads_kept(), watch(Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)) as watching:
            listener = _TerminalListener(watching, self.tell)
            for some, retry in ((known, False), (fresh, True)):
                if some:
                    run_suite(suite, some, self.store, listener, retry, remember=False, try_first=try_first)
        self.tried |= set(fresh)

    def comparisons(self, suite: Suite, cells: Sequence[CellSpec]) -> list[Comparison]:
        """The results that the store holds of some cells of a suite."""
        return trained_comparisons(self.store, run_of(suite, jobs_of(suite, cells, self.store)))

    def remember(self, suite: Suite, cells: Sequence[CellSpec]) -> None:
        """Make these cells what `thiefbench report` and `--thiefbench-compare` find in the store."""
        self.store.write_run(run_of(suite, jobs_of(suite, cells, self.store)))


class _TerminalListener:
    """A listener whose notes also reach a terminal whose output pytest captures."""

    def __init__(self, inner: Listener, tell: Callable[[str], None]) -> None:
        self.inner, self.tell = inner, tell

    def plan(self, plan: RunOutline) -> None:
        """What is run."""
        self.inner.plan(plan)

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A round has been finished."""
        self.inner.cell(spec, done, total)

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A cell has its record."""
        self.inner.finished(spec, record)

    def note(self, message: str) -> None:
        """Something the user should know."""
        self.inner.note(message)
        self.tell(message)


@contextmanager
def _threads_kept() -> Iterator[None]:
    """Restore torch's threads for the other tests of the session, as cells set them for their process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ignored_by_git(folder: Path) -> None:
    """Keep a new store out of the repository whose tests fill it."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
