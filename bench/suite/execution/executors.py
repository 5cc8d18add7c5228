"""What runs cells (`Executor`), and the list of remaining cells that every executor keeps (`Ledger`)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from thiefbench.errors import UserError
from thiefbench.locks import LockedError
from thiefbench.suite.execution.cell_identity import failed_record
from thiefbench.suite.execution.jobs import Job, Listener, Stopping
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import BrokenRecordError, Record

RESTARTS = 2


class WorkerError(UserError):
    """Workers cannot be started or reached. One sentence for the user."""


class Executor(Protocol):
    """Runs cells: in this process, in worker processes, or on a cluster."""

    @property
    def places(self) -> int:
        """How many cells it works on at the same time, as far as it knows."""

    def run(self, ledger: Ledger) -> None:
        """Work on all cells of a ledger.

        Raises:
            KeyboardInterrupt: stopped by the user; after checkpoints, if the ledger's `stop` asked for it.
            OSError: the disk is full or the store cannot be written.
            WorkerError: workers cannot be started or reached.
            UserError: a mistake of the user.
        """


class Ledger:
    """The remaining cells of a run, and the handling of workers' messages.

    Args:
        jobs: the cells, in order.
        listener: receives progress.
        stop: says whether to stop.
        finished: called with every job and its record.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        listener: Listener,
        stop: Stopping,
        finished: Callable[[Job, Record], None],
    ) -> None:
        self.listener, self.stop, self.finished = listener, stop, finished
        self._untried = deque(jobs)
        self._taken: deque[Job] = deque()  # cells that another run is working on come last
        self._deaths: Counter[CellSpec] = Counter()

    @property
    def untried(self) -> int:
        """How many cells no process works on, as far as known."""
        return len(self._untried)

    @property
    def left(self) -> int:
        """How many cells `order` would still return."""
        return len(self._untried) + len(self._taken)

    def order(self) -> tuple[Job, bool] | None:
        """The next cell and whether to wait for its lock; None if no cell is left."""
        if self._untried:
            return self._untried.popleft(), False
        return (self._taken.popleft(), True) if self._taken else None

    def hear(self, job: Job, what: str, *details: Any) -> None:
        """Handle a worker's message about its cell (see `thiefbench.suite.execution.worker_process`).

        Raises:
            OSError: the disk is full or the store cannot be written.
            UserError: a mistake of the user.
        """
        if what == "cell":
            self.listener.cell(job.spec, *details)
        elif what == "note":
            self.listener.note(*details)
        elif what == "taken":
            self._taken.append(job)
        elif what == "finished":
            self._take_in(job)
        elif what == "mistake":
            raise UserError(*details)
        elif what == "disk":
            raise OSError(*details)

    def lose(self, job: Job, how: str) -> None:
        """Try the cell of a dead worker again; after `RESTARTS` retries, record it as failed."""
        self._deaths[job.spec] += 1
        deaths = self._deaths[job.spec]
        if deaths <= RESTARTS:
            self.listener.note(f"{job.spec.label}: its worker process died {how}; another one goes on with the cell")
            self._untried.appendleft(job)
            return
        error = _DiedError(f"its worker process died {deaths} times, last {how}")
        try:
            with job.directory.locked():
                record = record_of(job)
                if record is None or record.status == "error":  # the last one may have died after its work
                    record = failed_record(job.spec, job.identity, error)
                    job.directory.write(record)
        except LockedError:
            self._taken.append(job)
        else:
            self.finished(job, record)

    def _take_in(self, job: Job) -> None:
        record = record_of(job)
        if record is None:
            self.lose(job, "without a readable record")
        else:
            self.finished(job, record)


def record_of(job: Job) -> Record | None:
    """The record that a worker has written, or None if it cannot be read."""
    try:
        return job.directory.read()
    except BrokenRecordError:
        return None


class _DiedError(Exception):
    """The error of a cell whose worker processes died."""
