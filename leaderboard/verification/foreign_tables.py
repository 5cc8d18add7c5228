"""Tables of completions from a stranger, checked for schema and size before anything else reads them."""

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
    """Check the schema and size of tables: first what their footers claim, then by reading them in a limited process.

    Raises:
        EntryError: one has another schema, or is too large.
    """
    for file in files:
        _check_footer(file)
    for file, size in zip(files, _sizes(files), strict=True):
        if size is None:
            raise EntryError(f"{_shown(file)} cannot be read in {_MEMORY >> 20:,} MiB and {_SECONDS} s")
        if size > TABLE_BYTES:
            raise EntryError(f"{_shown(file)} takes {size:,} bytes in memory, and at most {TABLE_BYTES:,} are allowed")


def _check_footer(file: Path) -> None:
    try:
        parquet = pq.ParquetFile(file)
        schema, metadata = parquet.schema_arrow, parquet.metadata
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EntryError(f"{_shown(file)} is not a parquet file: {str(error)[:200]}") from error
    if not schema.equals(ROWS):
        expected = {field.name: field.type for field in ROWS}
        odd = [field.name for field in schema if expected.get(field.name) != field.type]
        odd += [name for name in expected if name not in schema.names]
        raise EntryError(
            f"{_shown(file)} does not have the columns of stored completions: {odd[0] if odd else 'their order'}"
        )
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not 0 <= (rows := metadata.num_rows) <= TABLE_ROWS or sum(group.num_rows for group in groups) != rows:
        raise EntryError(f"{_shown(file)} has {rows:,} rows, and at most {TABLE_ROWS:,} are allowed")
    if (size := sum(group.total_byte_size for group in groups)) > TABLE_BYTES:
        raise EntryError(f"{_shown(file)} claims {size:,} bytes, and at most {TABLE_BYTES:,} are allowed")


def _sizes(files: Sequence[Path]) -> list[int | None]:
    """Bytes in memory of each table; None for the first that cannot be read, and for those after it."""
    if not files:
        return []
    command = [sys.executable, "-P", _tables_worker.__file__, str(_MEMORY), str(_SECONDS)]
    paths = "".join(f"{file.resolve()}\n" for file in files)
    done = subprocess.run(command, input=paths, text=True, capture_output=True, check=False)
    sizes: list[int | None] = [int(line) for line in done.stdout.split()]
    return [*sizes, *[None] * len(files)][: len(files)]


def _shown(file: Path) -> str:
    return f"cells/{file.parent.name}/{file.name} in the archive"
