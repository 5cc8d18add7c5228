"""Running a suite: which cells are missing, running them, and what the run leaves for the report."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Protocol

from filelock import Timeout

from thiefbench import registry
from thiefbench.engine.fitting import check_requirements, drawn
from thiefbench.engine.policy import ModelError, check_directory
from thiefbench.engine.spec import SpecError
from thiefbench.judges import check_judge
from thiefbench.suite import weights
from thiefbench.suite.execution import failed_record, identity, keep_weights_of, run_cell
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
    suite: Suite,
    cells: Sequence[CellSpec],
    store: Store,
    listener: Listener,
    retry_failed: bool = True,
    remember: bool = True,
) -> list[Record]:
    """Run what is missing of a suite.

    Args:
        suite: what the cells came from; remembered for the report.
        cells: what to run, in order.
        store: where records are found and left.
        listener: who watches.
        retry_failed: run cells again whose record is an error.
        remember: make this the store's last run, which a report shows.

    Returns:
        The records of all cells, in order.

    Raises:
        KeyboardInterrupt: stopped by the user; the store can be gone on from.
        OSError: the disk is full or the store cannot be written.
    """
    _check_requirements(cells)
    identities = {spec: identity(spec) for spec in cells}
    ids = {spec: identify(what) for spec, what in identities.items()}
    if remember:
        _remember(suite, ids, store)
    found = {spec: _finished(store.cell(ids[spec]), listener, retry_failed) for spec in cells}
    missing = [
        spec
        for spec, record in found.items()
        if record is None or _without_weights(store.cell(ids[spec]), record, suite.recorded_in(spec))
    ]
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
                    record = _finished(directory, listener, retry)
                    record = record or _run(spec, identities[spec], directory, suite, listener, stop)
                    _keep_missing_weights(spec, directory, record, suite, listener, stop)
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


def _remember(suite: Suite, ids: dict[CellSpec, str], store: Store) -> None:
    store.write_run(
        {
            "title": suite.title,
            "suite": asdict(suite),
            "fingerprint": suite.fingerprint(),
            "cells": [
                {
                    "cell_id": cell_id, "part": suite.part_of(spec), "role": spec.role, "attack": spec.attack,
                    "defense": spec.defense, "seed": spec.seed, "label": spec.label,
                }
                for spec, cell_id in ids.items()
            ],
        }
    )  # fmt: skip


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


def _run(
    spec: CellSpec, what: dict[str, Any], directory: CellDir, suite: Suite, listener: Listener, stop: Stop
) -> Record:
    def go() -> Record:
        def progress(done: int, total: int) -> None:
            listener.cell(spec, done, total)

        kept = suite.recorded_in(spec)
        return run_cell(spec, what, directory, progress, lambda: stop.asked, kept, listener.note)

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
        record = failed_record(spec, what, error)
        directory.write(record)
        return record


def _keep_missing_weights(
    spec: CellSpec, directory: CellDir, record: Record, suite: Suite, listener: Listener, stop: Stop
) -> None:
    """Keep what a finished cell lacks of the weights that its suite wants recorded."""
    missing = _without_weights(directory, record, suite.recorded_in(spec))
    if not missing:
        return

    def progress(done: int, total: int) -> None:
        listener.cell(spec, done, total)

    left = keep_weights_of(spec, directory, missing, progress, lambda: stop.asked)
    if left:
        numbers = ", ".join(map(str, left))
        listener.note(f"{spec.label}: its rounds come out otherwise here, so round {numbers} keeps no weights")


def _without_weights(directory: CellDir, record: Record, rounds: Sequence[int]) -> list[int]:
    """Those of `rounds` whose weights a finished cell lacks; a failed one has no pool to replay."""
    if not rounds or record.status == "error":
        return []
    kept = weights.kept(directory)
    return [number for number in rounds if number not in kept]


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
        check_requirements(spec.swarm, defense)
        if "judge" in defense.requires:
            check_judge(defense)
