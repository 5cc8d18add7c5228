"""Aggregations that are submitted in tests: a sound one, and some with one fault each."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, ClassVar

import torch

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict


class Nearby(Aggregation):
    """Join the vectors that make the loss no worse, if they point where the own one does; it counts its exchanges."""

    name: ClassVar[str] = "nearby"

    def __init__(self, least: float = 0.0) -> None:
        self.least, self.seen = least, 0

    def aggregate(self, view: AggregationView) -> Aggregate:
        self.seen += 1
        alone = view.loss(view.own)
        cosines = [float(torch.cosine_similarity(view.own, sent.vector, dim=0)) for sent in view.vectors]
        kept = [cosine > self.least and view.loss((view.own + sent.vector) / 2) <= alone + 1
                for sent, cosine in zip(view.vectors, cosines, strict=True)]  # fmt: skip
        joined = [sent.vector for sent, keep in zip(view.vectors, kept, strict=True) if keep]
        verdicts = [
            VectorVerdict("accept" if keep else "reject", float(self.seen), "near" if keep else "far") for keep in kept
        ]
        return Aggregate(torch.stack([view.own, *joined]).mean(0), tuple(verdicts))

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Faulty(Aggregation):
    """Give something that is no result, or do what no guest may."""

    name: ClassVar[str] = "faulty"

    def __init__(self, how: str) -> None:
        self.how = how

    def aggregate(self, view: AggregationView) -> Aggregate:
        own, verdicts = view.own, tuple(VectorVerdict() for _ in view.vectors)
        if self.how == "asks":
            while True:
                view.loss(own)
        if self.how == "asks of nothing":
            view.reward(own[:-1])
        if self.how == "writes":
            own.mul_(2)
        if self.how == "reads":
            Path(__file__).with_name("hostile.py").read_text()
        if self.how == "connects":
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        if self.how == "leaves":
            os._exit(0)
        results: dict[str, Any] = {
            "nothing": None,
            "no vector": Aggregate(None, verdicts),  # type: ignore[arg-type]
            "short": Aggregate(own[:-1], verdicts),
            "double": Aggregate(own.double(), verdicts),
            "nan": Aggregate(own * float("nan"), verdicts),
            "silent": Aggregate(own, verdicts[1:]),
            "unsure": Aggregate(own, (VectorVerdict(score=float("nan")), *verdicts[1:])),
            "invents": Aggregate(own, (VectorVerdict("melt"), *verdicts[1:])),  # type: ignore[arg-type]
        }
        return results.get(self.how, Aggregate(own, verdicts))  # type: ignore[no-any-return]
