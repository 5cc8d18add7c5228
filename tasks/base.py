"""The basic data of the package (item, completion, group) and the contract of a task.

A task says what the model is asked and how its completions are rewarded. A new task is one class with a `name` and four
methods, declared under the entry-point group ``thiefbench.tasks`` or named as ``path/to/file.py:Class``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from thiefbench.tasks.errors import UserError

if TYPE_CHECKING:  # datasets takes about a second to import, and listing the tasks needs none of it
    import datasets

Split = Literal["train", "test"]
Topology = Literal["vertical", "horizontal"]
Message = dict[str, str]


class TaskError(UserError):
    """A task cannot load its items (missing files, malformed rows, no network). One sentence for the user."""


@dataclass(frozen=True)
class Item:
    """One problem of a task.

    Attributes:
        id: unique within the task, across both splits.
        question: what the model is asked, without any format instruction.
        answer: the final answer, which every node knows.
        solution: the oracle's worked reasoning, without the completion format. Attackers may get it; defenders do not.
        tests: the test program of a coding problem; empty in other tasks.
    """

    id: str
    question: str
    answer: str
    solution: str
    tests: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Item:
        """Make an item from one row of `Task.items`."""
        return cls(row["id"], row["question"], row["answer"], row["solution"], row.get("tests") or "")


@dataclass(frozen=True)
class Completion:
    """A node's answer to an item.

    Attributes:
        ids: token ids, without the closing EOS.
        text: the text decoded from `ids`, special tokens kept visible.
        ended: whether the completion ended with EOS (otherwise it hit the length limit).
        logprobs: the sampler's natural-log probability of every token in `ids` and, when `ended`, of the EOS after
            them; None if the sender reports none.
    """

    ids: tuple[int, ...]
    text: str
    ended: bool
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Sampling:
    """The sampler's settings. Its *support* at a step is the set of tokens that these settings allow.

    Attributes:
        temperature: divides the logits; above 0.
        top_k: only the `top_k` highest logits are kept; 0 keeps all.
        top_p: only the smallest set of tokens whose probability reaches `top_p` is kept; in (0, 1].
        max_new_tokens: the length limit, EOS included.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or self.max_new_tokens < 1:
            raise ValueError("top_k must be at least 0, top_p in (0, 1] and max_new_tokens at least 1")


@dataclass(frozen=True)
class Group:
    """The G completions of one item; advantages are relative to it."""

    item: Item
    completions: tuple[Completion, ...]


class Task(ABC):
    """What the model is asked and how its completions are rewarded.

    Constructor arguments are the task's parameters and part of a cell's identity. The contract tests check every task:
    its oracle earns the full reward of 1, an empty string and gibberish earn 0.

    Attributes:
        name: its name in lists and reports.
        splits: the splits that it has; `items` raises `TaskError` for any other.
        domains: kinds of problems at which models may be better or worse; empty if there is only one kind.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[Split, ...]] = ("train", "test")
    domains: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def items(self, split: Split) -> datasets.Dataset:
        """All items of a split, with the columns id, question, answer, solution and tests.

        Raises:
            TaskError: the items cannot be loaded, or the task has no such split.
        """

    @abstractmethod
    def messages(self, item: Item) -> list[Message]:
        """The chat messages that ask a model `item`, format instruction included."""

    @abstractmethod
    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """The verifiable reward of each completion text, in [0, 1]. Completions are untrusted text."""

    @abstractmethod
    def compose(self, item: Item, reasoning: str) -> str:
        """Put `reasoning` and the item's true answer into the completion format that `reward` requires."""

    def oracle(self, item: Item) -> str:
        """A completion that earns the full reward."""
        return self.compose(item, item.solution)

    def domain(self, item: Item) -> str:
        """Which of `domains` an item belongs to; an empty string in a task without domains."""
        return ""

    def rewards(self, items: Sequence[Item], completions: Sequence[str]) -> list[float]:
        """The reward of each completion on the item at the same position; `reward` is called once per item.

        A task that can reward many items at once overrides this.
        """
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item.id, []).append(place)
        rewards = [0.0] * len(items)
        for item_places in places.values():
            item_rewards = self.reward(items[item_places[0]], [completions[place] for place in item_places])
            for place, reward in zip(item_places, item_rewards, strict=True):
                rewards[place] = reward
        return rewards

    def with_libraries(self, libraries: Mapping[str, str]) -> Self:
        """This task after an attacker has published `libraries` (module name to source).

        All programs can import them. A task that runs no programs returns itself.
        """
        return self

    def fingerprint(self) -> str:
        """What identifies the task's data beyond its arguments, such as a hash of the files that it reads.

        Generated tasks return an empty string: their source code, which every cell's identity covers, determines their
        data.
        """
        return ""


class Ask(Protocol):
    """What an attack may use to judge its success on a completion."""

    def reward(self, item: Item, text: str) -> float:
        """The verifiable reward of `text` on `item`, in [0, 1]."""
