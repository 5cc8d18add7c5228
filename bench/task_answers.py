"""Whether a user's task answers as it may, so that a mistake in it is one clear sentence before anything is trained."""

from __future__ import annotations

import numbers
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, get_args

from thiefbench.tasks.base import Item, Split, Task, TaskError
from thiefbench.wording import counted

_COLUMNS = ("id", "question", "answer", "solution")
_KEYS = frozenset({"role", "content"})
LAST_BITS = 1e-9
"""How far a weighted sum of shares may lie outside of them by rounding."""


def check_task(task: Task) -> None:
    """Try a task's items, those of one split twice, and messages and rewards of its first item.

    Tasks of this package have contract tests instead.

    Raises:
        TaskError: one of them is not what it may be.
    """
    if type(task).__module__.startswith("thiefbench."):
        return
    if not task.splits or len(set(task.splits)) < len(task.splits) or not set(task.splits) <= set(get_args(Split)):
        raise TaskError(f"the splits of the task {task.name} are {task.splits!r}; it has train, test or both")
    items = {split: _items(task, split) for split in task.splits}
    (name, times), *_ = Counter(item.id for of_split in items.values() for item in of_split).most_common(1)
    if times > 1:
        of = " and ".join(split for split, of_split in items.items() if any(item.id == name for item in of_split))
        raise TaskError(
            f"the task {task.name} has {times} items with the id {name!r} (in {of}); every item has its own"
        )
    split = min(items, key=lambda each: len(items[each]))
    if {item.id for item in _items(task, split)} != {item.id for item in items[split]}:
        raise TaskError(
            f"the task {task.name} gave the items of its split {split} other ids when it was asked again; prompts and "
            "rewards are kept by ids, so an item keeps its own"
        )
    item = next(iter(items.values()))[0]
    if not _are_messages(messages := task.messages(item)):
        raise TaskError(
            f"the messages of the task {task.name} are {reprlib.repr(messages)} for the item {item.id}; messages are a "
            "list of dictionaries with the texts role and content, in characters that UTF-8 has"
        )
    texts: list[Any] = [task.oracle(item), ""]
    if not isinstance(texts[0], str):
        raise TaskError(
            f"the task {task.name} composed {reprlib.repr(texts[0])} for the item {item.id}; that is a text"
        )
    wrong = wrong_rewards(task.reward(item, texts), len(texts), f" of the item {item.id}")
    if wrong := wrong or wrong_rewards(task.rewards([item, item], texts), len(texts), f" of the item {item.id}"):
        raise TaskError(f"the task {task.name} gave {wrong}")


def _items(task: Task, split: Split) -> list[Item]:
    """The items of a split; raises TaskError if they are none."""
    rows: Any = task.items(split)
    of = f"the task {task.name} has"
    if not isinstance(rows, Iterable):
        raise TaskError(f"{of} {reprlib.repr(rows)} instead of the items of its split {split}")
    items = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise TaskError(
                f"{of} {reprlib.repr(row)} among the items of its split {split}; `items` returns a datasets.Dataset or "
                f"a list of dictionaries with {', '.join(_COLUMNS)}"
            )
        for column in _COLUMNS:
            if type(value := row.get(column)) is not str:  # numpy's strings have other hashes, and so other seeds
                given = f"the {column} {reprlib.repr(value)}" if column in row else f"no {column}"
                raise TaskError(f"{of} an item with {given} in its split {split}; each of these is a text")
            if not _is_unicode(value):
                raise TaskError(
                    f"{of} an item with the {column} {reprlib.repr(value)} in its split {split}, which holds half of a "
                    "surrogate pair; tokenizers and files take only characters that UTF-8 has"
                )
        if type(tests := row.get("tests") or "") is not str:
            raise TaskError(f"{of} an item with the tests {reprlib.repr(tests)} in its split {split}; they are a text")
        items.append(Item.from_row(row))
    if not items:
        raise TaskError(f"{of} no items in its split {split}")
    return items


def _are_messages(messages: object) -> bool:
    """Whether they ask a model something: a list of dictionaries with the texts role and content."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(each, dict) and set(each) >= _KEYS for each in messages)
        and all(isinstance(each[key], str) and _is_unicode(each[key]) for each in messages for key in _KEYS)
    )


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8, which halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def wrong_rewards(made: object, completions: int, whose: str = "") -> str:
    """What is wrong with rewards, in a clause; empty if nothing is.

    Args:
        made: what the task returned.
        completions: how many it was to reward.
        whose: words that follow them.
    """
    if not isinstance(made, Iterable) or isinstance(made, str | bytes | Mapping | Set):
        given = f"{reprlib.repr(made)} instead of a list of rewards for {counted(completions, 'completion')}"
    elif len(rewards := list(made)) != completions:
        given = f"{counted(len(rewards), 'reward')} for {counted(completions, 'completion')}"
    elif wrong := [reward for reward in rewards if not is_share(reward)]:
        given = f"the reward {reprlib.repr(wrong[0])} to a completion"
    else:
        return ""
    return f"{given}{whose}; a reward is a number from 0 to 1"


def is_share(value: object) -> bool:
    """Whether it is a number from 0 to 1, except for rounding; NaN is not."""
    return is_number(value) and -LAST_BITS <= value <= 1 + LAST_BITS  # type: ignore[operator]


def is_number(value: object) -> bool:
    """Whether a table can hold it: a number of Python's own or of numpy's, and no Fraction, tensor or numpy.bool."""
    return isinstance(value, numbers.Integral) or (
        isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational)
    )
