"""Completions that a stranger stored, held to the stored schema and to sizes before anybody reads them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.limits import TABLE_BYTES, TABLE_ROWS
from thiefbench.leaderboard.verification import _tables_worker
from thiefbench.suite.store.records import ROWS

_MEMORY = 4 * TABLE_BYTES  # of the process that reads them first: the table, and what reading it takes
_SECONDS = 120  # for one table


def check_tables(files: Sequence[Path]) -> None:
    """Hold tables to the stored schema and to sizes: by what they say, then by reading them where that does no harm.

    Raises:
        EntryError: one is something else, or too large.
    """
    for file in files:
        _check_footer(file)
    for file, size in zip(files, _sizes(files), strict=True):
        if size is None:
            raise EntryError(f"{_shown(file)} cannot be read in {_MEMORY >> 20:,} MiB and {_SECONDS} s")
        if size > TABLE_BYTES:
            raise EntryError(f"{_shown(file)} takes {size:,} bytes in memory, and at most {TABLE_BYTES:,} are taken")


def _check_footer(file: Path) -> None:
    try:
        told = pq.ParquetFile(file)
        schema, metadata = told.schema_arrow, told.metadata
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EntryError(f"{_shown(file)} is no parquet file: {str(error)[:200]}") from error
    if not schema.equals(ROWS):
        expected = {field.name: field.type for field in ROWS}
        odd = [field.name for field in schema if expected.get(field.name) != field.type]
        odd += [name for name in expected if name not in schema.names]
        raise EntryError(
            f"{_shown(file)} has other columns than stored completions: {odd[0] if odd else 'their order'}"
        )
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not 0 <= (rows := metadata.num_rows) <= TABLE_ROWS or sum(group.num_rows for group in groups) != rows:
        raise EntryError(f"{_shown(file)} has {rows:,} rows, and at most {TABLE_ROWS:,} are taken")
    if (size := sum(group.total_byte_size for group in groups)) > TABLE_BYTES:
        raise EntryError(f"{_shown(file)} says {size:,} bytes of itself, and at most {TABLE_BYTES:,} are taken")


def _sizes(files: Sequence[Path]) -> list[int | None]:
    """Bytes in memory of each table; None for the first that cannot be read, and for those behind it."""
    if not files:
        return []
    command = [sys.executable, "-P", _tables_worker.__file__, str(_MEMORY), str(_SECONDS)]
    told = "".join(f"{file.resolve()}\n" for file in files)
    done = subprocess.run(command, input=told, text=True, capture_output=True, check=False)
    sizes: list[int | None] = [int(line) for line in done.stdout.split()]
    return [*sizes, *[None] * len(files)][: len(files)]


def _shown(file: Path) -> str:
    return f"cells/{file.parent.name}/{file.name} in the archive"
