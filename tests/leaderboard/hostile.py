"""Defenses that do harm, lie or fail: `hostile.py:Class`. None of them is ever loaded outside the sandbox."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from thiefbench import defenses
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict


class Spies(Defense):
    """Looks everywhere for what it must not know; every verdict's reason lists what it found."""

    name: ClassVar[str] = "spies"

    def __init__(self, words: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
        # Halved, so that these are not found themselves.
        self.words = [(word[::2], word[1::2]) for word in words]
        self.paths = list(paths)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        found = [f"reads {path}" for path in self.paths if self._reads(path)]
        found += [f"lists {path}" for path in ("/proc", "/etc", "/home", "/var", *self.paths) if self._lists(path)]
        found += [f"environment {name}" for name in os.environ if name != "LC_CTYPE"]
        found += [f"view.{name}" for name in ("payload", "seed", "attack", "truth") if hasattr(view, name)]
        held = gc.get_referents(*gc.get_objects())
        texts = {str(each) for each in held if isinstance(each, str) or (type(each) is int and each > 1_000_000)}
        for one, other in self.words:
            word = "".join(a + b for a, b in zip(one, other.ljust(len(one)), strict=True)).strip()
            found += [f"memory {word}" for text in texts if word in text]
        return [Verdict("accept", float(len(found)), None, "; ".join(found)[:400])] * len(view.completions)

    def _reads(self, path: str) -> bool:
        try:
            return bool(Path(path).read_bytes())
        except OSError:
            return False

    def _lists(self, path: str) -> bool:
        try:
            return any(Path(path).iterdir())
        except OSError:
            return False


class LooksBack(Defense):
    """Says what the worker that it is a fork of has left in its memory: numbers of the frames below, and programs."""

    name: ClassVar[str] = "looks_back"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        seen, frame = [], sys._getframe().f_back
        while frame is not None:
            if Path(frame.f_code.co_filename).name in ("_sandbox_worker.py", "_nursery.py"):
                seen += [frame.f_code.co_name, *(_numbers(value, 4) for _, value in sorted(frame.f_locals.items()))]
            frame = frame.f_back
        programs = sum(type(each).__name__ == "_Job" for each in gc.get_objects())
        names = " ".join(each for each in seen if isinstance(each, str))
        said = f"{names} {hashlib.sha256(json.dumps(seen).encode()).hexdigest()}"
        return [Verdict("accept", float(programs), None, said)] * len(view.completions)


class Strolls(Defense):
    """Says on which devices the folders lie that it can walk through, and how many files it can read there."""

    name: ClassVar[str] = "strolls"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        devices, files = {Path("/").stat().st_dev}, 0
        for path in {*sys.path, *(package.__path__[0] for package in (np, defenses))}:
            for folder, _, names in os.walk(path):
                devices.add(Path(folder).stat().st_dev)
                files += len(names)
        return [Verdict("accept", float(len(devices)), None, str(files))] * len(view.completions)


def _numbers(value: object, depth: int) -> object:
    """The whole numbers in a value, in what it holds and in its attributes."""
    if isinstance(value, int) or depth == 0:
        return value if isinstance(value, int) else None
    if isinstance(value, dict):
        return [[_numbers(part, depth - 1) for part in pair] for pair in value.items()]
    if isinstance(value, list | tuple):
        return [_numbers(part, depth - 1) for part in value]
    if type(value).__module__.rpartition(".")[2] in ("_sandbox_worker", "_nursery"):
        return _numbers(vars(value), depth - 1)
    return None


class Does(Defense):
    """Does one thing, in `__init__` or in `inspect`, and lets the error through."""

    name: ClassVar[str] = "does"

    def __init__(self, what: str, early: bool = False) -> None:
        self.what = what
        if early:
            DEEDS[what]()

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        DEEDS[self.what]()
        return [ACCEPT] * len(view.completions)


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def _unsayable() -> None:
    raise _UnsayableError


def _interrupts() -> None:
    raise KeyboardInterrupt


def _looks_around() -> None:
    """Clocks of other processes (clock_getcpuclockid(3)), how many there are, its own number."""
    libc, room = ctypes.CDLL(None), ctypes.create_string_buffer(512)
    clocks = [number for number in range(1, 5000) if libc.clock_gettime(~number << 3 | 2, room) == 0]
    own = [libc.clock_gettime(number, room) for number in range(8)]
    raise RuntimeError(f"sees {clocks}, {libc.sysinfo(room)}, {os.getpid()}, and of its own {own}")


def _out_of_memory() -> None:
    raise MemoryError


def _floods() -> None:
    while True:
        print("x" * 10_000)


def _swallows() -> None:
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def _bomb() -> None:
    while True:
        os.fork()


def _thread() -> None:
    threading.Thread(target=print).start()


def _stream_is(data: bytes, then: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Writes bytes of its own into the stream, beside the protocol."""

    def deed() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(3, rest) :]
        then()

    return deed


def _forever() -> None:
    while True:
        pass


def _message(told: Any) -> bytes:
    text = json.dumps({"message": told, "arrays": []}).encode()
    return struct.pack("<QQ", len(text), 0) + text


def _giant() -> None:
    os.write(3, struct.pack("<QQ", 1 << 40, 0))
    _forever()


def _long_giant() -> None:
    os.write(3, struct.pack("<QQ", 1 << 24, 0))
    while True:
        os.write(3, b"x" * 65536)


def _patched() -> None:
    """Whatever it says, it says nothing of what was asked."""
    json.dumps = lambda *_, **__: '{"message": {"number": 1, "verdicts": "all are fine"}, "arrays": []}'  # type: ignore[assignment]


DEEDS: dict[str, Callable[[], Any]] = {
    "socket": socket.socket,
    "passwd": lambda: Path("/etc/passwd").read_text(),
    "write": lambda: Path("/tmp/written").write_text("here"),
    "write beside": lambda: Path(__file__).with_name("written").write_text("here"),
    "overwrite": lambda: os.open(__file__, os.O_WRONLY),
    "fork": os.fork,
    "bomb": _bomb,
    "thread": _thread,
    "run": lambda: os.execv("/bin/sh", ["/bin/sh"]),
    "kill parent": lambda: os.kill(os.getppid(), 9),
    "kill all": lambda: os.kill(-1, 9),
    "trace parent": lambda: os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY),
    "look around": _looks_around,
    "engine": lambda: __import__(".".join(("thiefbench", "engine", "swarm"))),
    "undeclared": lambda: __import__("py" + "arrow"),
    "swallow": _swallows,
    "never": _forever,
    "sleep": lambda: time.sleep(1000),
    "flood": _floods,
    "exit": lambda: os._exit(0),
    "stop": _interrupts,
    "unsayable": _unsayable,
    "out": _out_of_memory,
    "leave": lambda: sys.exit("I am done"),
    "crash": lambda: ctypes.string_at(0),
    "close": lambda: (os.close(3), _forever()),
    "giant": _giant,
    "long giant": _long_giant,
    "noise": _stream_is(b"\xff" * 64),
    "no json": _stream_is(struct.pack("<QQ", 5, 0) + b"{{{{{"),
    "deep": _stream_is(struct.pack("<QQ", 200_000, 0) + b"[" * 200_000),
    "digits": _stream_is(struct.pack("<QQ", 10_000, 0) + b"9" * 10_000),
    "arrays": _stream_is(_message({"number": 1}).replace(b'"arrays": []', b'"arrays":[7]')),
    "early": _stream_is(_message({"number": 99, "verdicts": []})),
    "strange question": _stream_is(_message({"ask": "weights"}), _forever),
    "unknown item": _stream_is(_message({"ask": "ranks", "completions": [["x", [1], "", True, None]]}), _forever),
    "unknown place": _stream_is(_message({"ask": "ranks", "completions": [10**9]}), _forever),
    "long prompt": _stream_is(
        _message({"ask": "generate", "prompts": [[{"role": "user", "content": "x" * 2_000_000}]]}), _forever
    ),
    "endless reply": _stream_is(_message({"ask": "generate", "prompts": [], "max_new_tokens": 10**9}), _forever),
    "patched": _patched,
}


class Answers(Defense):
    """Gives something else than verdicts."""

    name: ClassVar[str] = "answers"

    def __init__(self, what: str) -> None:
        self.what = what

    def inspect(self, view: DefenderView) -> Any:
        count = len(view.completions)
        given: dict[str, Any] = {
            "too few": [ACCEPT] * (count - 1),
            "too many": [ACCEPT] * (count + 1),
            "nothing": None,
            "texts": ["accept"] * count,
            "nan": [Verdict("zero", float("nan"))] * count,
            "infinite": [Verdict("zero", float("inf"))] * count,
            "score text": [Verdict("zero", "high")] * count,  # type: ignore[arg-type]
            "score bool": [Verdict("zero", True)] * count,
            "score object": [Verdict("zero", object())] * count,  # type: ignore[arg-type]
            "action": [Verdict("maybe")] * count,  # type: ignore[arg-type]
            "action list": [Verdict(["accept"])] * count,  # type: ignore[arg-type]
            "action deep": [Verdict(json.loads("[" * 900 + "]" * 900))] * count,
            "reason": [Verdict("zero", reason="x" * 10_000)] * count,
            "reason bytes": [Verdict("zero", reason=b"x")] * count,  # type: ignore[arg-type]
            "weights": [Verdict(token_weights=(1.0,) * 1000)] * count,
            "weights negative": [Verdict(token_weights=(-5.0,) * each.length) for each in view.completions],
            "weights great": [Verdict(token_weights=(1e299,) * each.length) for each in view.completions],
            "weights nan": [Verdict(token_weights=(float("nan"),) * each.length) for each in view.completions],
            "weights text": [Verdict(token_weights=("1",) * each.length) for each in view.completions],  # type: ignore[arg-type]
            "score whole": [Verdict("zero", 2**60 + 1)] * count,
            "huge": [Verdict("zero", reason="x" * (1 << 20))] * count,
        }
        return given[self.what]


class Asks(Defense):
    """Asks the policy too often."""

    name: ClassVar[str] = "asks"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        while True:
            view.policy.ranks(view.completions[:1])


class AsksOddly(Defense):
    """Asks the policy about tokens that it does not have."""

    name: ClassVar[str] = "asks_oddly"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        view.policy.ranks([replace(view.completions[0], ids=(10**9,))])
        return [ACCEPT] * len(view.completions)


class BadState(Defense):
    """Gives a state that is none."""

    name: ClassVar[str] = "bad_state"

    def __init__(self, what: str) -> None:
        self.what = what

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT] * len(view.completions)

    def state(self) -> Any:
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]
        return {
            "nan": {"a": [float("nan")]},
            "infinite": {"a": {"mean": -math.inf}},
            "set": {"names": {"b", "a"}},
            "nested": {"a": json.loads("[" * 900 + "]" * 900)},
            "list": [1],
            "object": {"a": object()},
            "deep": {"a": deep},
            "huge": {"a": "x" * (64 << 20)},
        }[self.what]


class SeesLabels(Defense):
    """Wants the truth."""

    name: ClassVar[str] = "sees_labels"
    sees_labels: ClassVar[bool] = True

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [ACCEPT] * len(view.completions)


class Nameless(SeesLabels):
    sees_labels: ClassVar[bool] = False
    name: ClassVar[Any] = 7


class Needy(SeesLabels):
    sees_labels: ClassVar[bool] = False
    name: ClassVar[str] = "needy"
    requires: ClassVar[Any] = frozenset({"labels"})


class Fickle(SeesLabels):
    """Requires something else each time it is asked."""

    sees_labels: ClassVar[bool] = False
    name: ClassVar[str] = "fickle"

    def __init__(self) -> None:
        self.asked = 0

    @property
    def requires(self) -> Any:
        self.asked += 1
        return frozenset({"labels"} if self.asked > 2 else ())


class AsksOutside(SeesLabels):
    sees_labels: ClassVar[bool] = False
    name: ClassVar[str] = "asks_outside"
    requires: ClassVar[Any] = frozenset({"judge"})

    def __init__(self, model: str = "micro-judge", endpoint: str | None = None) -> None:
        from thiefbench.defenses.base import JudgeSpec

        self.judge = JudgeSpec(model, endpoint)


class NoDefense:
    """Is none."""
