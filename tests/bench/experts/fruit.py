"""A task of two domains for tests of experts, named by this file's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from thiefbench.tasks.base import Item, Message, Split, Task


class Fruit(Task):
    """Half of all texts are right, so a model with random weights has something to learn from every group."""

    name: ClassVar[str] = "fruit"
    domains: ClassVar[tuple[str, ...]] = ("apples", "pears")

    def items(self, split: Split) -> Any:
        pairs = [(a, b) for a in range(1, 9) for b in range(1, 9) if (a + b) % 2 == (split == "test")]
        return [
            {
                "id": f"{split}-{what}-{a}-{b}",
                "question": f"{a} {what} and {b}?",
                "answer": str(a + b),
                "solution": "So",
            }
            for a, b in pairs
            for what in self.domains
        ]

    def domain(self, item: Item) -> str:
        return "apples" if "apples" in item.question else "pears"

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(len(text) % 2 == 0) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} = {item.answer}"


class Bare(Fruit):
    """One domain has no questions."""

    name: ClassVar[str] = "bare"

    def items(self, split: Split) -> Any:
        return [row for row in super().items(split) if "apples" in row["question"]]
