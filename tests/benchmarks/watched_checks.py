"""A stage check that lets three others look on and accepts all: what would each reject in one and the same run?

`tests/benchmarks/watched_pipelines.yaml` names it. Who would reject stands in the column `reason` of stages.parquet.
"""

from __future__ import annotations

from typing import Any, ClassVar

from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.defenses.stages.neighbour_distance import NeighbourDistance
from thiefbench.defenses.stages.recomputation import Recomputation
from thiefbench.defenses.stages.stage_monitor import StageMonitor


class Watched(StageCheck):
    """Accept all; the reason says which of the built-in checks would reject."""

    name: ClassVar[str] = "watched"

    def __init__(self) -> None:
        self.checks: list[StageCheck] = [StageMonitor(), Recomputation(), NeighbourDistance()]

    def check(self, view: StageView) -> StageVerdict:
        """Ask every one of them."""
        rejecting = [check.name for check in self.checks if check.check(view).action == "reject"]
        return StageVerdict(reason=" ".join(rejecting))

    def state(self) -> dict[str, Any]:
        """Theirs."""
        return {check.name: check.state() for check in self.checks}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        for check in self.checks:
            check.restore(state[check.name])
