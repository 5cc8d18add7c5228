"""Reads a stranger's Parquet file in a process of its own, with a limit on memory, and writes its rows as JSON.

What such a file says of its own size proves nothing, and half a kilobyte of it can unfold to hundreds of megabytes in
a single row. So it is unfolded where no more memory can be had than is allowed: what does not fit is refused, by row
or by group of rows, and reading goes on. This file imports nothing of the package: its process starts in little time.

The file is standard input. ``parquet_child.py MEMORY columns`` writes one line, the names and kinds of the columns.
``parquet_child.py MEMORY rows ROW_BYTES ALL_BYTES COLUMNS`` writes a line for each row, or for several that are refused
together: the number of the first and of the last, and the row, or an exclamation mark and why it is refused, parted by
tabs. The last line is ``end``.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_BATCH = 16
_LEAST_ROW = 256
"""What a row counts at least; rows without values take no space in a file, and still time."""
_MOST_COLUMNS = 2000
_LONGEST_NAME = 200

_NO_PARQUET = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError)
"""What reading may end in: damage of any kind, or more memory than may be had."""


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    memory, what, *rest = arguments
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(memory)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with open(0, "rb", closefd=False) as file:
        try:
            parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
            columns = _columns(parquet.schema_arrow)
        except _NO_PARQUET:
            sys.stdout.write("[]\n" if what == "columns" else "1\t1\t!not a readable Parquet file\nend\n")
            return
        if what == "columns":
            sys.stdout.write(json.dumps(columns) + "\n")
        else:
            _write_rows(parquet, json.loads(rest[2]), int(rest[0]), int(rest[1]))


def _write_rows(parquet: pq.ParquetFile, columns: list[str], row_bytes: int, all_bytes: int) -> None:
    left = all_bytes
    for first, last, row, reason in _rows(parquet, columns, row_bytes):
        left -= row_bytes if row is None else max(_LEAST_ROW, len(row))
        if left < 0:
            row, reason = None, "unfolds to more than is read of a file of its size, and the rest is left out"
        sys.stdout.write(f"{first}\t{last}\t{f'!{reason}' if row is None else row}\n")
        if left < 0:
            break
    sys.stdout.write("end\n")


def _columns(schema: pa.Schema) -> list[list[str]]:
    names = schema.names[:_MOST_COLUMNS]
    return [[name[:_LONGEST_NAME], _kind(schema.field(place).type)] for place, name in enumerate(names)]


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return "number"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "other"


def _rows(parquet: pq.ParquetFile, columns: list[str], row_bytes: int) -> Iterator[tuple[int, int, str | None, str]]:
    """Number of the first and the last row, the JSON of one that was read, and otherwise why not."""
    number = 0
    for group in range(parquet.num_row_groups):
        last = number + max(0, parquet.metadata.row_group(group).num_rows)
        try:
            for batch in parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False):
                for place in range(batch.num_rows):
                    number += 1
                    yield number, number, *_row(batch.slice(place, 1), row_bytes)
                del batch  # the next one would be made beside it
        except _NO_PARQUET as error:
            full = isinstance(error, MemoryError)
            reason = "unfolds to more memory than it may take" if full else "damaged Parquet"
            yield number + 1, max(last, number + 1), None, reason
        number = max(last, number)


def _row(one: pa.RecordBatch, row_bytes: int) -> tuple[str | None, str]:
    """The JSON of one row, or None and why there is none."""
    too_long = f"longer than {row_bytes >> 20} MiB"
    if one.nbytes > row_bytes:
        return None, too_long
    try:
        row = json.dumps(one.to_pylist()[0], default=_refuse)
    except (TypeError, ValueError, pa.ArrowException):
        return None, "a value that is not text, number, truth value or list of such"
    except MemoryError:
        return None, too_long
    return (row, "") if len(row) <= row_bytes else (None, too_long)


def _refuse(value: object) -> Any:
    raise TypeError(f"no JSON: {type(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
