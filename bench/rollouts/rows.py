"""Lines of JSON and rows of Parquet as plain fields, one by one, each with its number or what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from thiefbench import strict_json
from thiefbench.pools.files import numbered_lines
from thiefbench.pools.schema import MalformedError
from thiefbench.regular_files import open_regular

ROW_BYTES = 16 << 20
"""Of one line, or of one row as JSON."""
MOST_FIELDS = 10_000
"""Of one object; graders of code and agents log many."""

MEMORY = 1 << 30
"""What unfolding a Parquet file may take at a time."""
LEAST_UNFOLDED, MOST_UNFOLDED, MOST_FOLDED = 128 << 20, 4 << 30, 200
"""Bytes that all rows of one Parquet file may unfold to: so many times its size, yet no fewer and no more than this.
Prompts that many rows share are stored once, so that honest files of completions grow some ten times."""

_PARQUET = b"PAR1"
_MARGIN = 200
"""Bytes around a row in a line of the other process."""


@dataclass(frozen=True)
class Row:
    """One line or row, or several rows that are refused together.

    Attributes:
        first, last: its number from 1, and the last one's.
        fields: its content; None where it is refused.
        mistake: why.
    """

    first: int
    last: int
    fields: dict[str, Any] | None
    mistake: MalformedError | None = None


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        return file.read(len(_PARQUET)) == _PARQUET


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        for number, raw in numbered_lines(file, ROW_BYTES):
            try:
                yield Row(number, number, _object(raw))
            except MalformedError as mistake:
                yield Row(number, number, None, mistake)


def parquet_columns(path: Path) -> list[tuple[str, str]]:
    """The columns of a Parquet file by name and kind: "number", "text" or "other"; none where it cannot be read.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    with _child(path, "columns") as output:
        line = output.readline(ROW_BYTES)
    return [(name, kind) for name, kind in json.loads(line)] if line.endswith(b"\n") else []


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a Parquet file.

    Args:
        path: the file.
        columns: which are read; a column inside another is named as outer.inner.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    budget = min(MOST_UNFOLDED, max(LEAST_UNFOLDED, MOST_FOLDED * path.stat().st_size))
    number = 0
    with _child(path, "rows", str(ROW_BYTES), str(budget), json.dumps(list(columns))) as output:
        while True:
            raw = output.readline(ROW_BYTES + _MARGIN)
            if not raw.endswith(b"\n"):  # it ended before its time
                yield Row(number + 1, number + 1, None, MalformedError("Parquet that cannot be read on from here"))
                return
            if raw == b"end\n":
                return
            row = _parquet_row(raw)
            number = row.last
            yield row


def _parquet_row(raw: bytes) -> Row:
    first, last, content = raw[:-1].split(b"\t", 2)
    try:
        if content.startswith(b"!"):
            raise MalformedError(content[1:].decode())
        return Row(int(first), int(last), _object(content))
    except MalformedError as mistake:
        return Row(int(first), int(last), None, mistake)


def _object(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise MalformedError(f"longer than {ROW_BYTES >> 20} MiB")
    try:
        fields = strict_json.loads(raw, most_fields=MOST_FIELDS, only_finite=False)
    except strict_json.JsonError as error:
        raise MalformedError(error.reason, error.detail) from error
    if not isinstance(fields, dict):
        raise MalformedError("not a JSON object")
    return fields


@contextmanager
def _child(path: Path, *arguments: str) -> Iterator[BufferedReader]:
    """What the other process writes about a file; it is ended with the block."""
    script = Path(__file__).with_name("parquet_child.py")
    with open_regular(path) as file:
        child = subprocess.Popen(
            [sys.executable, "-P", str(script), str(MEMORY), *arguments],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Arrow's own pools take a gigabyte of addresses at once, which counts as memory that is used.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
    assert isinstance(child.stdout, BufferedReader)
    try:
        yield child.stdout
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
