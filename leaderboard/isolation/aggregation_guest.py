"""The guest's side of an isolated aggregation: constructs it, and lets it join the vectors that the parent sends.

It runs in the sandbox only (`_isolated_worker`). The node's model stays with the parent, which measures the vectors
that the aggregation wants to try.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, SentVector, VectorVerdict
from thiefbench.leaderboard.isolation import rule_guest, wire
from thiefbench.leaderboard.isolation.guest_stream import Stream
from thiefbench.leaderboard.isolation.guest_vectors import plain_vector
from thiefbench.leaderboard.isolation.rule_guest import Answer


def _aggregate(rule: Aggregation, stream: Stream, request: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> Answer:
    rng = random.Random()
    rng.setstate(wire.rng_in(request["rng"]))
    own, *others = (torch.from_numpy(row.copy()) for row in arrays[0])
    sent = tuple(SentVector(sender, vector) for sender, vector in zip(request["senders"], others, strict=True))
    view = AggregationView(request["exchange"], own, sent, rng, _asks(stream, "reward"), _asks(stream, "loss"))
    joined = rule.aggregate(view)
    if not np.array_equal(view.stacked().numpy(), arrays[0]):
        raise ValueError("it changed a vector of its view, which other nodes hold too; work on a copy")
    if not isinstance(joined, Aggregate):
        raise TypeError(f"aggregate gave {joined!r:.100}, which is not an Aggregate")
    verdicts = list(joined.verdicts)
    strange = next((verdict for verdict in verdicts if not isinstance(verdict, VectorVerdict)), None)
    if strange is not None:
        raise TypeError(f"aggregate gave {strange!r:.100}, which is not a VectorVerdict")
    told = [[verdict.action, verdict.score, verdict.reason] for verdict in verdicts]
    return {"verdicts": told, "rng": wire.rng_out(view.rng)}, [plain_vector(joined.vector)]


def _asks(stream: Stream, measure: str) -> Callable[[torch.Tensor], float]:
    def asked(vector: torch.Tensor) -> float:
        answer, _ = stream.ask({"ask": measure}, [plain_vector(vector)])
        return float(answer["value"])

    return asked


serve = partial(rule_guest.serve, contract=Aggregation, calls={"aggregate": _aggregate})
"""Serve an aggregation: (spec, most, file), see `rule_guest.serve`."""
