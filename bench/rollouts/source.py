"""What every format of rollouts gives and asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from thiefbench.pools.rounds import FiledCompletion, FiledItem


class Tokenizer(Protocol):
    """The tokenizer that the user names (`thiefbench.rollouts.tokens`)."""

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens visible; raises MalformedError for an id that it does not have."""

    def closes(self, token: int) -> bool:
        """Whether a token ends a completion."""


@dataclass(frozen=True)
class Reading:
    """What is known beside a line: of its file, and from the user.

    Attributes:
        step: of the file's path, where it names one.
        tokenizer: that the user names, or None.
        sender: the field that the user names as the sender, or empty.
        rewards: the columns whose sum is the reward, of formats that do not say which it is.
    """

    step: int | None = None
    tokenizer: Tokenizer | None = None
    sender: str = ""
    rewards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rollout:
    """One completion of a line, with the place it has in a pool.

    Attributes:
        round: its number.
        item: what it answers.
        completion: itself.
        group: whose completions advantages are relative to; None for the item.
    """

    round: int
    item: FiledItem
    completion: FiledCompletion
    group: str | None = None


@dataclass(frozen=True)
class Source:
    """A project's format.

    Attributes:
        name: as in `--format`.
        parquet: whether it is Parquet; otherwise one JSON object a line.
        marks: the fields by which it is recognised.
        rollouts: the completions of one line or row; raises MalformedError where it is not of the format.
        columns: of Parquet, those that are read.
        rewards: of formats that do not say which columns are rewards: those that may be, of all columns with kinds.
        senders: what stands for senders where the file names none, to be put behind "NAME needs ".
        texts: the same for texts.
        identity: the field that tells a line from every other; empty where the format has none.
    """

    name: str
    parquet: bool
    marks: frozenset[str]
    rollouts: Callable[[Mapping[str, Any], Reading], list[Rollout]]
    columns: Sequence[str] = ()
    rewards: Callable[[Sequence[tuple[str, str]]], tuple[str, ...]] | None = field(default=None)
    senders: str = ""
    texts: str = ""
    identity: str = ""
