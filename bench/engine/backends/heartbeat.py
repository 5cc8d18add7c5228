"""Heartbeats: each rank of a process group signals that it runs, and watches the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Iterable
from typing import Any

# A heartbeat that misses this many beats has stopped.
_LOST_BEATS = 4
# Written instead of a count: the rank has stopped beating; then: it no longer needs the store.
_LEFT, _GONE = b"left", b"gone"


class Heartbeat(threading.Thread):
    """Signals that this rank runs, and watches the others.

    Args:
        store: a connection of its own to the group's key-value store.
        rank, size: see `thiefbench.engine.backends.process_group.Launch`.
        timeout: seconds of silence after which a rank is lost.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._store, self._rank, self._timeout = store, rank, timeout
        self.interval = min(1.0, timeout / 10)
        self._keys = [f"beat/{other}" for other in range(size)]
        self._seen: list[bytes] = [b""] * size
        self._heard = [time.monotonic()] * size
        self._broken, self._ended = False, threading.Event()

    def run(self) -> None:
        """Beat until `end` is called or the store is gone."""
        count = 0
        while not self._ended.wait(self.interval):
            count += 1
            try:
                self._store.set(self._keys[self._rank], str(count))
                values = self._store.multi_get(self._keys)
            except RuntimeError:  # of torch, DistError is one
                self._broken = True
                return
            for other, value in enumerate(values):
                if value != self._seen[other]:
                    self._seen[other], self._heard[other] = value, time.monotonic()

    def silent(self) -> list[int]:
        """The other ranks that have been silent for the timeout."""
        return self._quiet(self._timeout)

    def stopped(self) -> list[int]:
        """The other ranks whose heartbeat has just stopped, without those that announced that they leave."""
        return [other for other in self._quiet(_LOST_BEATS * self.interval) if self._seen[other] not in (_LEFT, _GONE)]

    def _quiet(self, seconds: float) -> list[int]:
        since = time.monotonic() - seconds
        if self._heard[self._rank] < since:  # this process itself was stopped and could not receive heartbeats
            return []
        return [other for other, last_heard in enumerate(self._heard) if last_heard < since]

    @property
    def broken(self) -> bool:
        """Whether the store, and the process that kept it, is gone."""
        return self._broken

    def end(self) -> None:
        """Stop beating, and announce that this rank leaves."""
        self._ended.set()
        self.join(5.0)
        self._say(_LEFT)

    def part(self, seconds: float) -> None:
        """After `end`: wait until all ranks have left, at most this many seconds.

        Rank 0 keeps the store, so it waits until every other rank has announced that it no longer needs it.
        """
        if self._rank == 0:
            self._wait(range(1, len(self._keys)), (_GONE,), seconds)
            return
        self._wait(range(len(self._keys)), (_LEFT, _GONE), seconds)
        self._say(_GONE)

    def _wait(self, ranks: Iterable[int], words: Container[bytes], seconds: float) -> None:
        keys, until = [self._keys[rank] for rank in ranks], time.monotonic() + seconds
        while time.monotonic() < until and not self._broken:
            try:
                if all(value in words for value in self._store.multi_get(keys)):
                    return
            except RuntimeError:
                self._broken = True
            time.sleep(0.02)

    def _say(self, word: bytes) -> None:
        if self._broken:
            return
        try:
            self._store.set(self._keys[self._rank], word.decode())
        except RuntimeError:
            self._broken = True
