"""Whether a user's task answers as it may, so that a mistake in it is one clear sentence before anything is trained."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable
from typing import SupportsFloat

from thiefbench.tasks.base import Item, Task, TaskError
from thiefbench.wording import counted

_KEYS = frozenset({"role", "content"})


def check_task(task: Task) -> None:
    """Try a task's items, and messages and rewards of its first item. Tasks of this package have contract tests.

    Raises:
        TaskError: one of them is not what it may be.
    """
    if type(task).__module__.startswith("thiefbench."):
        return
    items = {split: [Item.from_row(row) for row in task.items(split)] for split in task.splits}
    for split, of_split in items.items():
        if wrong := wrong_items(of_split):
            raise TaskError(f"the task {task.name} {wrong} in its split {split}")
    item = next(iter(items.values()))[0]
    messages: object = task.messages(item)
    if not isinstance(messages, list) or not all(isinstance(each, dict) and set(each) >= _KEYS for each in messages):
        raise TaskError(
            f"the messages of the task {task.name} are {reprlib.repr(messages)} for the item {item.id}; messages are a "
            "list of dictionaries with role and content"
        )
    texts = [task.oracle(item), ""]
    if wrong := wrong_rewards(task.reward(item, texts), len(texts), f" of the item {item.id}"):
        raise TaskError(f"the task {task.name} gave {wrong}")


def wrong_items(items: list[Item]) -> str:
    """What is wrong with a split's items, in a clause; empty if nothing is."""
    if not items:
        return "has no items"
    (name, times), *_ = Counter(item.id for item in items).most_common(1)
    return f"has {times} items with the id {name!r}" if times > 1 else ""


def wrong_rewards(made: object, completions: int, whose: str = "") -> str:
    """What is wrong with rewards, in a clause; empty if nothing is.

    Args:
        made: what the task returned.
        completions: how many it was to reward.
        whose: words that follow them.
    """
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        given = f"{reprlib.repr(made)} instead of a list of rewards for {counted(completions, 'completion')}"
    elif len(rewards := list(made)) != completions:
        given = f"{counted(len(rewards), 'reward')} for {counted(completions, 'completion')}"
    elif wrong := [reward for reward in rewards if not is_share(reward)]:
        given = f"the reward {reprlib.repr(wrong[0])} to a completion"
    else:
        return ""
    return f"{given}{whose}; a reward is a number from 0 to 1"


def is_share(value: object) -> bool:
    """Whether it is a number from 0 to 1, of Python, numpy or torch; NaN is not."""
    if not isinstance(value, SupportsFloat):
        return False
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError, OverflowError, RuntimeError):  # of an array, or too large
        return False
