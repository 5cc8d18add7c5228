"""Running a suite: which cells are missing, running them, and what the run leaves for the report."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Protocol

from filelock import Timeout

from thiefbench import registry
from thiefbench.engine.policy import ModelError, check_directory
from thiefbench.engine.spec import SpecError
from thiefbench.engine.swarm import drawn
from thiefbench.judges import check_judge
from thiefbench.suite.execution import failed_record, identity, run_cell
from thiefbench.suite.results import BrokenRecordError, CellDir, Record, Store, identify
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.tasks.base import TaskError
from thiefbench.zoo.models import resolve

# Mistakes of the user, one sentence each: the run ends. Anything else that a cell raises is recorded as its failure.
USER_ERRORS = (registry.SpecStringError, ModelError, SpecError, TaskError)


class Listener(Protocol):
    """Who watches a run (the command line's progress bars)."""

    def plan(self, title: str, missing: Sequence[CellSpec], cached: int) -> None:
        """What is run: the suite's title, the cells to run, and how many more are in the store already."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A cell has finished `done` of `total` rounds."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A cell has its record."""

    def note(self, message: str) -> None:
        """Something the user should know."""


@dataclass
class Stop:
    """Ctrl-C: the round under way is finished and the cell checkpointed; a second one ends at once."""

    note: Callable[[str], None]
    asked: bool = field(default=False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take over SIGINT and SIGTERM; outside the main thread, where that is impossible, do nothing."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            self.note("stopping after this round; press Ctrl-C again to stop at once")

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            before = {}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


def run_suite(
    suite: Suite, cells: Sequence[CellSpec], store: Store, listener: Listener, retry_failed: bool = True
) -> list[Record]:
    """Run what is missing of a suite.

    Args:
        suite: what the cells came from; remembered for the report.
        cells: what to run, in order.
        store: where records are found and left.
        listener: who watches.
        retry_failed: run cells again whose record is an error.

    Returns:
        The records of all cells, in order.

    Raises:
        KeyboardInterrupt: stopped by the user; the store can be gone on from.
        OSError: the disk is full or the store cannot be written.
    """
    _check_requirements(cells)
    ids = {spec: identify(identity(spec)) for spec in cells}
    store.write_run(
        {
            "title": suite.title,
            "suite": asdict(suite),
            "fingerprint": suite.fingerprint(),
            "cells": [
                {
                    "cell_id": ids[spec], "role": spec.role, "attack": spec.attack, "defense": spec.defense,
                    "seed": spec.seed, "label": spec.label,
                }
                for spec in cells
            ],
        }
    )  # fmt: skip
    found = {spec: _finished(store.cell(ids[spec]), listener, retry_failed) for spec in cells}
    missing = [spec for spec, record in found.items() if record is None]
    listener.plan(suite.title, missing, len(found) - len(missing))
    stop = Stop(listener.note)

    def work_on(waiting: Sequence[CellSpec], wait: bool) -> list[CellSpec]:
        """Run each cell once its lock is free; without `wait`, return those that another process works on."""
        taken = []
        for spec in waiting:
            directory = store.cell(ids[spec])
            try:
                with _locked(directory, listener, spec, wait, stop):
                    # A cell that another run has just failed is not tried again at once.
                    retry = retry_failed and not wait
                    record = _finished(directory, listener, retry) or _run(spec, directory, listener, stop)
            except Timeout:
                taken.append(spec)
                continue
            found[spec] = record
            listener.finished(spec, record)
        return taken

    with stop.listening():
        taken = work_on(missing, wait=False)
        work_on(taken, wait=True)
    return [record for record in found.values() if record is not None]


@contextmanager
def _locked(directory: CellDir, listener: Listener, spec: CellSpec, wait: bool, stop: Stop) -> Iterator[None]:
    """Hold the cell's lock.

    Raises:
        Timeout: another process holds it, and `wait` is False.
        KeyboardInterrupt: the user stopped the wait.
    """
    lock = directory.lock()
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise
        listener.note(f"another run on this store works on a cell; waiting for it: {spec.label}")
    while not lock.is_locked:
        if stop.asked:
            raise KeyboardInterrupt
        with suppress(Timeout):
            lock.acquire(timeout=1)
    try:
        yield
    finally:
        lock.release()


def _run(spec: CellSpec, directory: CellDir, listener: Listener, stop: Stop) -> Record:
    def go() -> Record:
        def progress(done: int, total: int) -> None:
            listener.cell(spec, done, total)

        return run_cell(spec, directory, progress, lambda: stop.asked, listener.note)

    try:
        try:
            return go()
        except BrokenRecordError as error:
            listener.note(f"{error}; set aside as {directory.set_aside().name}, starting the cell again")
            return go()
    except USER_ERRORS:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        record = failed_record(spec, error)
        directory.write(record)
        return record


def _finished(directory: CellDir, listener: Listener, retry_failed: bool) -> Record | None:
    """The cell's record where it is intact; a broken one is set aside."""
    try:
        record = directory.read()
    except BrokenRecordError as error:
        listener.note(f"{error}; set aside as {directory.set_aside().name}, the cell runs again")
        return None
    return None if record is not None and record.status == "error" and retry_failed else record


def _check_requirements(cells: Sequence[CellSpec]) -> None:
    """Fail before the first round where a swarm cannot give what a defense needs or an attack does not fit."""
    for model in {spec.model for spec in cells}:
        check_directory(resolve(model))
    for spec in cells:
        drawn(registry.make("attack", spec.attack), spec.seed, spec.swarm, registry.make("task", spec.task))
        defense = registry.make("defense", spec.defense)
        unknown = set(defense.requires) - {"homogeneous", "judge"}
        if unknown:
            raise SpecError(
                f"the defense {spec.defense} requires {', '.join(sorted(unknown))}, which this swarm does not give"
            )
        if "judge" in defense.requires:
            check_judge(defense)
