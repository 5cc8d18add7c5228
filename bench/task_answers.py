"""Whether a task's methods return what they may, so that a mistake in a user's task is one clear sentence."""

from __future__ import annotations

import numbers
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from thiefbench.tasks.base import Item, Message, Split, Task, TaskError
from thiefbench.wording import counted

_T = TypeVar("_T", bound=Task)
_KEYS = frozenset({"role", "content"})
_COLUMNS = frozenset({"id", "question", "answer", "solution"})


def checked(task: _T) -> _T:
    """The task, whose `items`, `messages` and `reward` raise a TaskError for answers that they may not give.

    Tasks of this package are returned as they are: their contract tests see to it.
    """
    if type(task).__module__.startswith("thiefbench."):
        return task
    items, messages, reward = task.items, task.messages, task.reward

    def checked_items(split: Split) -> Any:
        made = items(split)
        if wrong := _wrong_items(made):
            raise TaskError(f"the task {task.name} {wrong} in its split {split}")
        return made

    def checked_messages(item: Item) -> list[Message]:
        made = messages(item)
        if not isinstance(made, list) or not all(isinstance(each, dict) and set(each) >= _KEYS for each in made):
            raise TaskError(
                f"the messages of the task {task.name} are {reprlib.repr(made)} for the item {item.id}; messages are a "
                "list of dictionaries with role and content"
            )
        return made

    def checked_reward(item: Item, completions: Sequence[str]) -> list[float]:
        made = reward(item, completions)
        if wrong := _wrong_rewards(made, len(completions)):
            raise TaskError(
                f"the task {task.name} gave {wrong} of the item {item.id}; a reward is a number from 0 to 1"
            )
        return made

    # On the instance, as the class is the user's, and may be made again.
    task.items, task.messages, task.reward = checked_items, checked_messages, checked_reward  # type: ignore[method-assign]
    return task


def _wrong_items(made: Any) -> str:
    """What is wrong with a split's items, a data set or a list of rows, in a clause; empty if nothing is."""
    try:
        if not len(made):
            return "has no items"
        columns = set(made.column_names if hasattr(made, "column_names") else made[0])
        if lacking := sorted(_COLUMNS - columns):
            return f"lacks the column{'s'[: len(lacking) - 1]} {', '.join(lacking)}"
        names = made["id"] if hasattr(made, "column_names") else [row["id"] for row in made]
        (name, times), *_ = Counter(names).most_common(1)
    except (TypeError, KeyError, LookupError):
        return f"has {type(made).__name__} instead of a datasets.Dataset"
    return f"has {times} items with the id {name!r}" if times > 1 else ""


def _wrong_rewards(made: object, completions: int) -> str:
    """What is wrong with the rewards of one item's completions, in a clause; empty if nothing is."""
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        return f"{reprlib.repr(made)} instead of a list of rewards for {counted(completions, 'completion')}"
    rewards = list(made)
    if len(rewards) != completions:
        return f"{counted(len(rewards), 'reward')} for {counted(completions, 'completion')}"
    for reward in rewards:
        if not isinstance(reward, numbers.Real) or not 0 <= float(reward) <= 1:  # which NaN is not
            return f"the reward {reprlib.repr(reward)} to a completion"
    return ""
