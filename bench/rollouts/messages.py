"""What is written in chat messages, in the form that several projects share: role, content, tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thiefbench.pools.schema import MalformedError
from thiefbench.rollouts.fields import as_text, objects

_CALL = ("name", "arguments")


def written(content: object) -> str:
    """The text of a message's content: a text itself, or a list of parts of which some are texts; "" for null.

    Raises:
        MalformedError: it is something else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return as_text(content, "content")
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedError("content: must be a text or a list of parts")
    return "\n".join(as_text(part["text"], "content") for part in content if part.get("text") is not None)


def generated(message: Mapping[str, Any]) -> str:
    """All that a model wrote in one message: reasoning, content, and the names and arguments of its tool calls.

    Raises:
        MalformedError: one of them is of another type.
    """
    reasoning = message.get("reasoning_content")
    parts = ["" if reasoning is None else as_text(reasoning, "reasoning_content"), written(message.get("content"))]
    for call in objects(message, "tool_calls"):
        function = call.get("function")
        holder = function if isinstance(function, dict) else call
        parts += [_plain(holder.get(name)) for name in _CALL]
    return "\n".join(part for part in parts if part)


def _plain(value: object) -> str:
    if isinstance(value, dict):  # arguments that were not kept as the text they came in
        return "\n".join(f"{key}: {_plain(inside)}" for key, inside in value.items() if inside is not None)
    if isinstance(value, list):
        return "\n".join(map(_plain, value))
    return "" if value is None else as_text(str(value), "tool_calls")
