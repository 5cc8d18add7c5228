"""A program in the sandbox that goes on until it is told to end, and a stream of bytes to and from it.

What `sandbox.run` is for one program, this is for one that answers many questions. Everything it sends is a stranger's:
sizes are the caller's to bound, and no wait is without an end.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from thiefbench.tasks.sandbox import Limits, RunResult, SandboxUnavailable, _Job, _Worker, _WorkerError, backend

_START = 120.0  # seconds in which a host imports what its programs need
_LEAVE = 5.0  # seconds from a closed stream to the report of how the program ended
_PART = 1 << 20


class SessionEnded(Exception):  # noqa: N818  (how a program ended, not an error of the caller)
    """A program has ended, or does not listen any more.

    Attributes:
        result: how it ended; its status is "ok" where it left by itself.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.error)
        self.result = result


class DeadlineExceeded(Exception):  # noqa: N818  (as above)
    """The time for a message is up."""


class _Open(Limits):
    """Limits without an end: whoever talks to the program decides how long it lives."""

    def __post_init__(self) -> None:
        pass


_LIFE = 20 * 86400.0  # seconds; poll(2) counts milliseconds in 32 bits


class Host:
    """A warm worker that forks sessions: each starts in milliseconds, with all that the worker has imported.

    Args:
        script: what the worker runs (see `sandbox._Worker`).
        arguments: its arguments behind the back end's name.
        environment: beside what Python needs to start.

    Raises:
        SandboxUnavailable: this machine has no working jail, or the script does not start in it.
        ValueError: `THIEFBENCH_SANDBOX` names no back end.
    """

    def __init__(self, script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.backend = backend()
        self._worker = _Worker(self.backend, script, arguments, environment, _START)
        weakref.finalize(self, self._worker.close)

    def works(self) -> bool:
        """Whether its worker runs."""
        return self._worker.works()

    def start(self, request: Mapping[str, object], memory: int, output: int) -> Session:
        """Begin a session.

        Args:
            request: what its role is told; `role` comes first.
            memory: bytes of address space on top of the worker's own.
            output: bytes that it may print.

        Raises:
            SandboxUnavailable: the worker is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                job = _Job(self._worker, request, _Open(_LIFE, memory, output), pipes=[theirs.fileno()])
            except _WorkerError:
                ours.close()
                raise SandboxUnavailable("the sandbox's worker died") from None
        return Session(self, job, ours)


class Session:
    """A running program. It dies with its host, with this process, and on `close`."""

    def __init__(self, host: Host, job: _Job, stream: socket.socket) -> None:
        self._host, self._job, self._stream = host, job, stream
        stream.setblocking(False)
        self._poll = select.poll()
        for file in job.files():
            self._poll.register(file, select.POLLIN)
        self.close = weakref.finalize(self, _close, job, stream, os.getpid())
        """End the program; may be called again."""

    def send(self, parts: Sequence[bytes], deadline: float) -> None:
        """Send bytes.

        Args:
            parts: what to send, one behind the other.
            deadline: on `time.monotonic`'s clock.

        Raises:
            SessionEnded, DeadlineExceeded: see there.
        """
        for part in parts:
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[self._stream.send(rest[:_PART]) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
                except ConnectionError:
                    self._left()

    def receive(self, size: int, deadline: float) -> bytes:
        """The next `size` bytes; raises as `send`."""
        received = bytearray()
        while len(received) < size:
            try:
                part = self._stream.recv(min(size - len(received), _PART))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except ConnectionError:
                part = b""
            if not part:
                self._left()
            received += part
        return bytes(received)

    def silent(self) -> bool:
        """Whether nothing has come that was not received."""
        with suppress(BlockingIOError, ConnectionError):
            return not self._stream.recv(1, socket.MSG_PEEK)
        return True

    def _left(self) -> NoReturn:
        """Raise SessionEnded once the program that closed its stream has ended, or soon after."""
        deadline = time.monotonic() + _LEAVE
        with suppress(DeadlineExceeded):
            while True:
                self._wait(0, deadline)
        raise SessionEnded(RunResult("ok", "", "it closed its side of the stream"))

    def _wait(self, event: int, deadline: float) -> None:
        """Come back when the stream may be ready; raises as `send`."""
        if event:
            self._poll.register(self._stream, event)
        try:
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            if event:
                self._poll.unregister(self._stream)
        files = [file for file, _ in ready]
        if event == select.POLLIN and self._stream.fileno() in files:
            return  # what it said before it ended comes first
        for file in files:
            if file != self._stream.fileno():
                self._take(file)
        if not ready:
            raise DeadlineExceeded

    def _take(self, file: int) -> None:
        try:
            if not self._job.take(file):
                self._poll.unregister(file)
        except _WorkerError:
            raise SessionEnded(RunResult("killed", "", "the sandbox's worker died")) from None
        if self._job.exit_code is not None:
            raise SessionEnded(self._job.result())


def _close(job: _Job, stream: socket.socket, owner: int) -> None:
    stream.close()
    if os.getpid() == owner:  # a fork of this process lets go of its copies only
        with suppress(OSError):
            job.__exit__()
