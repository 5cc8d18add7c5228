"""The guest's side of an isolated stage check: constructs it, and shows it the rounds that the parent sends.

It runs in the sandbox only (`_isolated_worker`). The pipeline stays with the parent, which has a stage's work repeated
where the check asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thiefbench.defenses.stages.base import Recomputed, Signal, StageCheck, StageVerdict, StageView
from thiefbench.leaderboard.isolation import rule_guest, wire
from thiefbench.leaderboard.isolation.frames import split_tensors
from thiefbench.leaderboard.isolation.guest_stream import Stream
from thiefbench.leaderboard.isolation.rule_guest import Answer


def _check(check: StageCheck, stream: Stream, request: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> Answer:
    (joined,) = arrays
    seen = joined.copy()
    tensors = split_tensors(seen, request["shapes"])

    def signal(name: str) -> Signal | None:
        told = request["signals"][name]
        return None if told is None else Signal(torch.from_numpy(tensors[name]), told["rms"], told["tokens"])

    rng = random.Random()
    rng.setstate(wire.rng_in(request["rng"]))
    before_recovery = tensors.get("before_recovery")
    view = StageView(
        round=request["round"],
        stage=request["stage"],
        stages=request["stages"],
        received=signal("received"),
        sent=signal("sent"),
        gradient=signal("gradient"),
        weights=torch.from_numpy(tensors["weights"]),
        before=torch.from_numpy(tensors["before"]),
        rng=rng,
        recompute=_repeats(stream),
        before_recovery=None if before_recovery is None else torch.from_numpy(before_recovery),
    )
    verdict = check.check(view)
    if not np.array_equal(seen, joined, equal_nan=True):
        raise ValueError("it changed a tensor of its view, which is the run's own; work on a copy")
    if not isinstance(verdict, StageVerdict):
        raise TypeError(f"check gave {verdict!r:.100}, which is not a StageVerdict")
    return {"verdict": [verdict.action, verdict.score, verdict.reason]}, []


def _repeats(stream: Stream) -> Callable[[], Recomputed]:
    def repeated() -> Recomputed:
        answer, (weights,) = stream.ask({"ask": "recompute"})
        return Recomputed(torch.from_numpy(weights), float(answer["sent_error"]))

    return repeated


serve = partial(rule_guest.serve, contract=StageCheck, calls={"check": _check})
"""Serve a stage check: (spec, most, file), see `rule_guest.serve`."""
