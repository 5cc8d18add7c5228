"""A submitted defense in a separate, sandboxed process, where it can do no harm and sees no label.

To the swarm, `Isolated` is a defense like any other. The real class runs in the sandbox that also runs completions'
programs: it sees a read-only Python with few packages, its own files, and the messages of one stream: the view as plain
data. The model stays on this side; the defense sends its questions, and the real view answers them. Neither sandbox
back end has any writable place.

A cell's seed is never sent, but a small one can be guessed from what is: generator, pseudonyms and slot seeds are
hashes of it, and so is the payload. A verification's fresh trials are therefore played at seeds that are hashed with a
secret of 256 bits (`thiefbench.engine.keys.secret_seed`), which is published only afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args
from weakref import WeakValueDictionary

from thiefbench.defenses.answer_keys import ANSWER_KEYS
from thiefbench.defenses.base import DefenderView, Defense, JudgeSpec, PastRound, Requirement, Verdict
from thiefbench.leaderboard.isolation import _isolated_worker, wire
from thiefbench.leaderboard.isolation.frames import HEADER, Array, FrameError, packed, sizes, unpacked
from thiefbench.leaderboard.isolation.limits import CAPS, JUDGE_BYTES, JUDGES, POOL, Caps
from thiefbench.leaderboard.isolation.sandbox_paths import absolute, files, setup, weights
from thiefbench.leaderboard.isolation.view_services import Services
from thiefbench.leaderboard.isolation.wire import Malformed
from thiefbench.sources import source_files
from thiefbench.tasks.sandbox import backend
from thiefbench.tasks.sandbox_session import DeadlineExceeded, Host, Session, SessionEnded
from thiefbench.zoo.models import resolve, weights_fingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME = 200  # characters of a name


class DefenseError(Exception):
    """An isolated defense failed, misbehaved or met a limit. One sentence for the user."""


class Isolated(Defense):
    """A defense whose class is loaded in the sandbox, never here.

    Args:
        spec: its spec string.
        caps: what it may use.
        hash_seed: of the isolated Python; equal ones make sets and dictionaries of text iterate alike.

    Attributes:
        spec, caps: the arguments.
        seconds: of the defense's own time in the last call, without the answers of policy and judge.
        memory: peak memory of the process in bytes, as it reports it.

    A deep copy is another process with the same `state()`; whatever else the defense remembers is not copied. After an
    error the process is ended, and every further call raises the same error.

    Raises:
        DefenseError: it cannot be constructed, or it wants to see labels.
        SandboxUnavailable: this machine has no working sandbox.
        SpecStringError: the spec string is malformed, or names a file that is not there.
    """

    _error: DefenseError | None
    _sent_history: list[PastRound]
    name: str  # type: ignore[misc]  # of plain defenses a constant of the class, here reported by the process

    def __init__(self, spec: str, caps: Caps = CAPS, hash_seed: int = 0) -> None:
        self.spec, self.caps = spec, caps
        self.name = spec
        self._host = _host(spec, hash_seed)
        self._begin()

    def inspect(self, view: DefenderView) -> list[Verdict]:
        """The isolated defense's verdicts on a pool; its draws from `view.rng` advance the generator here too.

        Raises:
            DefenseError: it fails or misbehaves.
        """
        anew = not all(map(_same, self._sent_history, view.history)) or len(self._sent_history) > len(view.history)
        past = list(view.history if anew else view.history[len(self._sent_history) :])
        request = {"anew": anew, "past": [wire.past_out(each) for each in past], "view": wire.view_out(view)}
        services = Services(view, self.caps)
        factor = max(1.0, len(view.completions) / POOL)
        reply = self._call("inspect", request, seconds=self.caps.seconds * factor, services=services)
        self._sent_history = list(view.history)
        try:
            verdicts = wire.verdicts_in(reply.get("verdicts"), view, self.caps.reason)
            rng = wire.rng_in(reply.get("rng"))
        except Malformed as error:
            self._fail(f"gave {error}")
        view.rng.setstate(rng)
        return verdicts

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """As the isolated defense; raises DefenseError."""
        proof = self._call("prove", {}, [states]).get("proof")
        try:
            return bytes.fromhex(proof if isinstance(proof, str) else "-")
        except ValueError:
            self._fail("gave a proof that is no bytes")

    def state(self) -> dict[str, Any]:
        """As the isolated defense; raises DefenseError."""
        state = self._call("state", {}).get("state")
        if not isinstance(state, dict):
            self._fail(f"gave a state that is {type(state).__name__}; a state is a dictionary")
        if not wire.is_plain(state):
            self._fail(
                f"gave a state with NaN, or deeper than {wire.MAX_DEPTH}; a state is JSON, and is stored as such"
            )
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """As the isolated defense; raises DefenseError."""
        self._call("restore", {"state": state})

    def renew(self) -> None:
        """Construct the defense again in the same process; raises DefenseError."""
        self._call("renew", {})
        self._sent_history = []

    def close(self) -> None:
        """End the process; every further call raises DefenseError."""
        self._error = self._error or DefenseError(f"the defense {self.name} was closed")
        self._session.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Isolated:
        copied = type(self).__new__(type(self))
        copied.__dict__ |= {name: self.__dict__[name] for name in ("spec", "caps", "name", "_host")}
        copied._begin()
        if state := self.state():
            copied.restore(state)
        return copied

    def _begin(self) -> None:
        self.seconds, self.memory = 0.0, 0
        self._error, self._sent_history = None, []
        self._number = 0
        self._session: Session = self._host.start(
            {"role": "defense", "spec": absolute(self.spec), "most": self.caps.message},
            self.caps.memory,
            self.caps.printed,
        )
        description = self._exchange("making it", None, [], self.caps.seconds, None)
        name, requires, judge = description.get("name"), description.get("requires"), description.get("judge")
        if not isinstance(name, str) or not 0 < len(name) <= _NAME:
            self._fail(f"has a name that is not text of 1 to {_NAME} characters")
        self.name = name
        requirements = (*get_args(Requirement), ANSWER_KEYS)
        if not isinstance(requires, list) or not all(need in requirements for need in requires):
            self._fail(f"requires something other than {', '.join(requirements)}")
        self.requires = frozenset(requires)  # type: ignore[misc]  # as name
        if description.get("sees_labels") is not False:
            self._fail("wants to see labels (sees_labels is True), which only rows of the benchmark itself may do")
        self.judge = self._judge(judge)

    def _judge(self, judge: Any) -> JudgeSpec | None:
        if judge is None:
            return None
        model, endpoint = judge if isinstance(judge, list) and len(judge) == 2 else (None, None)
        if endpoint is not None:
            self._fail("names a judge behind a server; a submission names a model, without an endpoint")
        if not isinstance(model, str) or model not in JUDGES:
            self._fail(f"names a judge that no submission may ask; it may ask {', '.join(JUDGES)}")
        if not _is_listed(model):
            self._fail(f"asks {model}, whose files differ from the released ones; install thiefbench again")
        return JudgeSpec(model)

    def _call(
        self,
        call: str,
        request: Mapping[str, Any],
        arrays: Sequence[Array] = (),
        seconds: float | None = None,
        services: Services | None = None,
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
        self, what: str, number: int | None, message: Sequence[bytes], seconds: float, services: Services | None
    ) -> dict[str, Any]:
        """Send a message and answer questions until the reply comes; only the defense's own time counts."""
        left = seconds
        while True:
            began = time.monotonic()
            reply = self._guarded(what, seconds, partial(self._turn, message, began + left))
            left -= time.monotonic() - began
            if "ask" in reply:
                if services is None:
                    self._fail(f"asked a question in {what}, where only inspect may")
                try:
                    message = services.answer(reply)
                except Malformed as error:
                    self._fail(f"put {error}")
                except BaseException:
                    self.close()  # the engine's error, not the defense's; its question will not be answered
                    raise
                continue
            if reply.get("number") != (number or 0):
                self._fail(f"gave a reply in {what} that belongs to no request")
            if "failed" in reply:
                self._fail(f"failed in {what}: {wire.shown(reply['failed'], 600)}")
            self.seconds = seconds - left
            held = reply.get("memory")
            self.memory = max(self.memory, held) if type(held) is int and 0 <= held < 2**50 else self.memory
            return reply

    def _turn(self, message: Sequence[bytes], deadline: float) -> dict[str, Any]:
        self._session.send(message, deadline)
        text, blob = sizes(self._session.receive(HEADER.size, deadline), self.caps.message)
        # A defense has no arrays to send, and many small ones would cost much.
        reply, _ = unpacked(self._session.receive(text, deadline), self._session.receive(blob, deadline), most=0)
        return reply

    def _guarded(self, what: str, seconds: float, turn: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return turn()
        except DeadlineExceeded:
            self._fail(f"took more than {seconds:g} seconds of its own for {what}")
        except FrameError as error:
            self._fail(f"sent {error} (in {what})")
        except SessionEnded as ended:
            self._fail(self._ended(what, ended))

    def _ended(self, what: str, ended: SessionEnded) -> str:
        ran = ended.result
        if ran.status == "memory":
            return f"ran out of memory in {what}: it may use {self.caps.memory >> 20:,} MiB"
        if ran.status == "output":
            return f"printed more than {self.caps.printed:,} bytes"
        if ran.status == "killed":
            return f"was killed in {what} ({ran.error}), as by too much memory or a broken extension module"
        return f"ended its own process in {what}" + (f": {ran.error}" if ran.error else "")

    def _fail(self, what: str) -> NoReturn:
        """End the process, and raise the error that every further call will raise, too."""
        self._session.close()
        self._error = DefenseError(f"the defense {self.name} {what}")
        raise self._error


_hosts: WeakValueDictionary[tuple[object, ...], Host] = WeakValueDictionary()


def _host(spec: str, hash_seed: int) -> Host:
    """A worker for a defense: shared by all defenses that see the same files, while any of them lives."""
    setup_data = setup(spec)
    stats = [
        path.stat() for file in files(spec) for path in (*source_files(file), *weights(file))
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
        host = _hosts[key] = Host(script, [setup_data], threads | {"PYTHONHASHSEED": str(hash_seed)})
    return host


@cache
def _is_listed(judge: str) -> bool:
    """Whether the files of a judge's model are those that `JUDGES` lists; they are hashed, and not loaded."""
    files = [path for path in Path(resolve(judge)).iterdir() if path.is_file()]
    small = sum(path.stat().st_size for path in files) <= JUDGE_BYTES
    return small and weights_fingerprint(judge) == JUDGES[judge]


def _same(one: PastRound, other: PastRound) -> bool:
    return one is other
