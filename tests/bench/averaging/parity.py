"""A task, weight attacks and an aggregation for tests of swarms that exchange weights, named by this file's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import ExchangeView, WeightAttack
from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict
from thiefbench.tasks.base import Item, Message, Split, Task


class Parity(Task):
    """Half of all texts are right, so a model with random weights has something to learn from every group."""

    name: ClassVar[str] = "parity"

    def items(self, split: Split) -> Any:
        pairs = [(a, b) for a in range(1, 13) for b in range(1, 13) if (a + b) % 2 == (split == "test")]
        return [
            {"id": f"{split}-{a}-{b}", "question": f"{a} + {b}?", "answer": str(a + b), "solution": "It is"}
            for a, b in pairs
        ]

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(len(text) % 2 == 0) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} = {item.answer}"


class Sends(WeightAttack):
    """Send something that is no vector, or one that is not finite."""

    name: ClassVar[str] = "sends"

    def __init__(self, attack: Attack | str = "text(phrase='a b')", what: str = "nothing") -> None:
        super().__init__(attack)
        self.what = what

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        mean = view.honest.mean(0)
        sent: dict[str, Any] = {
            "nothing": None, "nan": mean * float("nan"), "infinite": mean + float("inf"), "short": mean[:-1],
            "table": mean[None], "double": mean.double(), "text": "weights",
        }  # fmt: skip
        return [sent[self.what]] * view.senders


class Miscounts(WeightAttack):
    """Send one vector too many."""

    name: ClassVar[str] = "miscounts"

    def __init__(self, attack: Attack | str = "text(phrase='a b')") -> None:
        super().__init__(attack)

    def send(self, view: ExchangeView) -> Sequence[torch.Tensor | None]:
        return [None] * (view.senders + 1)


class Broken(Aggregation):
    """Return what is no aggregate; or count, and keep the own vector."""

    name: ClassVar[str] = "broken"

    def __init__(self, how: str = "") -> None:
        self.how, self.calls = how, 0

    def aggregate(self, view: AggregationView) -> Aggregate:
        self.calls += 1
        verdicts = [VectorVerdict("reject", float(self.calls))] * len(view.vectors)
        if self.how == "short":
            return Aggregate(view.own[:-1], tuple(verdicts))
        if self.how == "huge":
            return Aggregate(torch.full_like(view.own, 3e38), tuple(verdicts))
        if self.how == "nan":
            return Aggregate(view.own * float("nan"), tuple(verdicts))
        return Aggregate(view.own, tuple(verdicts[1:] if self.how == "silent" else verdicts))

    def state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def restore(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]
