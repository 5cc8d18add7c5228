"""Running a suite: find missing cells, run them, and store what a report needs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from thiefbench import registry, trust
from thiefbench.averaging.compatibility import check_kind
from thiefbench.engine.compatibility import check_requirements, drawn
from thiefbench.engine.model.policy import check_directory
from thiefbench.judges import check_judge
from thiefbench.limits import SHARED_GB
from thiefbench.locks import LockedError
from thiefbench.pipeline.compatibility import check_attack
from thiefbench.provenance import check_capability
from thiefbench.reward_judges import check_reward_judge
from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.estimates.measured import measured_here
from thiefbench.suite.execution.aggregations import check_aggregation
from thiefbench.suite.execution.cell_identity import Identities, ends_run, failed_record, other_threads
from thiefbench.suite.execution.cell_run import ALONE, CellRuntime, keep_weights_of, run_cell
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.execution.executors import Executor, Ledger
from thiefbench.suite.execution.first_rounds import play_first_rounds
from thiefbench.suite.execution.jobs import CellListener, Job, Listener, Stopping
from thiefbench.suite.execution.stage_checks import check_stage_check
from thiefbench.suite.execution.workers import WorkerPool
from thiefbench.suite.fitting import attack_hint, check_probes, defense_hint, suite_hint, with_hint
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store import weights
from thiefbench.suite.store.arithmetic import computed_here, reuse_note
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, identify, rounds_taken
from thiefbench.suite.store.runs import described
from thiefbench.task_answers import check_task
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.user_frames import one_sentence
from thiefbench.zoo.models import resolve


@dataclass
class Stop:
    """Ctrl-C: the current round is finished and the cell checkpointed; a second Ctrl-C stops at once."""

    note: Callable[[str], None]
    asked: bool = field(default=False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM; do nothing outside the main thread, where that is impossible."""

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
    try_first: bool = False,
) -> list[Record]:
    """Run the missing cells of a suite.

    Args:
        suite: the suite of the cells; stored for the report.
        cells: the cells to run; `taken_up` determines their order.
        store: where records are read and written.
        listener: receives progress.
        retry_failed: run cells again whose record is an error.
        remember: store this as the last run, which a report shows.
        workers: processes that run cells at the same time; 1 runs them in this process. A script that uses more must do
            so under ``if __name__ == "__main__":``, because the processes import it.
        executor: what runs the cells instead, such as a `thiefbench.suite.execution.ray_executor.RayExecutor`.
        share: let cells take over rounds of finished ones; see `thiefbench.suite.execution.sharing.shared_rounds`.
        shared_gb: the most space for weights that cells share, in 10^9 bytes.
        try_first: play a first round with code of the user's own before anything is trained (`play_first_rounds`).

    Returns:
        The records of all cells, in order.

    Raises:
        FirstRoundError: with `try_first`, code of the user's own fails in its first round.
        KeyboardInterrupt: stopped by the user; the same call resumes.
        OSError: the disk is full or the store cannot be written.
        UsageError: torch is told to use vector instructions that this processor lacks.
        WorkerError: workers cannot be started or reached.
    """
    check_capability()
    jobs = jobs_of(suite, cells, store, retry_failed, share, shared_gb)
    if try_first:
        play_first_rounds(jobs.values(), listener.note)
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
    if note := reuse_note(reused, {device: computed_here(device) for device in devices}):
        listener.note(note)
    if note := threads_note(store, missing.values()):
        listener.note(note)
    stop = Stop(listener.note)

    def finished(job: Job, record: Record) -> None:
        records[job.spec] = record
        listener.finished(job.spec, record)

    with stop.listening():
        (executor or local(workers)).run(Ledger(list(missing.values()), listener, stop, finished))
    return [record for record in records.values() if record is not None]


def taken_up(cells: Iterable[CellSpec], share: bool = True) -> list[CellSpec]:
    """Cells in the order in which they run: those with hard-to-predict times first.

    If the attacker queries the defense, each query is an inspection, and the cell may take many times as long as
    others; if it started last, the run would wait for it alone. The time of other attacked cells depends on the effect
    of the defense. Cells without an attack, and placebos, take about the same time with every defense. So the run's
    remaining time can be estimated early.

    If cells share rounds, this order applies only within a defense: cells can take over most rounds from the undefended
    cell and from the oracle's, which come first, and cells that run at the same time should begin differently.
    """
    cells = list(cells)
    turn = {defense: place for place, defense in enumerate(dict.fromkeys(spec.defense for spec in cells))}

    def order(spec: CellSpec) -> tuple[int, int, bool, bool]:
        leads = _LEADERS.index(name) if (name := spec.defense.partition("(")[0]) in _LEADERS else len(_LEADERS)
        return (leads, turn[spec.defense], not spec.asks, spec.role != "attack")

    return sorted(cells, key=lambda spec: order(spec) if share else order(spec)[2:])


_LEADERS = ("none", "oracle")
"""Defenses that reject nothing or exactly the payload, whose rounds others can take over most often."""


def jobs_of(
    suite: Suite,
    cells: Sequence[CellSpec],
    store: Store,
    retry_failed: bool = True,
    share: bool = True,
    shared_gb: float = SHARED_GB,
    one_seed: bool = False,
) -> dict[CellSpec, Job]:
    """The job of each cell; for arguments and errors see `run_suite`.

    With `one_seed`, attacks are checked with the payload of their first seed alone: drawing all of them takes seconds,
    and a plan is to answer at once.
    """
    _check_requirements(cells, one_seed)
    jobs, identities = {}, Identities()
    for spec in cells:
        what = identities.of(spec)
        recorded = suite.recorded_in(spec)
        directory, servers = store.cell(identify(what)), trust.allowed_servers()
        jobs[spec] = Job(spec, directory, what, recorded, retry_failed, servers, share, int(shared_gb * 1e9))
    return jobs


def threads_note(store: Store, missing: Iterable[Job]) -> str:
    """One sentence about missing cells that the store has with another number of threads; empty if there are none."""

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
    """The record of a cell that needs no more work; does not change the store."""
    try:
        record = job.directory.read()
    except BrokenRecordError:
        return None  # the holder of the cell's lock sets it aside
    if record is None or (record.status == "error" and job.retry_failed):
        return None
    return None if without_weights(job.directory, record, job.recorded) else record


def work_on(job: Job, listener: CellListener, stop: Stopping, wait: bool, runtime: CellRuntime = ALONE) -> Record:
    """Create a cell's missing record and weights, as the only process that writes; `runtime` takes part.

    Raises:
        LockedError: another process works on the cell, and `wait` is False.
        KeyboardInterrupt: `stop` said so.
    """
    with job.directory.locked(_waiting(listener, job.spec, stop) if wait else None):
        job.directory.sweep()
        # A cell that has just failed in another run is not tried again at once.
        record = _finished(job.directory, listener, job.retry_failed and not wait)
        record = record or _run(job, listener, stop, runtime)
        _keep_missing_weights(job, record, listener, stop)
    return record


def _tidy(directory: CellDir) -> None:
    """Clean up a finished cell whose process was killed just before its end, unless another process works on it."""
    if directory.leftovers():
        with suppress(LockedError), directory.locked():
            directory.sweep()


def local(workers: int) -> Executor:
    """This process as an executor or, with `workers` above 1, that many worker processes."""
    return WorkerPool(workers, work_on) if workers > 1 else _Here()


class _Here:
    """This process as an `Executor`: one cell after the other."""

    places = 1

    def run(self, ledger: Ledger) -> None:
        while (order := ledger.order()) is not None:
            if ledger.stop.asked:  # in a cell that failed before it noticed
                raise KeyboardInterrupt
            job, waiting = order
            try:
                record = work_on(job, ledger.listener, ledger.stop, waiting)
            except LockedError:
                ledger.hear(job, "taken")
            else:
                ledger.finished(job, record)


def run_of(suite: Suite, jobs: Mapping[CellSpec, Job]) -> dict[str, Any]:
    """The description of a run for the store, which a report reads: the suite and its cells."""
    return described(suite, {spec: job.directory.path.name for spec, job in jobs.items()})


def _waiting(listener: CellListener, spec: CellSpec, stop: Stopping) -> Callable[[], None]:
    """Called while another process holds a cell's lock: tells the user once, and lets them stop the wait."""
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
        return directory.from_intact(go, listener.note)
    except (Exception, SystemExit) as error:  # a defense that exits must not end the run as if all went well
        if ends_run(error):
            raise
        record = failed_record(spec, job.identity, error)
        directory.write(record)
        return record


def _keep_missing_weights(job: Job, record: Record, listener: CellListener, stop: Stopping) -> None:
    """Store the weights that a finished cell lacks and its suite wants recorded."""
    spec, directory = job.spec, job.directory
    missing = without_weights(directory, record, job.recorded)
    if not missing:
        return

    def progress(done: int, total: int) -> None:
        listener.cell(spec, done, total)

    left = keep_weights_of(spec, directory, missing, progress, lambda: stop.asked)
    if left:
        numbers = ", ".join(map(str, left))
        listener.note(
            f"{spec.label}: its rounds differ from the stored ones here; no weights are kept for round {numbers}"
        )


def without_weights(directory: CellDir, record: Record, rounds: Sequence[int]) -> list[int]:
    """Those of `rounds` whose weights a finished cell lacks; a failed one has no pool to replay."""
    if not rounds or record.status == "error":
        return []
    recorded = weights.kept(directory)
    return [number for number in rounds if number not in recorded]


def _finished(directory: CellDir, listener: CellListener, retry_failed: bool) -> Record | None:
    """The cell's record if it is intact; a broken one is set aside."""
    try:
        record = directory.read()
    except BrokenRecordError as error:
        listener.note(f"{error}; set aside as {directory.set_aside().name}, the cell runs again")
        return None
    return None if record is not None and record.status == "error" and retry_failed else record


@torch_settings_kept()
def _check_requirements(cells: Sequence[CellSpec], one_seed: bool) -> None:
    """Fail before the first round if a swarm lacks what a defense requires or an attack does not fit."""
    for model in {spec.model for spec in cells}:
        check_directory(resolve(model))
    tasks = {name: registry.make("task", name) for name in dict.fromkeys(spec.task for spec in cells)}
    with one_sentence():
        for each in tasks.values():
            check_task(each)
    for swarm in dict.fromkeys(spec.swarm for spec in cells):
        check_reward_judge(swarm)
    drawn_once = set()
    for attack, seed, swarm, task in dict.fromkeys((spec.attack, spec.seed, spec.swarm, spec.task) for spec in cells):
        if not (one_seed and (attack, swarm, task) in drawn_once):
            with with_hint(partial(attack_hint, attack, swarm, task)):
                member = drawn(registry.make("attack", attack), seed, swarm, tasks[task])
            with one_sentence():
                check_probes(member, tasks[task])
            drawn_once.add((attack, swarm, task))
    for experts, swarm, task in dict.fromkeys((spec.experts, spec.swarm, spec.task) for spec in cells):
        if experts:
            experts.check_task(swarm, tasks[task])
    for averaging, pipeline, name in dict.fromkeys((spec.averaging, spec.pipeline, spec.attack) for spec in cells):
        with with_hint(partial(suite_hint, name)):
            check_kind(averaging, registry.make("attack", name), name)
            check_attack(pipeline, registry.make("attack", name), name)
    kinds = dict.fromkeys((spec.swarm, spec.averaging, spec.pipeline, spec.defense) for spec in cells)
    for swarm, averaging, pipeline, name in kinds:
        defense = registry.make("defense", name)
        with with_hint(partial(defense_hint, name)):
            if pipeline:
                check_stage_check(defense, name)
                continue
            if averaging:
                check_aggregation(defense, name)
                continue
            check_requirements(swarm, defense)
        if "judge" in defense.requires:
            check_judge(defense)
