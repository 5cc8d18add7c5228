"""The process group of a swarm's ranks: they exchange byte strings, and errors name lost ranks.

The backend is gloo on every device: the messages are a few hundred kilobytes of token ids in main memory, two ranks may
share a GPU (which NCCL refuses), and a lost rank is an error that can be recorded, where NCCL's watchdog ends the
process. There is no time limit for a working rank. Each rank sends a heartbeat every second from a thread of its own. A
rank that is silent for `timeout` seconds, because it was stopped or cut off, is lost; one whose connection breaks is
lost at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from thiefbench.engine.backends.heartbeat import Heartbeat
from thiefbench.engine.backends.messages import Halt, MessageError, decode, halt, halted
from thiefbench.engine.spec import SpecError

# Messages between two cells are shorter.
IDLE_BYTES = 1 << 16
# A broadcast goes in parts, so that a rank never holds a second copy of a checkpoint.
PART_BYTES = 1 << 26
# Gloo's own limit also counts the time that the slowest rank works, so it must never be reached.
NEVER = timedelta(days=30)
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NAMING_SECONDS = _LEAVING_SECONDS = 10.0


class RankLostError(RuntimeError):
    """A rank died, hangs or cannot be reached; the process group can no longer be used."""


class RankFailedError(RuntimeError):
    """Something failed on another rank."""


class RankStoppedError(KeyboardInterrupt):
    """Another rank was stopped, so all stop; the current round has not changed anything."""


@dataclass(frozen=True)
class Launch:
    """This process's position among those that torchrun started.

    Attributes:
        rank: its number.
        size: the number of ranks.
        local_rank: its number on this machine.
        local_size: the number of ranks on this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def of_environment(cls) -> Launch | None:
        """Read from the environment variables that torchrun or a similar program sets; None without them.

        Raises:
            SpecError: the environment's values are not numbers.
        """
        if not all(name in os.environ for name in ENVIRONMENT):
            return None
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            launch = cls(rank, size, int(os.environ.get("LOCAL_RANK", rank)),
                       int(os.environ.get("LOCAL_WORLD_SIZE", size)))  # fmt: skip
        except ValueError:
            raise SpecError("RANK and WORLD_SIZE in the environment are not numbers; start with torchrun") from None
        return launch if size > 1 or "TORCHELASTIC_RUN_ID" in os.environ else None


class ProcessGroup:
    """All-gather and broadcast of byte strings over a process group.

    Every rank calls the same methods in the same order. A rank that cannot continue calls `gather` once more with a
    halt, which all others receive in their current `gather`: see `halting`.

    Attributes:
        rank, size: see `Launch`.
        limit: the longest message, in bytes; all ranks change it at the same point.
        lost: whether the group can no longer be used.
    """

    def __init__(self, rank: int, size: int, heartbeat: Heartbeat) -> None:
        self.rank, self.size = rank, size
        self.limit = IDLE_BYTES
        self.lost = False
        self._heartbeat = heartbeat

    @classmethod
    def join(cls, launch: Launch, timeout: float) -> ProcessGroup:
        """Meet the other ranks at the address that the environment names.

        Raises:
            RankLostError: they do not arrive within `timeout` seconds.
        """
        try:
            patience = timedelta(seconds=timeout)
            store, _, _ = next(rendezvous("env://", timeout=patience))
            own_store = store.clone()
            own_store.set(f"beat/{launch.rank}", "0")
            own_store.wait([f"beat/{other}" for other in range(launch.size)], patience)
            dist.init_process_group(
                "gloo", store=PrefixStore("swarm", store), rank=launch.rank, world_size=launch.size, timeout=NEVER
            )
        except (RuntimeError, ValueError) as error:
            raise RankLostError(
                f"the ranks did not meet within {timeout:g} seconds; see that all were started, with one master address"
            ) from error
        heartbeat = Heartbeat(own_store, launch.rank, launch.size, timeout)
        heartbeat.start()
        return cls(launch.rank, launch.size, heartbeat)

    def gather(self, message: bytes, where: str) -> list[bytes | None]:
        """The messages of all ranks, by rank; None for a rank whose message is longer than `limit` bytes.

        Args:
            message: this rank's.
            where: text for errors, such as "in round 3".

        Raises:
            ValueError: this rank's message is too long.
            RankLostError: a rank is lost.
            RankStoppedError, RankFailedError: a rank halts.
        """
        messages = self._all_gather(message, where)
        others = {rank: _halt_in(data) for rank, data in enumerate(messages) if data and rank != self.rank}
        halts = {rank: report for rank, report in others.items() if report is not None}
        failed = [f"rank {rank}: {report.reason}" for rank, report in halts.items() if report.why == "failed"]
        if failed:
            raise RankFailedError(f"{failed[0]} ({where})")
        if halts:
            raise RankStoppedError
        return messages

    def broadcast(self, data: bytes | None, size: int, where: str) -> bytes:
        """`size` bytes from rank 0; only rank 0 passes `data`."""
        received = bytearray(data if data is not None else size)
        whole = torch.frombuffer(received, dtype=torch.uint8) if size else torch.zeros(0, dtype=torch.uint8)
        for start in range(0, size, PART_BYTES):
            self._finish(lambda at=start: dist.broadcast(whole[at : at + PART_BYTES], 0, async_op=True), where)
        return bytes(received)

    @contextmanager
    def halting(self, where: str) -> Iterator[None]:
        """Tell the other ranks if something fails in the `with` block, or stops it."""
        try:
            yield
        except (RankLostError, RankFailedError, RankStoppedError):
            raise
        except BaseException as error:
            if not self.lost:
                stopped = isinstance(error, KeyboardInterrupt)
                message = halt("stopped" if stopped else "failed", f"{type(error).__name__}: {error}")
                self._all_gather(message, where)
            raise

    def leave(self) -> None:
        """Leave without an error; the rank that keeps the store waits for the others."""
        self._heartbeat.end()
        if self.lost:
            atexit.register(_end_at_once)
            return
        self._heartbeat.part(_LEAVING_SECONDS)
        dist.destroy_process_group()

    def _all_gather(self, message: bytes, where: str) -> list[bytes | None]:
        if len(message) > self.limit:
            raise ValueError(f"a message of {len(message)} bytes, where {self.limit} is the limit")
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        own_size = torch.tensor([len(message)])
        self._finish(lambda: dist.all_gather(sizes, own_size, async_op=True), where)
        lengths = [int(size) for size in sizes]
        sound = [0 <= length <= self.limit for length in lengths]
        width = max([1, *(length for length, fits in zip(lengths, sound, strict=True) if fits)])
        padded = torch.zeros(width, dtype=torch.uint8)
        if message:
            padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        self._finish(lambda: dist.all_gather(gathered, padded, async_op=True), where)
        return [
            data[:length].numpy().tobytes() if fits else None
            for data, length, fits in zip(gathered, lengths, sound, strict=True)
        ]

    def _finish(self, begin: Any, where: str) -> None:
        """Run a collective to its end, watching the others meanwhile."""
        pause = 0.0002
        try:
            work = begin()
            while not work.is_completed():
                time.sleep(pause)
                pause = min(1.5 * pause, 0.02)
                if quiet := self._heartbeat.silent():
                    raise self._loss(quiet, "stands still or cannot be reached", where)
                if self._heartbeat.broken:
                    raise self._loss((), "", where)
            work.wait()
        except RankLostError:
            raise
        except RuntimeError as error:
            raise self._loss(self._broken_off(), "died or lost its connection", where) from error
        except BaseException:
            self.lost = True  # a collective that was begun cannot be taken back
            raise

    def _broken_off(self) -> Sequence[int]:
        """The ranks whose connection broke: those whose heartbeat stops, without those that leave because of it."""
        until = time.monotonic() + _NAMING_SECONDS
        while time.monotonic() < until and not self._heartbeat.broken:
            if quiet := self._heartbeat.stopped():
                return quiet
            time.sleep(0.05)
        return []

    def _loss(self, ranks: Sequence[int], how: str, where: str) -> RankLostError:
        self.lost = True
        if not ranks:
            return RankLostError(f"a rank died or lost its connection {where}; run the same command again to go on")
        named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}: each"
        return RankLostError(f"{named} {how} {where}; run the same command again to go on")


def _end_at_once() -> None:
    """End the process with exit code 1: torch would first wait for a collective that a lost rank never ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _halt_in(data: bytes) -> Halt | None:
    if not data.startswith(b'{"what":"halt"'):  # all other messages are decoded once, by their reader
        return None
    try:
        return halted(decode(data))
    except MessageError:
        return None
