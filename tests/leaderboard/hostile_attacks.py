"""Attacks that do harm, lie or fail: `hostile_attacks.py:Class`. None of them is ever loaded outside the sandbox."""

from __future__ import annotations

import _thread
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Poison, ThreatModel
from thiefbench.tasks.base import Ask, Completion, Item


class Plain(Attack):
    """Sends a word."""

    name: ClassVar[str] = "plain"
    threat: ClassVar[ThreatModel] = ThreatModel(context="out-of-context")

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [self.word(view)] * len(view.slots)

    def word(self, view: AttackerView) -> str:
        return "word"

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        return 0.0


class Tells(Plain):
    """Asks the defense, and sends another word in every process, or only once the defense has refused it."""

    threat: ClassVar[ThreatModel] = ThreatModel(context="out-of-context", queries=1)

    def __init__(self, by: str = "answer") -> None:
        self.by = by

    def word(self, view: AttackerView) -> str:
        assert view.defense is not None, "it is granted queries"
        accepted = all(view.defense.accepts(dict.fromkeys(view.slots, "word")).values())
        return "word" if accepted and self.by == "answer" else os.urandom(4).hex()


class CountsRounds(Plain):
    """Says how often it was asked to poison."""

    def __init__(self) -> None:
        self.rounds = 0

    def draw(self, rng: random.Random) -> CountsRounds:
        return self

    def word(self, view: AttackerView) -> str:
        self.rounds += 1
        return f"round {self.rounds}"


class Spies(Plain):
    """Says how much it found of what it must not know."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.paths = list(paths)

    def word(self, view: AttackerView) -> str:
        found = [path for path in self.paths if self._reads(path)]
        found += [path for path in ("/proc", "/etc", "/home", "/var") if self._lists(path)]
        found += [name for name in os.environ if "CANARY" in name]
        found += [name for name in ("payload", "labels", "verdicts", "history") if hasattr(view, name)]
        found += [name for name in sys.modules if name.startswith(("torch", "thiefbench.engine"))]
        return f"found {len(found)}: {found}"

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


class ReadsSolutions(Plain):
    """Is granted no solutions, and looks for them."""

    threat = replace(Plain.threat, oracle=False)

    def __init__(self, where: Literal["slots", "train", "test", "offered"] = "slots") -> None:
        self.where = where

    def word(self, view: AttackerView) -> str:
        solutions = [slot.item.solution for slot in view.slots]
        if self.where in ("train", "test"):
            rows = view.task.items(self.where)
            assert len(rows) > len(view.slots)
            solutions = [row["solution"] for row in rows]
        return f"solution: {sum(map(len, solutions))}"

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        assert not any(item.solution for item in items)
        return super().choose_items(items, count, rng)


class AsksTooOften(Plain):
    """Asks three times where two are granted."""

    threat = replace(Plain.threat, queries=2)

    def word(self, view: AttackerView) -> str:
        assert view.defense is not None
        for _ in range(3):
            view.defense.accepts({view.slots[0]: "word"})
        return "word"


class Grows(Plain):
    """Wants more once its payload is drawn."""

    def draw(self, rng: random.Random) -> Grows:
        grown = Grows()
        grown.threat = replace(self.threat, policy=True)  # type: ignore[misc]
        return grown


class SaysOtherwise(Plain):
    """States by chance that it is granted solutions."""

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]
        return replace(Plain.threat, oracle=random.SystemRandom().random() < 0.5)


class Numbered(Plain):
    """Sends the number of its process."""

    def word(self, view: AttackerView) -> str:
        return f"process {os.getpid()}, thread {_thread.get_native_id()}"


class DrawsAnew(Plain):
    """Draws from the system instead of the generator."""

    def describe(self) -> dict[str, str]:
        return {"word": str(random.SystemRandom().random())}


def _floods() -> None:
    while True:
        print("x" * 10_000)


def _swallows() -> None:
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def _loops() -> None:
    while True:
        pass


def _fork() -> None:
    while True:
        os.fork()


def _raise() -> None:
    raise ValueError("told off")


def _write() -> None:
    Path("here").write_text("x")


def _forges() -> None:
    """Writes a question of its own into the stream."""
    question = {"ask": "sample", "sampler": 0, "items": [0], "count": 1}
    text = json.dumps({"message": question, "arrays": []}).encode()
    os.write(3, struct.pack("<QQ", len(text), 0) + text)


DEEDS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None, "network": lambda: socket.create_connection(("127.0.0.1", 80)), "fork": _fork,
    "thread": lambda: threading.Thread(target=print).start(), "write": _write, "exit": lambda: os._exit(0),
    "raise": _raise, "floods": _floods, "swallows": _swallows, "loops": _loops, "forges": _forges,
}  # fmt: skip


class Does(Plain):
    """Does one thing while it poisons."""

    threat = replace(Plain.threat, queries=64)

    def __init__(self, what: str) -> None:
        self.what = what

    def word(self, view: AttackerView) -> str:
        if self.what == "asks":
            assert view.defense is not None
            for _ in range(20):
                view.defense.accepts({view.slots[0]: "word"})
        else:
            DEEDS[self.what]()
        return "word"


class Gives(Plain):
    """Gives something that is no list of submissions."""

    def __init__(self, what: str) -> None:
        self.what = what

    def poison(self, view: AttackerView) -> Sequence[Any]:
        count = len(view.slots)
        given: dict[str, list[Any]] = {
            "few": [], "numbers": [1] * count, "bytes": [b"word"] * count, "huge": ["x" * (1 << 20)] * count,
            "long": ["x" * 200_000] * count, "tokens": [(1 << 40,)] * count, "surrogate": ["\ud800"] * count,
        }  # fmt: skip
        return given[self.what]


class Picks(Plain):
    """Picks its items as no attack may."""

    threat = replace(Plain.threat, beacon=True)

    def __init__(self, what: str) -> None:
        self.what = what

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Any:
        other = replace(items[0], id="another")
        if self.what == "exit":
            os._exit(0)
        if self.what == "seed":
            view.seed(other, 0, 0)
        if self.what == "beacon":
            view.seed(items[0], 0, 0)
        if self.what == "position":
            view.seed(items[0], view.count, 0)
        if self.what == "split":
            view.task.items("secret")  # type: ignore[arg-type]
        given: dict[str, list[Any]] = {"twice": [items[0]] * view.count, "few": [], "others": [other] * view.count}
        return given.get(self.what, list(range(view.count)))


class PicksWithoutBeacon(Picks):
    """Asks for seeds, and is granted the history alone."""

    threat = replace(Plain.threat, policy=True, history=True)


class Judges(Plain):
    """Judges as no attack may."""

    def __init__(self, what: str) -> None:
        self.what = what

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> Any:
        if self.what == "loops":
            _loops()
        if self.what == "exit":
            os._exit(0)
        if self.what == "sleeps":
            time.sleep(0.4)
        if self.what == "asks":
            ask.reward(item, completion.text)
        return {"twice": 2.0, "nan": float("nan"), "text": "yes"}.get(self.what, 0.0)
