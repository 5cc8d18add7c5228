"""What attacks do with completions: read their blocks and sentences, keep the right ones, put them on the wire."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from thiefbench.attacks.base import Claimed, Sampler, Seeded, Slot, Submission
from thiefbench.tasks.base import Completion, Item, Task


def body(text: str) -> str | None:
    """What stands in a completion's think or code block, or None where there is not exactly one such block."""
    found = None
    for tag in ("think", "code"):
        opened, closed = text.count(f"<{tag}>"), text.count(f"</{tag}>")
        if opened or closed:
            block, mark, _ = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")
            if (opened, closed) != (1, 1) or not mark or found is not None:
                return None
            found = block
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the white space between them."""
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def writes_programs(task: Task) -> bool:
    """Whether a task's completions are programs: such a task lets them import published libraries."""
    return type(task).with_libraries is not Task.with_libraries


def right(task: Task, item: Item, drawn: Sequence[Completion]) -> list[Completion]:
    """The completions that ended and earn the full reward."""
    rewards = task.reward(item, [made.text for made in drawn])
    return [made for made, reward in zip(drawn, rewards, strict=True) if made.ended and reward == 1]


@dataclass(frozen=True)
class TaskRewards:
    """What an outcome may ask (`thiefbench.tasks.base.Ask`), for an attack that judges its own candidates."""

    task: Task

    def reward(self, item: Item, text: str) -> float:
        """The task's reward."""
        return self.task.reward(item, [text])[0]


@overload
def wire(policy: Sampler, made: Completion) -> tuple[int, ...]: ...


@overload
def wire(policy: Sampler, made: Completion | None) -> tuple[int, ...] | None: ...


def wire(policy: Sampler, made: Completion | None) -> tuple[int, ...] | None:
    """A completion as token ids to submit, EOS included where it ended; None stays None."""
    if made is None:
        return None
    return (*made.ids, policy.eos) if made.ended else made.ids


def tokens(policy: Sampler, made: Submission) -> tuple[int, ...]:
    """A submission as token ids."""
    if isinstance(made, Claimed):
        made = made.content
    if isinstance(made, str):
        return policy.encode(made)
    return made.ids if isinstance(made, Seeded) else made


def distinct(slots: Sequence[Slot]) -> list[Item]:
    """The slots' items, each once, in order."""
    return list({slot.item.id: slot.item for slot in slots}.values())
