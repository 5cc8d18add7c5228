"""What a GenRL message says of an item. This module does not import GenRL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from thiefbench.tasks.base import Item, Task


def environment(item: Item, task: Task) -> dict[str, Any]:
    """An item as the environment state of a message, against which every receiver scores.

    "test" and "metadata" are what GenRL's code-generation example sends, "answer" what its Reasoning Gym example sends.
    """
    return {
        "question": item.question,
        "answer": item.answer,
        "test": item.tests,
        "metadata": {"dataset": task.name},
    }


def received_item(state: Mapping[str, Any]) -> Item:
    """The item that an environment state describes, in its sender's words, without an id and a solution.

    Raises:
        KeyError: the state has no question, answer or test.
    """
    return Item("", state["question"], state["answer"], "", state["test"])


def item_name(question: str) -> str:
    """The name under which GenRL's examples send an item: the MD5 of its question, in hexadecimal digits.

    It is the only part of a message that their receivers check.
    """
    return hashlib.md5(question.encode(errors="replace")).hexdigest()
