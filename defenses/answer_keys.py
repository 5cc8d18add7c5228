"""For defenses in swarms whose receivers score by the answers and tests that arrive with the work (truth: sender)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from thiefbench.defenses.base import DefenderView, PoolCompletion, Requirement
from thiefbench.tasks.answer_keys import AnswerKey

ANSWER_KEYS: Final = cast(Requirement, "answer_keys")
"""What such a defense puts into `requires`: completions come with answers and tests, see `SwarmSpec.truth`."""


@dataclass(frozen=True)
class KeyedCompletion(PoolCompletion):
    """A completion that came with an answer and tests.

    Attributes:
        answer_key: those by which its `reward` was computed; None where they could not be read.
    """

    answer_key: AnswerKey | None = None


class PublicSet(Protocol):
    """The items that a task has published."""

    def answer_key(self, item_id: str) -> AnswerKey | None:
        """The published answer and tests of an item; None if it is not published."""

    def right(self, item_id: str) -> str:
        """A completion that earns the full reward by the published answer and tests."""

    def wrong(self, item_id: str) -> str:
        """A completion in the right format that earns nothing by them."""

    def rewards(self, item_id: str, key: AnswerKey, texts: Sequence[str]) -> list[float]:
        """The task's reward of completions by an answer key of any origin; programs and tests run in the sandbox."""


@dataclass(frozen=True)
class KeyedView(DefenderView):
    """The view in such a swarm. Its completions are `KeyedCompletion`; an item's answer came with its first group.

    Attributes:
        public: the published items; None if the task has published none.
    """

    public: PublicSet | None = None


def key_of(completion: PoolCompletion) -> AnswerKey | None:
    """The answer and tests that came with a completion; None where there are none."""
    return completion.answer_key if isinstance(completion, KeyedCompletion) else None


def public_of(view: DefenderView) -> PublicSet | None:
    """The published items of a view; None in swarms in which every node knows the task's answers and tests."""
    return view.public if isinstance(view, KeyedView) else None
