"""Several processes that share the cells of a run.

The crew hands out cells one at a time and hears of their progress; what a cell leaves is read from the store, where
its lock decides who works on it. A worker that dies costs nothing but the rounds since its cell's last checkpoint, and
workers whose crew has gone finish their round, checkpoint and go too.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from thiefbench.suite.execution import failed_record
from thiefbench.suite.jobs import POLL_SECONDS, Job, Work, serve
from thiefbench.suite.results import BrokenRecordError, Record
from thiefbench.suite.scenario import CellSpec

if TYPE_CHECKING:
    from thiefbench.suite.runner import Listener, Stopping

CONTEXT = get_context("spawn")  # torch's threads do not survive a fork
RESTARTS = 2


class WorkerError(Exception):
    """Worker processes cannot be started. One sentence for the user."""


class _DiedError(Exception):
    """Why a cell failed whose worker processes died."""


@dataclass
class _Worker:
    """A process as its crew sees it: `ready` once it takes cells, `job` what it works on."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False
    job: Job | None = None


class Crew:
    """Processes that work on a run's cells together.

    Args:
        size: how many.
        work: what each does with a cell.
        mistakes: errors of the user that `work` may raise; they end the run.
        listener: told of progress.
        stop: asked whether to stop.
        finished: called with every job and its record.
    """

    def __init__(
        self,
        size: int,
        work: Work,
        mistakes: tuple[type[Exception], ...],
        listener: Listener,
        stop: Stopping,
        finished: Callable[[Job, Record], None],
    ) -> None:
        self._size, self._work, self._mistakes = size, work, mistakes
        self._listener, self._stop, self._finished = listener, stop, finished
        self._workers: list[_Worker] = []
        self._queue: deque[tuple[Job, bool]] = deque()  # with whether to wait for the cell's lock
        self._taken: list[Job] = []  # cells that another run works on come last
        self._deaths: Counter[CellSpec] = Counter()
        self._false_starts = 0

    def run(self, jobs: Sequence[Job]) -> None:
        """Work on all jobs.

        Raises:
            KeyboardInterrupt: stopped by the user, politely where `stop` said so.
            OSError: the disk is full or the store cannot be written.
            WorkerError: worker processes cannot be started.
            Exception: a mistake of the user.
        """
        self._queue.extend((job, False) for job in jobs)
        try:
            try:
                self._share_out()
            except Exception:
                self._dismiss(after_error=True)
                raise
        finally:  # whoever is still there is to leave at once
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()

    def _share_out(self) -> None:
        while self._queue or self._taken or any(worker.job for worker in self._workers):
            if self._stop.asked:
                self._dismiss()
                raise KeyboardInterrupt
            self._hire()
            self._hand_out()
            for worker in self._speaking(POLL_SECONDS):
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._bury(worker)
                else:
                    self._hear(worker, *message)
        self._dismiss()

    def _hire(self) -> None:
        """Start as many processes as there are cells for, with Ctrl-C kept from them."""
        busy = sum(worker.job is not None for worker in self._workers)
        wanted = min(self._size, busy + len(self._queue) + len(self._taken))
        if len(self._workers) < wanted:
            resource_tracker.ensure_running()  # starting it inside would let the signals through
        while len(self._workers) < wanted:
            pipe, far_end = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(far_end, self._work, self._mistakes))
            with _signals_held_back():
                process.start()
            far_end.close()  # so that the end of the process is the end of the pipe
            self._workers.append(_Worker(process, pipe))

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not worker.ready or worker.job:
                continue
            if not self._queue:
                self._queue.extend((job, True) for job in self._taken)
                self._taken = []
            if not self._queue:
                return
            job, waiting = self._queue.popleft()
            worker.job = job
            with suppress(OSError):  # it may have died, which its pipe will tell
                worker.pipe.send((job, waiting))

    def _hear(self, worker: _Worker, what: str, *told: Any) -> None:
        job = worker.job
        if what == "ready":
            worker.ready, self._false_starts = True, 0
            return
        assert job is not None
        if what == "cell":
            self._listener.cell(job.spec, *told)
        elif what == "note":
            self._listener.note(*told)
        elif what == "taken":
            worker.job = None
            self._taken.append(job)
        elif what == "finished":
            worker.job = None
            self._take_in(job)
        elif what == "mistake":
            kind, message = told
            raise self._mistakes[kind](message)
        elif what == "disk":
            raise OSError(*told)

    def _take_in(self, job: Job) -> None:
        """Read what a worker has finished."""
        try:
            record = job.directory.read()
        except BrokenRecordError:
            record = None
        if record is None:
            self._lose(job, "without a readable record")
        else:
            self._finished(job, record)

    def _bury(self, worker: _Worker) -> None:
        """A worker has died: its cell goes to another."""
        worker.process.join()
        self._workers.remove(worker)
        code = worker.process.exitcode or 0
        how = f"with signal {-code}" if code < 0 else f"with exit code {code}"
        if not worker.ready:
            self._false_starts += 1
            if code >= 0 or self._false_starts > RESTARTS:
                raise WorkerError(
                    f"worker processes cannot be started (the last one ended {how}); write --workers 1, or in a script "
                    'of your own call run_suite behind if __name__ == "__main__":'
                )
        if worker.job is not None:
            self._lose(worker.job, how)

    def _lose(self, job: Job, how: str) -> None:
        """Try the cell of a dead worker again, or give it up when that has happened too often."""
        self._deaths[job.spec] += 1
        deaths = self._deaths[job.spec]
        if deaths <= RESTARTS:
            self._listener.note(f"{job.spec.label}: its worker process died {how}; another one goes on with the cell")
            self._queue.appendleft((job, False))
            return
        error = _DiedError(f"its worker process died {deaths} times, last {how}")
        record = failed_record(job.spec, job.identity, error)
        try:
            with job.directory.lock().acquire(timeout=0):
                job.directory.write(record)
        except Timeout:
            self._taken.append(job)
        else:
            self._finished(job, record)

    def _dismiss(self, after_error: bool = False) -> None:
        """Let every worker finish its round, checkpoint and leave; what they say after an error is not heard."""
        for worker in self._workers:
            with suppress(OSError):  # it may have left already
                worker.pipe.send(None)
        while self._workers:
            for worker in self._speaking():
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    self._workers.remove(worker)
                else:
                    if not after_error:
                        self._hear(worker, *message)

    def _speaking(self, timeout: float | None = None) -> list[_Worker]:
        """The workers that have said something or have died."""
        pipes = wait([worker.pipe for worker in self._workers], timeout)
        return [worker for worker in self._workers if worker.pipe in pipes]


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """A process that starts inherits the mask, so that Ctrl-C cannot end it before it decides what that means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
