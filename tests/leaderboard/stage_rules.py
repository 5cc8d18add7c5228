"""Stage checks that are submitted in tests: a sound one, and some with one fault each."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, ClassVar

from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView


class Steady(StageCheck):
    """Reject a stage that moved further than all others together, or whose repeated work differs; it counts rounds."""

    name: ClassVar[str] = "steady"

    def __init__(self, share: float = 0.5) -> None:
        self.share, self.seen = share, 0

    def check(self, view: StageView) -> StageVerdict:
        self.seen += 1
        moved = (view.weights - view.before).double().norm(dim=1)
        own = float(moved[view.stage - 1])
        if view.rng.random() < self.share:
            repeated = view.recompute()
            own += float((repeated.weights - view.weights[view.stage - 1]).double().norm())
        further = own > 1e-9 + 2 * float(moved.sum() - moved[view.stage - 1])
        return StageVerdict("reject" if further else "accept", min(own, 1e30), "far" if further else "")

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Faulty(StageCheck):
    """Give something that is no verdict, or do what no guest may."""

    name: ClassVar[str] = "faulty"

    def __init__(self, how: str) -> None:
        self.how = how

    def check(self, view: StageView) -> StageVerdict:
        if self.how == "asks":
            while True:
                view.recompute()
        if self.how == "writes":
            view.weights.mul_(2)
        if self.how == "reads":
            Path(__file__).with_name("hostile.py").read_text()
        if self.how == "connects":
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        if self.how == "leaves":
            os._exit(0)
        results: dict[str, Any] = {
            "nothing": None,
            "unsure": StageVerdict(score=float("nan")),
            "invents": StageVerdict("melt"),  # type: ignore[arg-type]
            "talks": StageVerdict(reason="so " * 500),
            "halves": StageVerdict(reason="\ud800"),
        }
        return results.get(self.how, StageVerdict())  # type: ignore[no-any-return]
