"""Ray as an executor: every cell a task with resources of its own, on this machine or on a cluster.

All nodes share one store. The lock in a cell's folder decides there, too, who works on it, so a task that is started
again, or a second run, never does a cell twice; and what a cell leaves, its checkpoints included, is all that a task on
another node needs to go on with it. Ray itself is told not to retry: a lost task is ordered again by the same rule, and
reported in the same words, as one of a lost process of this machine.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thiefbench.engine.spec import SpecError
from thiefbench.suite.execution.executors import Ledger, WorkerError, record_of
from thiefbench.suite.execution.jobs import Job
from thiefbench.suite.execution.ray_worker import Mailbox, work
from thiefbench.suite.execution.worker_process import POLL_SECONDS

# Nothing but plain data passes through Ray, and this is about the least it takes for its object store.
OBJECT_STORE_BYTES = 80 * 1024 * 1024

# A client of NFS may go on for acdirmax, by default 60 seconds, believing that a new file is not there (nfs(5)).
SEEN_WITHIN_SECONDS = 90.0

# Ray needs minutes to find that nobody answers at an address.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Share:
    """What a cell takes of a node.

    Attributes:
        cpus: as many as it has threads.
        gpus: 0 on CPU; a fraction lets cells share a GPU, whose memory they then must share as well.
    """

    cpus: int
    gpus: float = 0.0

    @classmethod
    def of(cls, device: str, threads: int, gpus: float | None) -> Share:
        """The share of a cell on a device; `gpus` is what the user says, None for a whole one.

        Raises:
            SpecError: device and share do not go together.
        """
        if device not in ("cpu", "cuda"):
            raise SpecError(f"with --executor ray write --device cpu or cuda, not {device}: Ray chooses which GPU")
        if gpus is not None and not 0 < gpus <= 1:
            raise SpecError(f"--gpus-per-cell must be above 0 and at most 1, as a cell runs on one GPU, not {gpus:g}")
        if device == "cpu" and gpus is not None:
            raise SpecError("--gpus-per-cell needs --device cuda, as cells on cpu use no GPU")
        return cls(threads, 0.0 if device == "cpu" else 1.0 if gpus is None else gpus)

    def places(self, cpus: float, gpus: float) -> int:
        """How many such shares a node with so many CPUs and GPUs has."""
        by_cpu = int(cpus // self.cpus)
        return min(by_cpu, int(gpus / self.gpus + 1e-9)) if self.gpus else by_cpu


class RayExecutor:
    """A Ray cluster as an `Executor`: entered with `with`, it connects, and leaves or ends the cluster after it.

    Args:
        share: what a cell takes of a node.
        address: HOST:PORT of a running cluster. None: that of the environment's RAY_ADDRESS, or else a cluster of this
            machine alone, started now and ended on leaving. A process that is connected already stays so.
    """

    def __init__(self, share: Share, address: str | None = None) -> None:
        self.share = share
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self._connected_here = False

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            WorkerError: Ray is not installed, or the cluster cannot be reached or started.
        """
        ray = _imported()
        if not ray.is_initialized():
            _connect(ray, self.address)
            self._connected_here = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connected_here:
            _imported().shutdown()

    @property
    def places(self) -> int:
        """How many cells the nodes that are there now have room for; at least 1, as nodes may join."""
        return max(1, self._room())

    def run(self, ledger: Ledger) -> None:
        """Work on all cells; see `Executor.run`."""
        if ledger.left and not self._room():
            lacking = f"no node of the Ray cluster has {self.share.cpus} CPUs"
            lacking += f" and {self.share.gpus:g} GPU for a cell" if self.share.gpus else " for a cell"
            if self.address == "local":
                raise WorkerError(f"{lacking}; write a smaller --threads, or name a cluster with --ray-address")
            ledger.listener.note(f"{lacking}: waiting for one to join")
        _Shift(self.share, ledger).run()

    def _room(self) -> int:
        nodes = [node["Resources"] for node in _imported().nodes() if node["Alive"]]
        return sum(self.share.places(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes)


@dataclass
class _Flight:
    """A task as the executor sees it: `begun` once a worker has taken it up."""

    job: Job
    ref: Any
    begun: bool = False


class _Shift:
    """A cluster at work on a ledger."""

    def __init__(self, share: Share, ledger: Ledger) -> None:
        self._ray, self._ledger = _imported(), ledger
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        # Where this process runs, so that both are lost together.
        self._mailbox = self._ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        try:
            self._ray.get(self._mailbox.collect.remote(stop=False))
        except self._ray.exceptions.RayError as error:
            raise _unable(error) from error
        self._task = self._ray.remote(work).options(num_cpus=share.cpus, num_gpus=share.gpus, max_retries=0)
        self._flights: dict[int, _Flight] = {}
        self._tickets = count()
        self._unseen: list[tuple[Job, float]] = []  # finished elsewhere; until when this machine may not see it

    def run(self) -> None:
        try:
            try:
                self._share_out()
            except Exception:
                self._dismiss(after_error=True)
                raise
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"the Ray cluster is lost ({_first_line(error)}); run the same command again") from error
        finally:  # whoever is still there is to leave at once
            for flight in self._flights.values():
                self._ray.cancel(flight.ref, force=True)
            self._ray.kill(self._mailbox)

    def _share_out(self) -> None:
        while self._ledger.left or self._flights or self._unseen:
            if self._ledger.stop.asked:
                self._dismiss()
                raise KeyboardInterrupt
            self._send_out()
            for flight in self._landed():
                self._hear_out(flight)
            self._look_for_unseen()

    def _send_out(self) -> None:
        """Order every cell, so that a cluster can grow to them; those of other runs once each of the rest has begun."""
        while self._ledger.untried or (self._ledger.left and all(flight.begun for flight in self._flights.values())):
            order = self._ledger.order()
            assert order is not None
            job, waiting = order
            ticket = next(self._tickets)
            where = (socket.gethostname(), str(Path.cwd()))
            ref = self._task.remote(job.to_json(), ticket, waiting, *where, self._mailbox)
            self._flights[ticket] = _Flight(job, ref)

    def _landed(self, stop: bool = False, deaf: bool = False) -> list[_Flight]:
        """Wait a little, hear what tasks say, and take the flights that have ended off the list."""
        tickets = {flight.ref: ticket for ticket, flight in self._flights.items()}
        if not tickets:
            time.sleep(POLL_SECONDS)
            return []
        ended, _ = self._ray.wait(list(tickets), timeout=POLL_SECONDS)
        self._listen(stop, deaf)  # only now: what a task says comes before its end
        return [self._flights.pop(tickets[ref]) for ref in ended]

    def _listen(self, stop: bool, deaf: bool) -> None:
        """Hear what tasks have said, and let them know whether to stop."""
        for ticket, what, *details in self._ray.get(self._mailbox.collect.remote(stop)):
            flight = self._flights.get(ticket)
            if flight is None:
                continue  # of a task that was given up
            if what == "begun":
                flight.begun = True
            elif not deaf:
                self._ledger.hear(flight.job, what, *details)

    def _hear_out(self, flight: _Flight) -> None:
        """How a task ended."""
        errors = self._ray.exceptions
        died = {
            errors.WorkerCrashedError: "unexpectedly",
            errors.NodeDiedError: "with its node",
            errors.OutOfMemoryError: "as its node ran out of memory",
        }
        try:
            what, *details = self._ray.get(flight.ref)
        except errors.TaskCancelledError:
            return
        except tuple(died) as error:
            self._ledger.lose(flight.job, next(how for kind, how in died.items() if isinstance(error, kind)))
        except errors.RayError as error:
            raise _unable(error) from error
        else:
            if what == "finished":
                self._unseen.append((flight.job, time.monotonic() + SEEN_WITHIN_SECONDS))
            else:
                self._ledger.hear(flight.job, what, *details)

    def _look_for_unseen(self) -> None:
        """Take in finished cells, each as soon as this machine sees its record in the store."""
        unseen, self._unseen = self._unseen, []
        for job, until in unseen:
            if record_of(job) is None and time.monotonic() < until:
                self._unseen.append((job, until))
            else:
                self._ledger.hear(job, "finished")

    def _dismiss(self, after_error: bool = False) -> None:
        """Let every task finish its round, checkpoint and exit; after an error their messages are ignored."""
        self._listen(stop=True, deaf=after_error)
        for flight in self._flights.values():
            if not flight.begun:
                self._ray.cancel(flight.ref)
        while self._flights:
            for flight in self._landed(stop=True, deaf=after_error):
                if not after_error:
                    self._hear_out(flight)
        if not after_error:
            self._look_for_unseen()


def _imported() -> Any:
    """Ray, told to stay quiet; an executor's only way to it, as the library is optional.

    Raises:
        WorkerError: it is not installed.
    """
    if find_spec("ray") is None:
        raise WorkerError(
            "--executor ray needs Ray; write pip install '.[ray]' in a checkout first, with Python 3.14 or earlier"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed")  # the ledger says it, once
    import ray
    import ray.util.scheduling_strategies

    return ray


def _connect(ray: Any, address: str) -> None:
    if "://" in address:
        raise WorkerError(
            f"{address} is not the address of a Ray cluster here; write --ray-address HOST:PORT, as `ray start --head` "
            "prints it, or run the command on the cluster with `ray job submit`"
        )
    settings: dict[str, Any] = {}
    if address == "local":
        settings = {"num_cpus": len(os.sched_getaffinity(0)), "object_store_memory": OBJECT_STORE_BYTES}
        settings |= {"include_dashboard": False}
    try:
        if ":" in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **settings)
    except (OSError, ValueError, RuntimeError) as error:  # ConnectionError is an OSError
        raise WorkerError(
            f"no Ray cluster can be used at {address} ({_first_line(error)}); write --ray-address HOST:PORT of one "
            "that runs, with the same Python and Ray and the same RAY_AUTH_MODE, or leave it out to start one here"
        ) from error


def _unable(error: BaseException) -> WorkerError:
    return WorkerError(
        f"a node of the Ray cluster cannot run cells ({_first_line(error)}); install this thiefbench, with the same "
        "Python and Ray, on every node"
    )


def _first_line(error: BaseException) -> str:
    """What an error says, in one line: of one that was raised in a task, its last."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "ray::" in lines[0] else 0].strip()
