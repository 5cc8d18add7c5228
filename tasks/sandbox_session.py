"""A program in the sandbox that runs until it is stopped, with a stream of bytes to and from it.

`sandbox.run` runs a program to its end; a session talks to a program that answers many questions. Everything that the
program sends is untrusted: callers must bound sizes, and every wait has a deadline.
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

_START = 120.0  # seconds that a host may take to import what its programs need
_LEAVE = 5.0  # seconds between a closed stream and the report of how the program ended
_PART = 1 << 20


class SessionEnded(Exception):  # noqa: N818  (how a program ended, not an error of the caller)
    """A program has ended, or has closed its stream.

    Attributes:
        result: how it ended; its status is "ok" if it closed the stream by itself.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.error)
        self.result = result


class DeadlineExceeded(Exception):  # noqa: N818  (as above)
    """The deadline for a message has passed."""


class _Open(Limits):
    """Limits without a bound on time: the caller decides how long the program runs."""

    def __post_init__(self) -> None:
        pass


_LIFE = 20 * 86400.0  # seconds; poll(2) counts milliseconds in 32 bits


class Host:
    """A warm worker that forks sessions. Each starts in milliseconds, with everything that the worker has imported.

    Args:
        script: the script that the worker runs (see `sandbox._Worker`).
        arguments: the script's arguments after the name of the back end.
        environment: environment variables besides those that Python needs to start.

    Raises:
        SandboxUnavailable: this machine has no working jail, or the script does not start in it.
        ValueError: `THIEFBENCH_SANDBOX` names no back end.
    """

    def __init__(self, script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.backend = backend()
        self._worker = _Worker(self.backend, script, arguments, environment, _START)
        weakref.finalize(self, self._worker.close)

    def works(self) -> bool:
        """Whether its worker is running."""
        return self._worker.works()

    def start(self, request: Mapping[str, object], memory: int, output: int) -> Session:
        """Start a session.

        Args:
            request: `role`, and then the arguments of that role's function, in order.
            memory: bytes of address space on top of the worker's.
            output: bytes that the program may print.

        Raises:
            SandboxUnavailable: the worker has ended.
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
    """A running program. It ends with its host, with this process, and on `close`."""

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
            parts: what to send, one after the other.
            deadline: on the clock of `time.monotonic`.

        Raises:
            SessionEnded: the program has ended or closed its stream.
            DeadlineExceeded: it did not take all bytes before the deadline.
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
        """The next `size` bytes; raises like `send`."""
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
        """Whether there is nothing to receive at the moment."""
        with suppress(BlockingIOError, ConnectionError):
            return not self._stream.recv(1, socket.MSG_PEEK)
        return True

    def _left(self) -> NoReturn:
        """Raise SessionEnded when the program that closed its stream has ended, or after `_LEAVE` seconds."""
        deadline = time.monotonic() + _LEAVE
        with suppress(DeadlineExceeded):
            while True:
                self._wait(0, deadline)
        raise SessionEnded(RunResult("ok", "", "it closed its side of the stream"))

    def _wait(self, event: int, deadline: float) -> None:
        """Return when the stream may be ready; raises like `send`."""
        if event:
            self._poll.register(self._stream, event)
        try:
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            if event:
                self._poll.unregister(self._stream)
        files = [file for file, _ in ready]
        if event == select.POLLIN and self._stream.fileno() in files:
            return  # first read what it sent before it ended
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
    if os.getpid() == owner:  # a fork of this process only closes its copies
        with suppress(OSError):
            job.__exit__()
