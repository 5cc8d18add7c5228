# my_stage_check.py
from thiefbench.defenses.stages.base import StageCheck, StageVerdict


class LongStep(StageCheck):
    """Reject a stage whose weights move much further in a round than the middle one of all stages."""

    name = "long_step"

    def __init__(self, factor: float = 3.0) -> None:
        self.factor = factor

    def check(self, view):
        moved = (view.weights - view.before).norm(dim=1)
        times = float(moved[view.stage - 1]) / max(float(moved.median()), 1e-12)
        return StageVerdict("reject" if times > self.factor else "accept", min(times, 1e30))
