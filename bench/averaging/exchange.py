"""What one exchange leaves: a row for every vector that a node received or should have received."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

REFUSED = "refused"


@dataclass(frozen=True)
class ExchangeRow:
    """One vector of one exchange, as one node received it.

    Attributes:
        exchange: the exchange's number, from 1.
        round: the round after which it took place.
        receiver: the honest node that received it.
        sender: the node that sent it.
        malicious: whether the sender is malicious.
        action: "accept", "clip" or "reject" by the aggregation; "refused" if it never reached it.
        score: the aggregation's; None if it gives none.
        reason: the aggregation's, or why the vector was refused.
        length: the vector's Euclidean length; None if it was refused.
        own_length: that of the receiver's own vector.
        bytes: what the receiver received; 0 if nothing came.
    """

    exchange: int
    round: int
    receiver: int
    sender: int
    malicious: bool
    action: str
    score: float | None
    reason: str
    length: float | None
    own_length: float
    bytes: int

    def as_data(self) -> dict[str, Any]:
        """As plain data, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The inverse of `as_data`."""
        return cls(**data)


def problem(vector: object, size: int) -> str:
    """Why a vector is refused: it is missing, of another type or shape, or not finite; empty if it is sound."""
    if vector is None:
        return "missing"
    if not isinstance(vector, torch.Tensor) or vector.dtype != torch.float32:
        kind = str(vector.dtype).removeprefix("torch.") if isinstance(vector, torch.Tensor) else type(vector).__name__
        return f"not a float32 vector but {kind}"
    if tuple(vector.shape) != (size,):
        return f"wrong shape {tuple(vector.shape)}, not ({size},)"
    return "" if bool(vector.isfinite().all()) else "not finite"
