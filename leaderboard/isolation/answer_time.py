"""How long this side may work for a guest's questions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from thiefbench.leaderboard.isolation.wire import Malformed


class AnswerTime:
    """The time that answers to a guest's questions have taken, and its limit.

    Args:
        most: seconds for all answers; may grow with what the guest has to do.
        period: in what, for messages: "a round" or "an exchange".
    """

    def __init__(self, most: float, period: str) -> None:
        self.most, self._period, self._seconds = most, period, 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of the block, also where it raises; raises Malformed if all answers took too long."""
        self.check()
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began
        self.check()

    def check(self, more: float = 0.0) -> None:
        """Raise Malformed if the answers so far, and `more` seconds of the one that is being given, took too long."""
        if self._seconds + more > self.most:
            raise Malformed(f"questions whose answers took more than {self.most:,.0f} seconds in {self._period}")
