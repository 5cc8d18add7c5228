"""What runs on a Ray cluster: one task for each cell, and a mailbox between the tasks and the executor.

Only plain data passes through Ray: text, numbers and tuples of them. Heavy modules are imported by the task alone, so
that the mailbox's process stays small.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thiefbench.suite.execution.jobs import CellListener, Job, Stopping
    from thiefbench.suite.scenario import CellSpec
    from thiefbench.suite.store.records import Record


class Mailbox:
    """Keeps the messages of tasks until the executor collects them, and whether they are to stop: a Ray actor."""

    def __init__(self) -> None:
        self._said: list[tuple[Any, ...]] = []
        self._stop = False

    def tell(self, ticket: int, *message: Any) -> bool:
        """Leave a task's message; returns whether the task should stop."""
        self._said.append((ticket, *message))
        return self._stop

    def asked(self) -> bool:
        """Whether tasks should stop."""
        return self._stop

    def collect(self, stop: bool) -> list[tuple[Any, ...]]:
        """The messages since the last call; `stop` is what tasks are to be told from now on."""
        messages, self._said, self._stop = self._said, [], stop
        return messages


def work(order: str, ticket: int, waiting: bool, host: str, folder: str, mailbox: Any) -> tuple[Any, ...]:
    """Work on a cell: the Ray task.

    Args:
        order: the job as `Job.to_json` writes it.
        ticket: names the task in its messages.
        waiting: whether to wait for the cell's lock.
        host, folder: where the run was started; plugins may be named relative to that folder.
        mailbox: the handle of a `Mailbox`.

    Returns:
        How it ended, as `thiefbench.suite.execution.worker_process` has it.
    """
    import ray

    overseer = _Executor(ticket, mailbox, ray.exceptions.RayActorError)
    overseer.tell("begun")
    if overseer.asked:
        return ("stopped",)

    from thiefbench.suite.execution.jobs import Job
    from thiefbench.suite.execution.runner import work_on
    from thiefbench.suite.execution.worker_process import worked

    def checked_work(job: Job, listener: CellListener, stop: Stopping, wait: bool) -> Record:
        if socket.gethostname() != host:
            check_node(job)
        return work_on(job, listener, stop, wait)

    with suppress(OSError):  # a folder that only the other machine has is missed when a plugin in it is
        os.chdir(folder)
    return worked(Job.from_json(order), waiting, overseer, checked_work)


def check_node(job: Job) -> None:
    """Compare what this machine would run with what the machine that started the run has.

    Raises:
        SpecError: plugins, data, weights or the engine differ here, so the cell would be another.
    """
    from thiefbench.engine.spec import SpecError
    from thiefbench.suite.execution.cell_identity import identity

    here = identity(job.spec)
    other = [name.replace("_", " ") for name, value in job.identity.items() if here.get(name) != value]
    if other:
        raise SpecError(
            f"the node {socket.gethostname()} has another {', another '.join(other)} than the machine of this run "
            f"({job.spec.label}); install the same thiefbench and plugins and give the same files to every node"
        )


class _Executor:
    """The executor as a task sees it, a `JobListener`: a call returns once the mailbox has the message.

    Answers are waited for by `future`, as `ray.get` in a task lends its CPUs to other tasks until it returns, which Ray
    then runs beside this one to their end.
    """

    def __init__(self, ticket: int, mailbox: Any, gone: type[Exception]) -> None:
        self._ticket, self._mailbox, self._dead = ticket, mailbox, gone
        self._gone = False

    @property
    def asked(self) -> bool:
        """Whether the executor says stop, or has gone."""
        return self._ask(lambda: self._mailbox.asked.remote())

    def tell(self, *message: Any) -> None:
        """Send plain data."""
        self._ask(lambda: self._mailbox.tell.remote(self._ticket, *message))

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A round has been finished."""
        self.tell("cell", done, total)

    def note(self, message: str) -> None:
        """Something the user should know."""
        self.tell("note", message)

    def _ask(self, call: Callable[[], Any]) -> bool:
        if not self._gone:
            try:
                return bool(call().future().result())
            except self._dead:
                self._gone = True
        return True
