"""Progress display: bars with a rate and a remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from thiefbench.console import escaped
from thiefbench.suite.estimates.eta import (
    MeasuredCell,
    RunOutline,
    Stage,
    rates_of_run,
    seconds_left,
    work,
    write_seconds,
)
from thiefbench.tasks.text import printable
from thiefbench.wording import counted

if TYPE_CHECKING:
    from thiefbench.suite.execution.jobs import Listener
    from thiefbench.suite.scenario import CellSpec
    from thiefbench.suite.store.records import Record

LINE_EVERY_SECONDS = 15.0

_LEAST_OF_ATTACK = 3
"""With less room than this, a cut name leaves out its attack."""


@contextmanager
def watch(console: Console, workers: int = 1) -> Iterator[Listener]:
    """A listener for `run_suite` that shows the progress over all cells and the remaining time.

    Args:
        console: to print to.
        workers: processes that share the cells.
    """
    if not console.is_terminal:
        yield _Lines(console, workers)
        return
    # A cell's name may be longer than the window: of all columns, only this one is cut, and the bar shrinks.
    columns = (
        _Name(table_column=Column(ratio=3, no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
        TextColumn("{task.fields[rounds]}"), _Labelled("elapsed"), TimeElapsedColumn(), _Labelled("left"), _Left(),
    )  # fmt: skip
    # Rounds take seconds: ten pictures in each, rich's own pace, cost the workers a twentieth of a core.
    with Progress(*columns, console=console, expand=True, refresh_per_second=2) as progress:
        yield _Bars(progress, workers)


@contextmanager
def bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """One progress bar (or plain lines); call the yielded function with (done, total)."""
    if not console.is_terminal:
        printed = time.monotonic()

        def line(done: int, total: int) -> None:
            nonlocal printed
            if time.monotonic() - printed > LINE_EVERY_SECONDS:
                printed = time.monotonic()
                console.print(f"{what}: {done} of {total}")

        yield line
        return
    with _progress(console) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        _Labelled("elapsed"), TimeElapsedColumn(), _Labelled("left"), TimeRemainingColumn(),
        console=console, speed_estimate_period=120,
    )  # fmt: skip


class _Labelled(TextColumn):
    """A word before a time, never cut."""

    def __init__(self, word: str) -> None:
        super().__init__(word, style="dim", table_column=Column(no_wrap=True, min_width=len(word)))


class Tally:
    """Which part of a run is done, and when: it is called like a `Listener` and computes the remaining time.

    A cell's seconds count from its first call, when its model is loaded and its start evaluated.

    Args:
        workers: processes that share the cells.
        clock: returns the time in seconds.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers, self.clock = workers, clock
        self.stages: dict[CellSpec, Stage] = {}
        self.since: dict[CellSpec, float] = {}
        self.before: Sequence[MeasuredCell] = ()

    def plan(self, plan: RunOutline) -> None:
        """The run begins: which cells are missing, and how long similar ones took."""
        self.stages = {spec: Stage(spec, spec.rounds, done=plan.begun.get(spec, 0)) for spec in plan.missing}
        self.before = plan.measured

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A cell has finished `done` of `total` rounds."""
        stage = self.stages[spec]
        if stage.begun is None or done < stage.done:  # started, or started again at its last checkpoint
            self.since[spec] = self.clock()
            self.stages[spec] = Stage(spec, total, done, begun=done)
        else:
            seconds = self.clock() - self.since[spec]
            first = seconds if spec.rehearses and stage.begun == stage.done == 0 else stage.first
            self.stages[spec] = replace(stage, done=done, seconds=seconds, first=first)

    def finished(self, spec: CellSpec) -> None:
        """A cell has ended, after all of its rounds or not."""
        stage = self.stages[spec]
        self.stages[spec] = replace(stage, total=stage.done, begun=stage.done if stage.begun is None else stage.begun)

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds done, and all."""
        stages = self.stages.values()
        return sum(stage.done for stage in stages), sum(stage.total for stage in stages)

    @property
    def share(self) -> float:
        """The share of all work that is done."""
        stages = self.stages.values()
        whole = sum(work(stage.spec, stage.total) for stage in stages)
        started = (stage for stage in stages if stage.begun is not None or stage.done)
        return sum(work(stage.spec, stage.done) for stage in started) / whole if whole else 1.0

    def seconds_left(self) -> float | None:
        """Seconds until the run ends; None if nothing was measured yet."""
        stages = [self._now(stage) for stage in self.stages.values()]
        rates = rates_of_run(stages, self.before)
        return seconds_left(stages, self.workers, rates) if rates else None

    def seconds_left_of(self, spec: CellSpec) -> float | None:
        """Seconds until a running cell ends; None if nothing was measured yet."""
        rates = rates_of_run(self.stages.values(), self.before)
        return rates.left(self._now(self.stages[spec])) if rates else None

    def _now(self, stage: Stage) -> Stage:
        """A cell with the seconds of the rehearsal that is under way."""
        if stage.rehearsal_ahead and stage.begun is not None:
            return replace(stage, seconds=self.clock() - self.since[stage.spec])
        return stage

    def seconds_a_round(self) -> float | None:
        """Seconds per round and process, evaluations included and rehearsals left out."""
        told = [(stage, stage.counted_from) for stage in self.stages.values()]
        measured = [(stage, after) for stage, after in told if after is not None and stage.done > after]
        played = sum(stage.done - after for stage, after in measured)
        return sum(stage.seconds - stage.first for stage, _ in measured) / played if played else None


class _Lines:
    """Plain lines, for logs."""

    def __init__(self, console: Console, workers: int) -> None:
        self.console, self.tally, self.said = console, Tally(workers), 0.0

    def plan(self, plan: RunOutline) -> None:
        self.tally.plan(plan)
        self.console.print(f"{escaped(plan.title)}: {_counts(plan)}")

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        self.tally.cell(spec, done, total)
        if time.monotonic() - self.said > LINE_EVERY_SECONDS:
            self.said = time.monotonic()
            self.console.print(escaped(f"{spec.label}: round {done} of {total}{self._pace()}"))

    def finished(self, spec: CellSpec, record: Record) -> None:
        self.tally.finished(spec)
        how = f"FAILED: {record.error}" if record.status == "error" else f"done{_shared(record)}"
        self.console.print(escaped(f"{spec.label}: {how}{self._pace()}"))

    def note(self, message: str) -> None:
        self.console.print(escaped(message))

    def _pace(self) -> str:
        each, left = self.tally.seconds_a_round(), self.tally.seconds_left()
        if each is None or not left:
            return ""
        return f"; {each:.1f} s a round, {self.tally.share:.0%} of everything, about {write_seconds(left)} left"


class _Bars:
    """One bar for all cells and one for every running cell."""

    def __init__(self, progress: Progress, workers: int) -> None:
        self.progress, self.tally = progress, Tally(workers)
        self.all: TaskID | None = None
        self.under_way: dict[CellSpec, TaskID] = {}

    def plan(self, plan: RunOutline) -> None:
        self.tally.plan(plan)
        self.progress.console.print(f"[bold]{escaped(plan.title)}[/bold]: {_counts(plan)}")
        self.all = self.progress.add_task("all cells", total=1.0, rounds="", ends=None)

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        self.tally.cell(spec, done, total)
        if spec not in self.under_way:
            self.under_way[spec] = self.progress.add_task(printable(spec.label), total=total, rounds="", ends=None)
        ends = _ends(self.tally.seconds_left_of(spec))
        self.progress.update(self.under_way[spec], completed=done, rounds=f"{done}/{total}", ends=ends)
        self._show_all()

    def finished(self, spec: CellSpec, record: Record) -> None:
        self.tally.finished(spec)
        if spec in self.under_way:
            self.progress.remove_task(self.under_way.pop(spec))
        done = f"[green]done[/green]{_shared(record)}"
        state = done if record.status == "ok" else f"[red]failed: {escaped(record.error)}[/red]"
        self.progress.console.print(f"{escaped(spec.label)}: {state}")
        self._show_all()

    def note(self, message: str) -> None:
        self.progress.console.print(escaped(message))

    def _show_all(self) -> None:
        assert self.all is not None
        (done, total), each = self.tally.rounds, self.tally.seconds_a_round()
        pace = "starting" if each is None else f"{each:.1f} s a round"
        self.progress.update(
            self.all, completed=self.tally.share, rounds=f"{done}/{total}", description=f"all cells ({pace})",
            ends=_ends(self.tally.seconds_left()),
        )  # fmt: skip


def _shared(record: Record) -> str:
    """How many of its rounds a finished cell took over, if any."""
    from thiefbench.suite.store.records import rounds_taken

    taken = len(rounds_taken(record))
    return f", {taken} of {counted(record.cell['rounds'], 'round')} shared" if taken else ""


def _counts(plan: RunOutline) -> str:
    begun = sorted(done for done in plan.begun.values() if done)
    resumed = ""
    if begun:
        rounds = f"round {begun[0]}" if begun[0] == begun[-1] else f"rounds {begun[0]} to {begun[-1]}"
        resumed = f"; {len(begun)} of them {'continues' if len(begun) == 1 else 'continue'} after {rounds}"
    return f"{counted(len(plan.missing), 'cell')} to run, {plan.cached} in the store already{resumed}"


class _Name(ProgressColumn):
    """What a task is: of a cell's name that is too long, the defense and the seed stay."""

    def render(self, task: Task) -> RenderableType:
        return _CutName(task.description.replace("\n", " "))


@dataclass(frozen=True)
class _CutName:
    """A name as long as its column has room for."""

    name: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, cell_len(self.name)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(cut_name(self.name, options.max_width), no_wrap=True, overflow="crop")


def cut_name(name: str, width: int) -> str:
    """A cell's name in so many columns of a terminal: first its attack is cut, then the beginning of its defense."""
    if cell_len(name) <= width:
        return name
    attack, times, rest = name.rpartition(" x ")
    room = width - cell_len(times + rest)
    if not times or room > _LEAST_OF_ATTACK:
        kept = Text(attack or name)
        kept.truncate(room if times else width, overflow="ellipsis")
        return kept.plain + (times + rest if times else "")
    while rest and cell_len(rest) >= width:
        rest = rest[1:]
    return f"\u2026{rest}"


class _Left(ProgressColumn):
    """The time until a task's field `ends`, a value of `time.monotonic`; it counts down between two rounds as well."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        shown = "-:--:--" if ends is None else str(timedelta(seconds=max(0, int(ends - time.monotonic()))))
        return Text(shown, style="progress.remaining")


def _ends(left: float | None) -> float | None:
    return None if left is None else time.monotonic() + left
