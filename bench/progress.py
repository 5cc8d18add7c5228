"""Progress for people: bars with a rate and a time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from thiefbench.suite.results import Record
    from thiefbench.suite.runner import Listener
    from thiefbench.suite.scenario import CellSpec

LINE_EVERY_SECONDS = 15.0


@contextmanager
def watch(console: Console) -> Iterator[Listener]:
    """A listener for `run_suite` that shows rounds over all cells."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with _progress(console) as progress:
        yield _Bars(progress)


@contextmanager
def bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """One progress bar (or plain lines); call the yielded function with (done, total)."""
    if not console.is_terminal:
        said = time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal said
            if time.monotonic() - said > LINE_EVERY_SECONDS:
                said = time.monotonic()
                console.print(f"{what}: {done} of {total}")

        yield line
        return
    with _progress(console) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, speed_estimate_period=120,
    )  # fmt: skip


class _Counter:
    """Rounds done in this run and over all cells, and the time left that follows."""

    def __init__(self) -> None:
        self.total = 0
        self.done: dict[CellSpec, int] = {}
        self.began: tuple[float, int] | None = None

    def plan(self, missing: Sequence[CellSpec]) -> None:
        self.total = sum(spec.rounds for spec in missing)

    def count(self, spec: CellSpec, done: int) -> int:
        self.done[spec] = done
        over_all = sum(self.done.values())
        if self.began is None:
            self.began = (time.monotonic(), over_all)
        return over_all

    def pace(self, over_all: int) -> str:
        """Seconds per round so far and the time left, in words."""
        assert self.began is not None
        played = over_all - self.began[1]
        if played < 1:
            return ""
        each = (time.monotonic() - self.began[0]) / played
        left = each * (self.total - over_all)
        return (
            f"{each:.1f} s a round, about {left / 60:.0f} min left"
            if left > 90
            else f"{each:.1f} s a round, about {left:.0f} s left"
        )


class _Lines:
    """Plain lines, for logs."""

    def __init__(self, console: Console) -> None:
        self.console, self.counter, self.said = console, _Counter(), 0.0

    def plan(self, title: str, missing: Sequence[CellSpec], cached: int) -> None:
        self.counter.plan(missing)
        self.console.print(f"{escape(title)}: {len(missing)} cells to run, {cached} in the store already")

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        over_all = self.counter.count(spec, done)
        if time.monotonic() - self.said > LINE_EVERY_SECONDS or done == total:
            self.said = time.monotonic()
            pace = self.counter.pace(over_all)
            self.console.print(escape(f"{spec.label}: round {done} of {total}" + (f"; {pace}" if pace else "")))

    def finished(self, spec: CellSpec, record: Record) -> None:
        self.console.print(escape(f"{spec.label}: {'done' if record.status == 'ok' else 'FAILED: ' + record.error}"))

    def note(self, message: str) -> None:
        self.console.print(escape(message))


class _Bars:
    """One bar over all rounds and one for the cell under way."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.counter = progress, _Counter()
        self.all: TaskID | None = None
        self.one: TaskID | None = None
        self.current: CellSpec | None = None

    def plan(self, title: str, missing: Sequence[CellSpec], cached: int) -> None:
        self.counter.plan(missing)
        self.progress.console.print(
            f"[bold]{escape(title)}[/bold]: {len(missing)} cells to run, {cached} in the store already"
        )
        self.all = self.progress.add_task("rounds over all cells", total=self.counter.total)

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        if spec != self.current:
            if self.one is not None:
                self.progress.remove_task(self.one)
            self.one, self.current = self.progress.add_task(escape(spec.label), total=total, completed=done), spec
        assert self.all is not None
        assert self.one is not None
        over_all = self.counter.count(spec, done)
        self.progress.update(self.one, completed=done)
        self.progress.update(
            self.all, completed=over_all, description=f"rounds ({self.counter.pace(over_all) or 'starting'})"
        )

    def finished(self, spec: CellSpec, record: Record) -> None:
        state = "[green]done[/green]" if record.status == "ok" else f"[red]failed: {escape(record.error)}[/red]"
        self.progress.console.print(f"{escape(spec.label)}: {state}")

    def note(self, message: str) -> None:
        self.progress.console.print(escape(message))
