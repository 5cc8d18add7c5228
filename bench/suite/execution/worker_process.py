"""A process that works on cells until its pool says stop or has gone, and the messages that it sends.

A worker sends `("cell", done, total)` and `("note", message)` while it works on a cell, and at the end one of these:
`("finished",)`, `("taken",)` where another process works on it, `("stopped",)`, `("mistake", message)` for an
error of the user, or `("disk", errno, message, file)`.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from thiefbench import registry, trust
from thiefbench.engine.spec import SpecError
from thiefbench.errors import UserError
from thiefbench.locks import LockedError
from thiefbench.suite.execution.jobs import Job, JobListener, Work
from thiefbench.suite.scenario import CellSpec
from thiefbench.user_imports import set_search_path

POLL_SECONDS = 0.5
ONLY_FOR_WORKERS = "workers"
"""What PYTHONSAFEPATH says where a pool has set it; Python takes any text. Processes of plugins do not see it."""
STOPPED = ("stopped",)


class _Parent:
    """The pool as a worker sees it: a `JobListener`."""

    def __init__(self, pipe: Connection) -> None:
        parent = parent_process()
        assert parent is not None
        self._pipe, self._pid, self._gone = pipe, parent.pid, False

    @property
    def asked(self) -> bool:
        """Whether the pool says stop, or has gone."""
        if not self._gone and (os.getppid() != self._pid or self._pipe.poll()):
            self._gone = True  # stop is all that the pool sends to a worker at work
        return self._gone

    def order(self) -> tuple[Job, bool] | None:
        """The next cell and whether to wait for its lock; None to leave."""
        while not self._pipe.poll(POLL_SECONDS):
            if os.getppid() != self._pid:
                return None
        try:
            order: tuple[Job, bool] | None = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return order

    def tell(self, *message: Any) -> None:
        """Send plain data."""
        try:
            self._pipe.send(message)
        except OSError:
            self._gone = True

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A round has been finished."""
        self.tell("cell", done, total)

    def note(self, message: str) -> None:
        """Something the user should know."""
        self.tell("note", message)


def serve(pipe: Connection, work: Work, places: tuple[str, ...]) -> None:
    """Work on cells until the pool says stop or has gone: the main function of a worker process.

    Args:
        pipe: to the pool.
        work: what to do with a cell.
        places: where the pool's process looks for modules of the user, see `user_imports.set_search_path`.
    """
    set_search_path(places)
    if os.environ.get("PYTHONSAFEPATH") == ONLY_FOR_WORKERS:
        del os.environ["PYTHONSAFEPATH"]
    for number in (signal.SIGINT, signal.SIGTERM):
        # The pool decides what these mean. No SIG_IGN, which programs started from here would inherit.
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    pool = _Parent(pipe)
    pool.tell("ready")
    while (order := pool.order()) is not None:
        job, waiting = order
        ended = worked(job, waiting, pool, work)
        if ended == STOPPED:
            return
        pool.tell(*ended)


def worked(job: Job, waiting: bool, overseer: JobListener, work: Work) -> tuple[Any, ...]:
    """Work on a cell and say how it ended; exceptions travel as plain data, as plugins may define their own."""
    try:
        with trust.checked_elsewhere(job.servers):
            check_sources(job)
            work(job, overseer, overseer, waiting)
    except KeyboardInterrupt:
        return STOPPED
    except LockedError:
        return ("taken",)
    except UserError as error:
        return ("mistake", str(error))
    except OSError as error:
        return ("disk", error.errno, error.strerror or str(error), error.filename and str(error.filename))
    return ("finished",)


def check_sources(job: Job) -> None:
    """Compare the files that this process has loaded with those of the cell's identity.

    Raises:
        SpecError: a file was edited after the run began, so the cell's identity would be another.
    """
    for kind, expected in job.identity["sources"].items():
        spec = getattr(job.spec, kind)
        if _source_hash(kind, spec) != expected:
            raise SpecError(f"the files of the {kind} {spec} were edited during the run; run the same command again")


@cache
def _source_hash(kind: registry.Kind, spec: str) -> str:
    """As it was when loaded: a later edit changes nothing for this process."""
    return registry.source_hash(kind, spec)
