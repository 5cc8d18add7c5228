"""Whether a task's methods return what they may, so that a mistake in a user's task is one clear sentence."""

from __future__ import annotations

import numbers
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from thiefbench.tasks.base import Item, Message, Split, Task, TaskError
from thiefbench.wording import counted

if TYPE_CHECKING:
    import datasets

_T = TypeVar("_T", bound=Task)
_KEYS = frozenset({"role", "content"})
_COLUMNS = frozenset({"id", "question", "answer", "solution"})


def checked(task: _T) -> _T:
    """The task, whose `items`, `messages` and `reward` raise a TaskError for answers that they may not give.

    Its class becomes a subclass of its own, so that copies, as of `with_libraries`, are checked too. Tasks of this
    package are returned as they are: their contract tests see to it.
    """
    if not type(task).__module__.startswith("thiefbench."):
        object.__setattr__(task, "__class__", _checking(type(task)))  # also of a frozen dataclass
    return task


@cache
def _checking(task_class: type[Task]) -> type[Task]:
    """The class with its answers checked."""

    class Checked(task_class):  # type: ignore[misc,valid-type]
        __slots__ = ()

        def items(self, split: Split) -> datasets.Dataset:
            made = super().items(split)
            if wrong := _wrong_items(made):
                raise TaskError(f"the task {self.name} {wrong} in its split {split}")
            return made

        def messages(self, item: Item) -> list[Message]:
            made = super().messages(item)
            if not isinstance(made, list) or not all(isinstance(each, dict) and set(each) >= _KEYS for each in made):
                raise TaskError(
                    f"the messages of the task {self.name} are {reprlib.repr(made)} for the item {item.id}; messages "
                    "are a list of dictionaries with role and content"
                )
            return made

        def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
            made: list[float] = super().reward(item, completions)
            if wrong := _wrong_rewards(made, len(completions)):
                raise TaskError(
                    f"the task {self.name} gave {wrong} of the item {item.id}; a reward is a number from 0 to 1"
                )
            return made

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Checked, name, getattr(task_class, name))
    return Checked


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
