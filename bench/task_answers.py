"""Whether a user's task answers as it may, so that a mistake in it is one clear sentence before anything is trained."""

from __future__ import annotations

import numbers
import reprlib
from collections import Counter
from collections.abc import Iterable

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
    if wrong := wrong_rewards(task.reward(item, texts), len(texts)):
        raise TaskError(f"the task {task.name} gave {wrong} of the item {item.id}; a reward is a number from 0 to 1")


def wrong_items(items: list[Item]) -> str:
    """What is wrong with a split's items, in a clause; empty if nothing is."""
    if not items:
        return "has no items"
    (name, times), *_ = Counter(item.id for item in items).most_common(1)
    return f"has {times} items with the id {name!r}" if times > 1 else ""


def wrong_rewards(made: object, completions: int) -> str:
    """What is wrong with rewards of one item's completions, in a clause; empty if nothing is."""
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        return f"{reprlib.repr(made)} instead of a list of rewards for {counted(completions, 'completion')}"
    rewards = list(made)
    if len(rewards) != completions:
        return f"{counted(len(rewards), 'reward')} for {counted(completions, 'completion')}"
    wrong = [reward for reward in rewards if not is_share(reward)]
    return f"the reward {reprlib.repr(wrong[0])} to a completion" if wrong else ""


def is_share(value: object) -> bool:
    """Whether it is a number from 0 to 1, of Python, numpy or torch; NaN is not."""
    if isinstance(value, str | bytes) or not (isinstance(value, numbers.Real) or hasattr(value, "__float__")):
        return False
    try:
        return 0 <= float(value) <= 1
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
