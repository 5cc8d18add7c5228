"""Reads a stranger's Parquet file in a process of its own, with a limit on memory, and writes its rows as lines of JSON.

What such a file says of its own size proves nothing, and half a kilobyte of it can unfold to hundreds of megabytes in
a single row. So it is unfolded where no more memory can be had than is allowed: what does not fit is refused, by row
or by group of rows, and reading goes on. This file imports nothing of the package: its process starts in little time.

The file is standard input. ``parquet_child.py MEMORY columns`` writes one line, the names and kinds of the columns.
``parquet_child.py MEMORY rows ROW_BYTES ALL_BYTES COLUMNS`` writes ``[first, last, row or null, reason]`` for each row,
or for several that are refused together, and an empty list at the end.
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
_MOST_COLUMNS = 2000
_LONGEST_NAME = 200


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    memory, what, *rest = arguments
    pa.set_memory_pool(pa.system_memory_pool())  # the others take address space in advance
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(memory)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with open(0, "rb", closefd=False) as file:
        try:
            parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
            if what == "columns":
                _write(_columns(parquet.schema_arrow))
                return
        except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError):
            _write([] if what == "columns" else [1, 1, None, "not a readable Parquet file"])
            return
        row_bytes, all_bytes, columns = int(rest[0]), int(rest[1]), json.loads(rest[2])
        for first, last, row, reason in _rows(parquet, columns, row_bytes):
            line = json.dumps([first, last, row, reason], default=_refuse) if row is None else row
            all_bytes -= row_bytes if row is None and reason else len(line)
            if all_bytes < 0:
                _write(
                    [first, first, None, "the file unfolds to more than is read of one of its size; the rest is not"]
                )
                break
            sys.stdout.write(line + "\n")
        sys.stdout.write("[]\n")


def _columns(schema: pa.Schema) -> list[list[str]]:
    return [
        [name[:_LONGEST_NAME], _kind(schema.field(place).type)]
        for place, name in enumerate(schema.names[:_MOST_COLUMNS])
    ]


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return "number"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "other"


def _rows(parquet: pq.ParquetFile, columns: list[str], row_bytes: int) -> Iterator[tuple[int, int, str | None, str]]:
    """Number of the first and the last row, the whole line of one that was read, and otherwise why not."""
    number = 0
    for group in range(parquet.num_row_groups):
        first = number + 1
        last = number + parquet.metadata.row_group(group).num_rows
        try:
            for batch in parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False):
                for place in range(batch.num_rows):
                    number += 1
                    yield number, number, *_row(batch.slice(place, 1), number, row_bytes)
                del batch
        except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError) as error:
            memory = isinstance(error, MemoryError)
            reason = "unfolds to more memory than a file may take" if memory else "damaged, or of another type"
            yield number + 1, max(last, number + 1), None, reason
        number = max(last, first - 1)


def _row(one: pa.RecordBatch, number: int, row_bytes: int) -> tuple[str | None, str]:
    """The line of one row, or None and why there is none."""
    if one.nbytes > row_bytes:
        return None, f"longer than {row_bytes >> 20} MiB"
    try:
        line = json.dumps([number, number, one.to_pylist()[0], ""], default=_refuse)
    except (TypeError, ValueError, UnicodeError, pa.ArrowException):
        return None, "a value that is no text, number, truth value or list of such"
    except MemoryError:
        return None, "unfolds to more memory than a file may take"
    return (line, "") if len(line) <= row_bytes else (None, f"longer than {row_bytes >> 20} MiB")


def _refuse(value: object) -> Any:
    raise TypeError(f"no JSON: {type(value)}")


def _write(content: object) -> None:
    sys.stdout.write(json.dumps(content) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
