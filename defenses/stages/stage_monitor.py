"""`stage_monitor`: exponential moving averages of what a stage sends (in the manner of SENTINEL, arXiv:2603.03592)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from thiefbench.defenses.stages.base import Signal, StageCheck, StageVerdict, StageView
from thiefbench.defenses.stages.statistics import deviation, moving_average, upper_fence


class StageMonitor(StageCheck):
    """Compare a stage's activations and gradients with their moving averages; nothing is computed twice.

    From SENTINEL is the idea: exponential moving averages of the activations that a stage sends on and of the gradients
    that it sends back, against which each new one is measured. Chosen here: what is averaged is a round's mean vector;
    the measure is its relative distance from the average; the limit is Tukey's fence over the stage's own accepted
    distances, but at least a factor of the largest of them. When a lost stage was recovered, all of it
    begins anew, because what passes the other stages changes, too.

    Args:
        decay: of the averages, per round.
        warmup: after so many measured rounds it begins to reject, at least 2; the first round is never measured.
        width: of the fence, in interquartile ranges.
        slack: a distance up to so many times the largest accepted one is accepted.
    """

    name: ClassVar[str] = "stage_monitor"

    def __init__(self, decay: float = 0.9, warmup: int = 3, width: float = 3.0, slack: float = 1.25) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"stage_monitor: decay must lie in [0, 1), got {decay}")
        if warmup < 2:
            raise ValueError(f"stage_monitor: warmup must be at least 2, got {warmup}")
        if not (width > 0 and slack > 0):
            raise ValueError("stage_monitor: width and slack must be above 0")
        self.decay, self.warmup, self.width, self.slack = decay, warmup, width, slack
        self._averages: dict[str, torch.Tensor] = {}
        self._distances: dict[str, list[float]] = {}

    def check(self, view: StageView) -> StageVerdict:
        """Reject a round in which activations or gradients are further from their average than is usual."""
        if view.before_recovery is not None:
            self._averages, self._distances = {}, {}
        signals: dict[str, Signal | None] = {"activations": view.sent, "gradients": view.gradient}
        known = {name: signal.mean for name, signal in signals.items() if signal is not None}
        found = {name: deviation(self._averages[name], mean) for name, mean in known.items() if name in self._averages}
        scores = {name: distance / self._limit(name) for name, distance in found.items() if self._warm(name)}
        worst = max(scores, key=lambda name: scores[name], default="")
        if worst and scores[worst] > 1:
            return StageVerdict("reject", scores[worst], f"{worst} off their moving average")
        for name, mean in known.items():
            average = self._averages.get(name, mean)
            self._averages[name] = moving_average(average, mean, self.decay)
        for name, distance in found.items():
            self._distances.setdefault(name, []).append(distance)
        return StageVerdict(score=scores[worst] if worst else None)

    def state(self) -> dict[str, Any]:
        """Averages and distances."""
        averages = {name: average.tolist() for name, average in self._averages.items()}
        return {"averages": averages, "distances": self._distances}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._averages = {name: torch.tensor(values) for name, values in state["averages"].items()}
        self._distances = {name: list(values) for name, values in state["distances"].items()}

    def _warm(self, name: str) -> bool:
        return len(self._distances.get(name, ())) >= self.warmup

    def _limit(self, name: str) -> float:
        past = self._distances[name]
        return max(upper_fence(past, self.width), self.slack * max(past), 1e-12)
