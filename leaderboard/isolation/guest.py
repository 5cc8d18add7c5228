"""A process in which a stranger's class runs in the sandbox, and the conversation with it.

All kinds of guests, defenses (`isolated`), aggregations (`isolated_aggregation`), stage checks (`isolated_stage_check`)
and attacks (`isolated_attack`), are talked to in the same way: a request is sent, the questions that the guest puts on
the way are answered by whoever made the request, and its reply is returned. Whatever it sends is data to be checked.
The first thing wrong ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol
from weakref import WeakValueDictionary

from thiefbench.leaderboard.isolation import _isolated_worker, wire
from thiefbench.leaderboard.isolation.frames import HEADER, Array, FrameError, packed, sizes, unpacked
from thiefbench.leaderboard.isolation.limits import Caps
from thiefbench.leaderboard.isolation.sandbox_paths import (
    Guests,
    absolute,
    files,
    left_behind,
    missed_file,
    setup,
    weights,
)
from thiefbench.leaderboard.isolation.wire import Malformed
from thiefbench.provenance import CAPABILITY
from thiefbench.sources import is_of_package, source_files
from thiefbench.tasks.sandbox import SandboxUnavailable, backend
from thiefbench.tasks.sandbox_session import DeadlineExceeded, Host, Session, SessionEnded

_MAKING = "making it"
_REFUSED = ("RuntimeError: can't start new thread", "PermissionError: [Errno 1] Operation not permitted")
"""How errors begin in a guest that starts a thread or a process, or opens a socket."""
_REFUSED_TO_LIBRARIES = ("Thread creation failed", "pthread_create")
"""What libraries print that end the process where they cannot start a thread."""
_WORKER_DIED = "the sandbox's worker died"
"""What a session says whose worker has ended (`thiefbench.tasks.sandbox_session`)."""
_NO_THREADS = "a submission starts no threads and no processes, and opens no connections"
LONGEST_NAME = 200
"""Characters of a guest's name."""


Said = bytes
"""A hash of all that a guest has heard and said, then one of what it said next, each of `HASH_BYTES`; in one object, as
there may be millions."""
HASH_BYTES = 16


def contradictory(*guests: Iterable[Said]) -> bool:
    """Whether guests of one class that heard and said the same so far went on otherwise.

    Nothing that a guest is told leads it to do so: it has found out where it is by something else, such as a clock.
    """
    said: dict[bytes, Said] = {}
    return any(said.setdefault(each[:HASH_BYTES], each) != each for guest in guests for each in guest)


class Answers(Protocol):
    """Answers the questions that a guest asks during a request."""

    def answer(self, question: Mapping[str, Any]) -> list[bytes]:
        """The answer as a message; raises Malformed for a question that is not allowed."""


class Guest:
    """A sandboxed process with a stranger's object.

    Attributes:
        kind: of the object.
        fault: the exception for whatever the guest does wrong.
        asking: the requests during which it may ask questions, for messages.
        arrays: how many of them one of its messages may hold; where it is not 0, every message has them as "arrays".
        spec, caps: which class, and what it may use.
        name: of the object, for messages.
        seconds: of the guest's own time in the last request, without the answers to its questions.
        memory: peak memory of the process in bytes, as it reports it.
        said: what it said and after what (`contradictory`), if that is to be kept.
    """

    kind: ClassVar[Guests]
    fault: ClassVar[type[Exception]]
    asking: ClassVar[str]
    arrays: ClassVar[int] = 0
    spec: str
    caps: Caps
    name: str
    said: set[Said] | None = None
    _host: Host
    _error: Exception | None
    _so_far: bytes = b""

    def close(self) -> None:
        """End the process; every further request raises an error."""
        self._error = self._error or self.fault(f"the {self.kind} {self.name} was closed")
        self._session.close()

    def _open(self) -> dict[str, Any]:
        """Start the process; returns what it says of the object that it made."""
        self.seconds, self.memory = 0.0, 0
        self._error = None
        self._number = 0
        self._session: Session = self._host.start(
            {"role": self.kind, "spec": absolute(self.spec, self.kind), "most": self.caps.message},
            self.caps.memory,
            self.caps.printed,
        )
        description = self._exchange(_MAKING, None, [], min(self.caps.making_seconds, self.caps.seconds), None)
        name = description.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not wire.is_whole(name):
            self._fail(f"has a name that is not text of 1 to {LONGEST_NAME} whole characters")
        self.name = name
        return description

    def _call(
        self,
        call: str,
        request: Mapping[str, Any],
        arrays: Sequence[Array] = (),
        seconds: float | None = None,
        services: Answers | None = None,
    ) -> dict[str, Any]:
        """Send a request to the process, answer its questions meanwhile, and return its reply."""
        if self._error is not None:
            raise self._error
        if not self._session.silent():
            self._fail("sent a message without a request")
        self._number += 1
        message = packed({"call": call, "number": self._number, **request}, arrays)
        return self._exchange(call, self._number, message, seconds or self.caps.seconds, services)

    def _exchange(
        self, what: str, number: int | None, message: Sequence[bytes], seconds: float, services: Answers | None
    ) -> dict[str, Any]:
        """Send a message and answer questions until the reply comes; only the process's own time counts."""
        left = seconds
        while True:
            began = time.monotonic()
            reply = self._guarded(what, seconds, partial(self._turn, message, began + left))
            left -= time.monotonic() - began
            self._note(message, reply)
            if "ask" in reply:
                if services is None:
                    self._fail(f"asked a question in {what}, where only {self.asking} may")
                try:
                    message = services.answer(reply)
                except Malformed as error:
                    self._fail(f"sent {error}")
                except BaseException:
                    self.close()  # the engine's error, not the guest's; its question will not be answered
                    raise
                continue
            if reply.get("number") != (number or 0):
                self._fail(f"gave a reply in {what} that belongs to no request")
            if "failed" in reply:
                self._failed(what, wire.shown(reply["failed"], 600))
            self.seconds = seconds - left
            held = reply.get("memory")
            self.memory = max(self.memory, held) if type(held) is int and 0 <= held < 2**50 else self.memory
            return reply

    def _note(self, message: Sequence[bytes] | None, reply: Mapping[str, Any]) -> None:
        """Keep what the guest said after everything that it had heard and said, but for what it used."""
        if self.said is None:
            return
        arrays: Sequence[Array] = reply["arrays"] if self.arrays else ()  # others may call anything so
        own = ("memory", "arrays") if self.arrays else ("memory",)
        told = {name: value for name, value in reply.items() if name not in own}
        words = json.dumps(told, sort_keys=True).encode() + b"".join(bytes(each) for each in arrays)
        heard = hashlib.sha256(self._so_far + b"".join(message or ())).digest()[:HASH_BYTES]
        self._so_far = heard + hashlib.sha256(words).digest()[:HASH_BYTES]
        self.said.add(self._so_far)

    def _turn(self, message: Sequence[bytes], deadline: float) -> dict[str, Any]:
        self._session.send(message, deadline)
        text, blob = sizes(self._session.receive(HEADER.size, deadline), self.caps.message)
        # Most guests have no arrays to send, and many small ones would cost much.
        content = self._session.receive(text, deadline), self._session.receive(blob, deadline)
        reply, arrays = unpacked(*content, most=self.arrays)
        return reply | {"arrays": arrays} if self.arrays else reply

    def _guarded(self, what: str, seconds: float, turn: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return turn()
        except DeadlineExceeded:
            if what == _MAKING:
                self._fail(
                    f"took more than {seconds:g} seconds to be loaded and constructed; end what loops there, or do it "
                    "later"
                )
            self._fail(f"took more than {seconds:g} seconds of its own for {what}")
        except FrameError as error:
            self._fail(f"sent {error} (in {what})")
        except SessionEnded as ended:
            if ended.result.error == _WORKER_DIED:  # that is no fault of the guest
                self.close()
                raise SandboxUnavailable(
                    f"{_WORKER_DIED}, as by too little memory; run the same command again"
                ) from None
            self._fail(self._ended(what, ended))

    def _ended(self, what: str, ended: SessionEnded) -> str:
        ran = ended.result
        if ran.status == "memory":
            return f"ran out of memory in {what}: it may use {self.caps.memory >> 20:,} MiB"
        if ran.status == "output":
            return f"printed more than {self.caps.printed:,} bytes"
        if ran.status == "killed":
            return f"was killed in {what} ({ran.error}), as by too much memory or a broken extension module"
        starts = f"; {_NO_THREADS}" if any(refused in ran.error for refused in _REFUSED_TO_LIBRARIES) else ""
        return f"ended its own process in {what}" + (f": {ran.error}{starts}" if ran.error else "")

    def _failed(self, what: str, why: str) -> NoReturn:
        """As `_fail`, with the guest's own words. One that was never constructed has no name to call it by."""
        if why.startswith(MemoryError.__name__):
            why += f"; it may use {self.caps.memory >> 20:,} MiB"
        if why.startswith(_REFUSED):
            why += f"; {_NO_THREADS}"
        why += self._left_behind(why)
        if what == _MAKING:
            self._end(f"the {self.kind} cannot be constructed: {why}")
        self._fail(f"failed in {what}: {why}")

    def _left_behind(self, why: str) -> str:
        """What to do where the guest missed a file that lies beside its own, outside the sandbox; empty elsewhere."""
        path = missed_file(why)
        alone = [file for file in files(self.spec, self.kind) if not is_of_package(file)] if path else []
        if path is None or not path.is_file() or not any(path.is_relative_to(file.parent) for file in alone):
            return ""
        return left_behind(path.name)

    def _fail(self, what: str) -> NoReturn:
        """As `_end`, with a sentence about the guest."""
        self._end(f"the {self.kind} {self.name} {what}")

    def _end(self, why: str) -> NoReturn:
        """End the process, and raise the error that every further call will raise, too."""
        self._session.close()
        self._error = self.fault(why)
        raise self._error


_ARITHMETIC = (CAPABILITY,)
"""Variables of the environment that change last bits of what torch computes."""

_hosts: WeakValueDictionary[tuple[object, ...], Host] = WeakValueDictionary()


def host_of(kind: Guests, spec: str, hash_seed: int) -> Host:
    """A worker for a guest: shared by all guests that see the same files, while any of them lives."""
    setup_data = setup(spec, kind)
    stats = [
        path.stat() for file in files(spec, kind) for path in (*source_files(file), *weights(file))
    ]  # a sandbox keeps the files that it started with, so changed files need a new one
    key = (
        os.getpid(),
        backend(),
        setup_data,
        hash_seed,
        *((file.st_ino, file.st_mtime_ns, file.st_size) for file in stats),
    )
    host = _hosts.get(key)
    if host is None or not host.works():
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        script = str(Path(_isolated_worker.__file__).resolve())
        chosen = {name: value for name in _ARITHMETIC if (value := os.environ.get(name))}
        host = _hosts[key] = Host(script, [setup_data], threads | chosen | {"PYTHONHASHSEED": str(hash_seed)})
    return host
