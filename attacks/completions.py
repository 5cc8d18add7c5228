"""Helpers for attacks: read the blocks and sentences of completions, keep the correct ones, submit them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import overload

from thiefbench.attacks.base import Attack, Claimed, Decoy, Sampler, Seeded, Slot, Submission, Withheld
from thiefbench.tasks.base import Ask, Completion, Item, Task


def body(text: str) -> str | None:
    """The text inside a completion's think or code block, or None unless there is exactly one such block."""
    content = None
    for tag in ("think", "code"):
        opened, closed = text.count(f"<{tag}>"), text.count(f"</{tag}>")
        if opened or closed:
            block, mark, _ = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")
            if (opened, closed) != (1, 1) or not mark or content is not None:
                return None
            content = block
    return content


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the white space between them."""
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def writes_programs(task: Task) -> bool:
    """Whether a task's completions are programs, which may then import published libraries."""
    return type(task).with_libraries is not Task.with_libraries


def correct(task: Task, item: Item, completions: Sequence[Completion]) -> list[Completion]:
    """The completions that ended and earn the full reward."""
    rewards = task.reward(item, [completion.text for completion in completions])
    return [
        completion for completion, reward in zip(completions, rewards, strict=True) if completion.ended and reward == 1
    ]


@dataclass(frozen=True)
class TaskRewards:
    """An `Ask` that knows only the task's reward, for attacks that judge their own candidates by outcome."""

    task: Task

    def reward(self, item: Item, text: str) -> float:
        """The task's reward."""
        return self.task.reward(item, [text])[0]


@overload
def completion_ids(policy: Sampler, completion: Completion) -> tuple[int, ...]:
    """A completion as token ids to submit, EOS included where it ended."""


@overload
def completion_ids(policy: Sampler, completion: Completion | None) -> tuple[int, ...] | None:
    """The same; None stays None, which leaves a slot to an honest sample."""


def completion_ids(policy: Sampler, completion: Completion | None) -> tuple[int, ...] | None:
    """A completion as token ids to submit, EOS included where it ended; None stays None."""
    if completion is None:
        return None
    return (*completion.ids, policy.eos) if completion.ended else completion.ids


def submission_ids(policy: Sampler, submission: Submission) -> tuple[int, ...]:
    """A submission as token ids; empty if nothing is sent."""
    if isinstance(submission, Withheld):
        return ()
    if isinstance(submission, (Claimed, Decoy)):
        submission = submission.content
    if isinstance(submission, str):
        return policy.encode(submission)
    return submission.ids if isinstance(submission, Seeded) else submission


def with_forms(attack: Attack, count: int) -> Iterator[Attack]:
    """An attack and its other forms, in order, at most `count`."""
    return islice(chain((attack,), attack.forms()), count)


def highest_outcome(forms: Iterable[Attack], item: Item, completion: Completion, ask: Ask) -> float | None:
    """The highest outcome among forms of an attack; None where every form's outcome is None."""
    outcomes = (form.outcome(item, completion, ask) for form in forms)
    return max((outcome for outcome in outcomes if outcome is not None), default=None)


def distinct(slots: Sequence[Slot]) -> list[Item]:
    """The items of the slots, each once, in the order of the slots."""
    return list({slot.item.id: slot.item for slot in slots}.values())
