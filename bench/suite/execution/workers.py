"""Several processes that share the cells of a run.

The pool hands out cells one at a time and receives their progress; what a cell leaves is read from the store, where its
lock decides who works on it. A worker that dies costs no more than the rounds since its cell's last checkpoint. Workers
whose pool has gone finish their round, checkpoint and exit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from thiefbench.suite.execution.executors import RESTARTS, Ledger, WorkerError
from thiefbench.suite.execution.jobs import Job, Work
from thiefbench.suite.execution.worker_process import ONLY_FOR_WORKERS, POLL_SECONDS, serve
from thiefbench.user_imports import search_path

CONTEXT = get_context("spawn")  # torch's threads do not survive a fork


@dataclass
class _Worker:
    """A process as the pool sees it: `ready` once it takes cells, `job` what it works on."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False
    job: Job | None = None


@dataclass(frozen=True)
class WorkerPool:
    """Processes of this machine that work on cells together: an `Executor`.

    Attributes:
        places: how many.
        work: what each does with a cell.
    """

    places: int
    work: Work

    def run(self, ledger: Ledger) -> None:
        """Work on all cells; see `Executor.run`."""
        _Shift(self, ledger).run()


class _Shift:
    """A pool at work on a ledger."""

    def __init__(self, pool: WorkerPool, ledger: Ledger) -> None:
        self._pool, self._ledger = pool, ledger
        self._workers: list[_Worker] = []
        self._false_starts = 0

    def run(self) -> None:
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

    @property
    def _busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def _share_out(self) -> None:
        while self._ledger.left or self._busy:
            if self._ledger.stop.asked:
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
        wanted = min(self._pool.places, self._busy + self._ledger.left)
        with _safe_path():
            self._start(wanted)

    def _start(self, wanted: int) -> None:
        if len(self._workers) < wanted:
            resource_tracker.ensure_running()  # starting it inside would let the signals through
        while len(self._workers) < wanted:
            pipe, far_end = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(far_end, self._pool.work, search_path()))
            with _signals_held_back():
                process.start()
            far_end.close()  # so that the end of the process is the end of the pipe
            self._workers.append(_Worker(process, pipe))

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not worker.ready or worker.job:
                continue
            if (order := self._ledger.order()) is None:
                return
            worker.job, _ = order
            with suppress(OSError):  # it may have died, which its pipe will tell
                worker.pipe.send(order)

    def _hear(self, worker: _Worker, what: str, *details: Any) -> None:
        if what == "ready":
            worker.ready, self._false_starts = True, 0
            return
        job = worker.job
        assert job is not None
        if what not in ("cell", "note"):  # that was the last of it
            worker.job = None
        self._ledger.hear(job, what, *details)

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
            self._ledger.lose(worker.job, how)

    def _dismiss(self, after_error: bool = False) -> None:
        """Let every worker finish its round, checkpoint and exit; after an error their messages are ignored."""
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
        """The workers that have sent a message or have died."""
        pipes = wait([worker.pipe for worker in self._workers], timeout)
        return [worker for worker in self._workers if worker.pipe in pipes]


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that are started in the block import nothing from the current folder, which may be a stranger's."""
    if os.environ.get("PYTHONSAFEPATH"):
        yield
        return
    os.environ["PYTHONSAFEPATH"] = ONLY_FOR_WORKERS
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """A process that starts inherits the mask, so that Ctrl-C cannot end it before it decides what that means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
