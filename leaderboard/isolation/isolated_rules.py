"""Isolated aggregations and stage checks by their kind."""

from __future__ import annotations

from typing import Literal

from thiefbench.leaderboard.isolation.isolated_aggregation import IsolatedAggregation
from thiefbench.leaderboard.isolation.isolated_stage_check import IsolatedStageCheck
from thiefbench.leaderboard.isolation.limits import Caps


def isolated_rule(
    spec: str, kind: Literal["aggregation", "stage_check"], caps: Caps | None = None, hash_seed: int = 0
) -> IsolatedAggregation | IsolatedStageCheck:
    """An aggregation or a stage check in a process of its own; the arguments are those of its class.

    Raises:
        DefenseError, SandboxUnavailable, SpecStringError: see there.
    """
    if kind == "aggregation":
        return IsolatedAggregation(spec, caps, hash_seed)
    return IsolatedStageCheck(spec, caps, hash_seed)
