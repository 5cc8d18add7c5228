"""Reading and writing files of recorded pools, line by line; malformed lines are skipped and counted by reason."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from thiefbench import strict_json
from thiefbench.error_messages import problem
from thiefbench.errors import UserError
from thiefbench.pools.schema import LONGEST_NAME, VERSION, Header, Line, MalformedError
from thiefbench.tasks.text import one_line

LINE_BYTES = 8 << 20
"""The longest line that is read. Completions of one sender for one item may be spread over several lines."""

MOST_FIELDS = 64
"""Fields of a JSON object: more than the format has, and few enough to find the wrong one quickly."""

FIRST_SHOWN = 5
"""Malformed lines whose number and mistake are remembered."""

_CHUNK = 1 << 16
_SHOULD = re.compile(r"^(?:Input|String|List|Number) should (be|have) ")


class PoolFileError(UserError):
    """A file of recorded pools cannot be used. One sentence for the user."""


@dataclass
class Refused:
    """Counts of malformed lines, in bounded memory.

    Attributes:
        count: the number of malformed lines.
        reasons: the number of lines for each reason.
        first: line number and error of the first ones.
        where: the place of each of these in words, such as "line 2".
    """

    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[tuple[int, str]] = field(default_factory=list)
    where: list[str] = field(default_factory=list)

    def add(self, number: int, error: MalformedError, where: str = "") -> None:
        """One more.

        Args:
            number: of the line or row, from 1.
            error: its mistake.
            where: that number in words; by default as of a line in a file of its own.
        """
        self.count += 1
        self.reasons[error.reason] += 1
        if len(self.first) < FIRST_SHOWN:
            self.first.append((number, str(error)))
            self.where.append(where or f"line {number}")

    def shown(self) -> list[str]:
        """The first of them as sentences."""
        return [f"{where}: {mistake}" for where, (_, mistake) in zip(self.where, self.first, strict=True)]


def read(path: Path, take: Callable[[int, Line], None]) -> tuple[Header | None, Refused]:
    """Read a file line by line; only one line is in memory at a time.

    Args:
        path: the file.
        take: called with the number (from 1) and content of every valid line; may refuse it with a `MalformedError`.

    Returns:
        The header, if there is one, and the refused lines.

    Raises:
        PoolFileError: the file cannot be read, or its header is malformed or of another version.
    """
    refused, header = Refused(), None
    try:
        with path.open("rb") as file:
            for number, raw in numbered_lines(file, LINE_BYTES):
                try:
                    fields = _parsed(raw)
                    if "thiefbench_pool" not in fields:
                        take(number, _line(fields))
                    elif number == 1:
                        header = _header(fields, path)
                    elif header is None or _header(fields, path) != header:
                        raise MalformedError("a header that is not the first line's")
                except MalformedError as error:
                    refused.add(number, error)
    except OSError as error:
        raise PoolFileError(f"{path} cannot be read: {error.strerror}") from error
    return header, refused


def write(header: Header, lines: Sequence[Line]) -> bytes:
    """A file's content; fields with their default value are left out."""
    json_lines = [one.model_dump_json(exclude_none=True, exclude_defaults=True) for one in lines]
    return "".join(f"{one}\n" for one in (header.model_dump_json(exclude_defaults=True), *json_lines)).encode()


def numbered_lines(file: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Every line that is not blank, with its number from 1; None for a line of more than `most_bytes`."""
    number = 0
    while raw := file.readline(most_bytes + 1):
        number += 1
        if len(raw) > most_bytes and not raw.endswith(b"\n"):
            while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif raw.strip():
            yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw


def _parsed(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise MalformedError(
            f"longer than {LINE_BYTES >> 20} MiB; spread the completions of this sender and item over several lines"
        )
    try:
        fields = strict_json.loads(raw, most_fields=MOST_FIELDS)
    except strict_json.JsonError as error:
        raise MalformedError(error.reason, error.detail) from error
    if not isinstance(fields, dict):
        raise MalformedError("not a JSON object")
    return fields


_Model = TypeVar("_Model", Line, Header)


def _line(fields: dict[str, Any]) -> Line:
    line = _validated(Line, fields)
    line.check()
    return line


def _header(fields: dict[str, Any], path: Path) -> Header:
    version = fields["thiefbench_pool"]
    if type(version) is not int:
        raise PoolFileError(f"{path}, the header in its first line: thiefbench_pool: must be the integer {VERSION}")
    if version != VERSION:
        raise PoolFileError(f"{path} is written in version {version} of the format, and this is for version {VERSION}")
    try:
        return _validated(Header, fields)
    except MalformedError as error:
        raise PoolFileError(f"{path}, the header in its first line: {error}") from error


def _validated(model: type[_Model], fields: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _mistake(model, error) from error


def _mistake(model: type[BaseModel], error: ValidationError) -> MalformedError:
    """The first error in our own words, because a stranger's text may be long."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        inside = f"{path[0]}: " if len(path) > 1 else ""
        near = difflib.get_close_matches(path[-1][:LONGEST_NAME], model.model_fields, n=1)
        hint = f"{one_line(path[-1], 60)!r}, did you mean {near[0]}?" if near else repr(one_line(path[-1], 60))
        return MalformedError(f"{inside}a field that the format does not have", hint)
    if not path:  # a name that is not valid text
        return MalformedError("a field that the format does not have")
    if first["type"] == "missing":
        return MalformedError(f"the field {'.'.join(part for part in path if not part.isdigit())} is missing")
    original = problem(first).partition(" after validation")[0]
    message = _SHOULD.sub(r"must \1 ", original)
    return MalformedError(f"{path[0]}: {message}", f"at {'.'.join(path[1:])}" if path[1:] else "")
