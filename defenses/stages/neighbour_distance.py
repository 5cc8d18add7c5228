"""`neighbour_distance`: a stage's weights must stay about as far from its neighbours' as other stages' do."""

from __future__ import annotations

from typing import Any, ClassVar

from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.defenses.stages.statistics import excess, neighbour_distances


class NeighbourDistance(StageCheck):
    """Reject a stage that moves away from its neighbours further than the other stages do from theirs.

    The distance of a stage is that between its weights and the mean of its neighbours', relative to the length of this
    mean; CheckFree (arXiv:2506.15461) recovers stages from the same mean. Stages start at different distances, so what
    counts is the growth since the first round, beyond the median growth of the others. That a lost stage was recovered
    is no growth, neither its own nor its neighbours'. The rule is our own.

    Args:
        tolerance: how much further it may have moved than the median of the others.
    """

    name: ClassVar[str] = "neighbour_distance"

    def __init__(self, tolerance: float = 0.05) -> None:
        if not tolerance > 0:
            raise ValueError(f"neighbour_distance: tolerance must be above 0, got {tolerance}")
        self.tolerance = tolerance
        self._start: list[float] = []

    def check(self, view: StageView) -> StageVerdict:
        """Compare the growth of the stages' distances."""
        if not self._start:
            self._start = neighbour_distances(view.before)
        elif view.before_recovery is not None:
            jumps = zip(neighbour_distances(view.before), neighbour_distances(view.before_recovery), strict=True)
            self._start = [start + (end - begin) for start, (end, begin) in zip(self._start, jumps, strict=True)]
        now = neighbour_distances(view.weights)
        further = excess([end - start for end, start in zip(now, self._start, strict=True)], view.stage - 1)
        if further > self.tolerance:
            return StageVerdict("reject", further, "moved away from its neighbours")
        return StageVerdict(score=further)

    def state(self) -> dict[str, Any]:
        """The distances before the first round, moved on by every recovery."""
        return {"start": self._start}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._start = list(state["start"])
