"""What one round leaves: a row for every stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class StageRow:
    """One stage in one round.

    Attributes:
        round, stage: both counted from 1.
        malicious: whether a malicious participant ran it.
        lost: whether it was lost before the round and recovered from its neighbours.
        altered: whether its participant changed weights beyond the update.
        passes: forward passes of the update that reached it.
        skipped: passes that went past it, as scheduled.
        refused: passes whose activations were refused, so that they went past it.
        refusal: why the first of these was refused; empty if none was.
        action, score, reason: the stage check's.
        recomputed: whether another participant repeated its work.
        moved: Euclidean length of the change of its weights in the round, before the verdict.
        bytes: of the activations that it sent.
    """

    round: int
    stage: int
    malicious: bool
    lost: bool
    altered: bool
    passes: int
    skipped: int
    refused: int
    refusal: str
    action: str
    score: float | None
    reason: str
    recomputed: bool
    moved: float
    bytes: int

    def as_data(self) -> dict[str, Any]:
        """As plain data, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The inverse of `as_data`."""
        return cls(**data)
