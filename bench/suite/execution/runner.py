"""Running a suite: which cells are missing, running them, and what the run leaves for the report."""

from __future__ import annotations

import errno
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from thiefbench import registry, trust
from thiefbench.engine.compatibility import check_requirements, drawn
from thiefbench.engine.model.policy import ModelError, check_directory
from thiefbench.engine.spec import SpecError
from thiefbench.judges import check_judge
from thiefbench.limits import SHARED_GB
from thiefbench.locks import LockedError
from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.estimates.measured import measured_here
from thiefbench.suite.execution.cell_identity import Identities, failed_record, other_threads
from thiefbench.suite.execution.cell_run import ALONE, CellRuntime, keep_weights_of, run_cell
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.execution.executors import Executor, Ledger
from thiefbench.suite.execution.jobs import CellListener, Job, Listener, Stopping
from thiefbench.suite.execution.workers import WorkerPool
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store import weights
from thiefbench.suite.store.arithmetic import arithmetic_here, reuse_note
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, identify, rounds_taken
from thiefbench.tasks.base import TaskError
from thiefbench.zoo.models import resolve

# Mistakes of the user, one sentence each: the run ends. Anything else that a cell raises is recorded as its failure.
USER_ERRORS = (registry.SpecStringError, ModelError, SpecError, TaskError)


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
    workers: int = 1,
    executor: Executor | None = None,
    share: bool = True,
    shared_gb: float = SHARED_GB,
) -> list[Record]:
    """Run what is missing of a suite.

    Args:
        suite: what the cells came from; remembered for the report.
        cells: what to run; in which order says `taken_up`.
        store: where records are found and left.
        listener: who watches.
        retry_failed: run cells again whose record is an error.
        remember: make this the store's last run, which a report shows.
        workers: processes that run cells at the same time; 1 runs them in this one. A script that asks for more must
            do so behind ``if __name__ == "__main__":``, as they import it.
        executor: who runs the cells instead, such as a `thiefbench.suite.execution.ray_executor.RayExecutor`.
        share: let cells take over rounds of finished ones; see `thiefbench.suite.execution.shared`.
        shared_gb: how much the weights may take that cells leave for one another, in 10^9 bytes.

    Returns:
        The records of all cells, in order.

    Raises:
        KeyboardInterrupt: stopped by the user; the store can be gone on from.
        OSError: the disk is full or the store cannot be written.
        WorkerError: workers cannot be started or reached.
    """
    jobs = jobs_of(suite, cells, store, retry_failed, share, shared_gb)
    if remember:
        store.write_run(run_of(suite, jobs))
    records = {spec: intact(job) for spec, job in jobs.items()}
    missing = {spec: jobs[spec] for spec in taken_up((spec for spec in jobs if records[spec] is None), share)}
    begun = {spec: rounds for spec, job in missing.items() if (rounds := checkpointed(job.directory))}
    finished_before = (record for record in records.values() if record is not None)
    measured = measured_here((each for each in finished_before if share or not rounds_taken(each)), missing)
    listener.plan(RunOutline(suite.title, list(missing), len(records) - len(missing), begun, measured))
    for spec in cells:
        if records[spec] is not None:
            _tidy(jobs[spec].directory)
    reused = [record for record in records.values() if record is not None and record.status == "ok"]
    devices = {spec.device for spec in jobs} if reused else ()
    if note := reuse_note(reused, {device: arithmetic_here(device) for device in devices}):
        listener.note(note)
    if note := threads_note(store, missing.values()):
        listener.note(note)
    stop = Stop(listener.note)

    def finished(job: Job, record: Record) -> None:
        records[job.spec] = record
        listener.finished(job.spec, record)

    with stop.listening():
        (executor or local(workers)).run(Ledger(list(missing.values()), USER_ERRORS, listener, stop, finished))
    return [record for record in records.values() if record is not None]


def taken_up(cells: Iterable[CellSpec], share: bool = True) -> list[CellSpec]:
    """Cells in the order in which they are run: who is hard to foresee comes first, the rest as it comes.

    Where the attacker asks the defense, each question is an inspection, and such a cell may take many times as long as
    one without; whoever begins it last waits for it alone. Other attacked cells grow slow or quick with what the
    defense makes of the attack. Cells without an attack, and placebos, are much alike whatever the defense. So most of
    what the time left depends on is known early.

    Where cells share rounds, that is so within a defense only: cells can take over most from the undefended one and
    from the oracle's, which come first, and those that go on at the same time should begin differently.
    """
    cells = list(cells)
    turn = {defense: place for place, defense in enumerate(dict.fromkeys(spec.defense for spec in cells))}

    def order(spec: CellSpec) -> tuple[int, int, bool, bool]:
        leads = _LEADERS.index(name) if (name := spec.defense.partition("(")[0]) in _LEADERS else len(_LEADERS)
        return (leads, turn[spec.defense], not spec.asks, spec.role != "attack")

    return sorted(cells, key=lambda spec: order(spec) if share else order(spec)[2:])


_LEADERS = ("none", "oracle")
"""Defenses that reject nothing and exactly the payload; what others take over is decided by what they do."""


def jobs_of(
    suite: Suite,
    cells: Sequence[CellSpec],
    store: Store,
    retry_failed: bool = True,
    share: bool = True,
    shared_gb: float = SHARED_GB,
) -> dict[CellSpec, Job]:
    """What there is to know of each cell before it runs; for arguments and errors see `run_suite`."""
    _check_requirements(cells)
    jobs, identities = {}, Identities()
    for spec in cells:
        what = identities.of(spec)
        recorded = suite.recorded_in(spec)
        directory, servers = store.cell(identify(what)), trust.allowed_servers()
        jobs[spec] = Job(spec, directory, what, recorded, retry_failed, servers, share, int(shared_gb * 1e9))
    return jobs


def threads_note(store: Store, missing: Iterable[Job]) -> str:
    """In one sentence, which missing cells the store has with another number of threads; empty where it has none."""

    def exists(cell_id: str) -> bool:
        return store.cell(cell_id).record_path.exists()

    if not (store.root / "cells").is_dir():
        return ""
    found = Counter(n for job in missing if (n := other_threads(job.identity, exists)) is not None)
    hints = [
        f"{count} of these exist{'s' if count == 1 else ''} with --threads {n}" for n, count in sorted(found.items())
    ]
    return f"{' and '.join(hints)}; add it to reuse {'it' if found.total() == 1 else 'them'}" if hints else ""


def intact(job: Job) -> Record | None:
    """The record of a cell that needs no more work; nothing is changed in the store."""
    try:
        record = job.directory.read()
    except BrokenRecordError:
        return None  # set aside by who holds the cell's lock
    if record is None or (record.status == "error" and job.retry_failed):
        return None
    return None if without_weights(job.directory, record, job.recorded) else record


def work_on(job: Job, listener: CellListener, stop: Stopping, wait: bool, runtime: CellRuntime = ALONE) -> Record:
    """Make what a cell lacks of record and weights, as its only process that writes; `runtime` plays along.

    Raises:
        LockedError: another process works on the cell, and `wait` is False.
        KeyboardInterrupt: `stop` said so.
    """
    with job.directory.locked(_waiting(listener, job.spec, stop) if wait else None):
        job.directory.sweep()
        # A cell that another run has just failed is not tried again at once.
        record = _finished(job.directory, listener, job.retry_failed and not wait)
        record = record or _run(job, listener, stop, runtime)
        _keep_missing_weights(job, record, listener, stop)
    return record


def _tidy(directory: CellDir) -> None:
    """Sweep a finished cell whose process was killed just before its end, unless another process works on it."""
    if directory.leftovers():
        with suppress(LockedError), directory.locked():
            directory.sweep()


def local(workers: int) -> Executor:
    """This process, or with `workers` above 1 as many beside it."""
    return WorkerPool(workers, work_on) if workers > 1 else _Here()


class _Here:
    """This process as an `Executor`: one cell after the other."""

    places = 1

    def run(self, ledger: Ledger) -> None:
        while (order := ledger.order()) is not None:
            job, waiting = order
            try:
                record = work_on(job, ledger.listener, ledger.stop, waiting)
            except LockedError:
                ledger.hear(job, "taken")
            else:
                ledger.finished(job, record)


def run_of(suite: Suite, jobs: Mapping[CellSpec, Job]) -> dict[str, Any]:
    """What a store remembers of a run, and a report reads: the suite and its cells."""
    return {
        "title": suite.title,
        "suite": asdict(suite),
        "fingerprint": suite.fingerprint(),
        "cells": [
            {
                "cell_id": job.directory.path.name, "part": suite.part_of(spec), "role": spec.role,
                "attack": spec.attack,
                "defense": spec.defense, "seed": spec.seed, "label": spec.label,
            }
            for spec, job in jobs.items()
        ],
    }  # fmt: skip


def _waiting(listener: CellListener, spec: CellSpec, stop: Stopping) -> Callable[[], None]:
    """Called while another process holds a cell's lock: says so once, and lets the user stop the wait."""
    noted = False

    def waiting() -> None:
        nonlocal noted
        if not noted:
            listener.note(f"another run on this store works on a cell; waiting for it: {spec.label}")
            noted = True
        if stop.asked:
            raise KeyboardInterrupt

    return waiting


def _run(job: Job, listener: CellListener, stop: Stopping, runtime: CellRuntime) -> Record:
    spec, directory = job.spec, job.directory

    def go() -> Record:
        def progress(done: int, total: int) -> None:
            listener.cell(spec, done, total)

        return run_cell(
            spec, job.identity, directory, progress, lambda: stop.asked, job.recorded, listener.note, runtime=runtime,
            share=job.share, shared_bytes=job.shared_bytes,
        )  # fmt: skip

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
        record = failed_record(spec, job.identity, error)
        directory.write(record)
        return record


def _keep_missing_weights(job: Job, record: Record, listener: CellListener, stop: Stopping) -> None:
    """Keep what a finished cell lacks of the weights that its suite wants recorded."""
    spec, directory = job.spec, job.directory
    missing = without_weights(directory, record, job.recorded)
    if not missing:
        return

    def progress(done: int, total: int) -> None:
        listener.cell(spec, done, total)

    left = keep_weights_of(spec, directory, missing, progress, lambda: stop.asked)
    if left:
        numbers = ", ".join(map(str, left))
        listener.note(f"{spec.label}: its rounds come out otherwise here, so round {numbers} keeps no weights")


def without_weights(directory: CellDir, record: Record, rounds: Sequence[int]) -> list[int]:
    """Those of `rounds` whose weights a finished cell lacks; a failed one has no pool to replay."""
    if not rounds or record.status == "error":
        return []
    recorded = weights.kept(directory)
    return [number for number in rounds if number not in recorded]


def _finished(directory: CellDir, listener: CellListener, retry_failed: bool) -> Record | None:
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
    tasks = {name: registry.make("task", name) for name in dict.fromkeys(spec.task for spec in cells)}
    for attack, seed, swarm, task in dict.fromkeys((spec.attack, spec.seed, spec.swarm, spec.task) for spec in cells):
        drawn(registry.make("attack", attack), seed, swarm, tasks[task])
    for swarm, name in dict.fromkeys((spec.swarm, spec.defense) for spec in cells):
        defense = registry.make("defense", name)
        check_requirements(swarm, defense)
        if "judge" in defense.requires:
            check_judge(defense)
