"""The guest's end of the conversation with the parent, in the sandbox: messages, questions, errors in words."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.leaderboard.isolation.frames import HEADER, packed, unpacked
from thiefbench.sources import OF_USER

MAX_ERROR = 400
"""Characters of an error that a guest raised."""

_Made = TypeVar("_Made")

REFUSALS: dict[str, type[Exception]] = {"ValueError": ValueError}
"""Exceptions that stand for a refusal, by name; RuntimeError for any other."""


class Stream:
    """Messages to and from the parent over one open file.

    Args:
        file: the stream.
        most: bytes of one message that are sent.
    """

    def __init__(self, file: int, most: int) -> None:
        self._file, self._most = file, most

    def send(self, message: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
        """Send a message, and arrays where the parent takes any.

        Raises:
            ValueError, TypeError: it is too large, or not plain data.
        """
        parts = packed(message, arrays)
        size = sum(map(len, parts))
        if size > self._most:
            raise ValueError(
                f"what it returned takes {size:,} bytes, and at most {self._most:,} are allowed; return less, such as "
                "a smaller state or tensor, or shorter texts and reasons"
            )
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def receive(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """The parent's next message.

        Raises:
            EOFError: the stream has ended.
        """
        text, blob = HEADER.unpack(self._read(HEADER.size))
        return unpacked(self._read(text), self._read(blob))

    def ask(
        self, question: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()
    ) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Ask the parent a question during a request.

        Raises:
            RuntimeError, ValueError: it refuses to answer.
        """
        self.send(question, arrays)
        answer, arrays = self.receive()
        if "refused" in answer:
            raise REFUSALS.get(answer.get("as", ""), RuntimeError)(answer["refused"])
        return answer, arrays

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._file, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def send(stream: Stream, reply: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
    """Send a reply, or the reason why it cannot be sent."""
    try:
        stream.send(reply, arrays)
    except (TypeError, ValueError, RecursionError) as error:  # raised before a byte has left
        stream.send({"number": reply["number"], "failed": describe(error)})


def deep_copy(original: _Made) -> _Made:
    """A copy as a swarm makes it.

    Raises:
        UserError: it cannot be copied.
    """
    try:
        return copy.deepcopy(original)
    except Exception as error:  # its class may raise anything
        raise UserError(
            f"copy.deepcopy of it fails ({type(error).__name__}: {str(error)[:100]}), and a swarm lets attackers query "
            "such a copy; keep only what can be copied, without locks, generators and open files"
        ) from error


def why_not_made(error: BaseException, spec: str) -> str:
    """Why the object of a spec string cannot be constructed, as a clause.

    Files are called by their names without their folders. A message that begins with the spec string's kind and text
    goes on without them, because whoever reads it has asked about this one.
    """
    said = describe(error)
    for target in registry.classes_in(spec):
        file = target.rpartition(":")[0]
        said, spec = (text.replace(file, Path(file).name) for text in (said, spec))
    for whole in (spec, spec.partition("(")[0]):
        said = re.sub(rf"^(attack|defense) {re.escape(whole)}: ", "", said)
    return said


def describe(error: BaseException) -> str:
    """An error of the guest, with the line of its file where it was raised; a user's mistake is a sentence already."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if trace.tb_frame.f_globals.get("__name__", "").startswith(OF_USER):
            place = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    try:
        words = str(error)
    except Exception:  # the guest's own exception may fail at this, too
        words = "an exception whose message cannot be made"
    said = words if isinstance(error, UserError) else f"{type(error).__name__}{f': {words}' if words else ''}"
    return said[:MAX_ERROR] + place
