"""Tables of completions, with limits that follow from the shape of their cell.

The sizes in a parquet file prove nothing. A dictionary can store a long text once and refer to it a million times, so
six kilobytes may expand to hundreds of megabytes. So rows are read in batches with their texts still
dictionary-encoded, the bytes of their expanded form are counted, and reading stops when a cell of that shape cannot
have so many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thiefbench.engine.spec import MOST_DRAWN
from thiefbench.errors import UserError

_REENCODED = 2
"""In a swarm with several vocabularies, a completion may have this many times `max_new_tokens` (`engine.transport`)."""

_ROW_BYTES = 2048
"""Of a completion, beside its tokens: its names, numbers and reasons. A mean; single ones may have more."""
_KEY_BYTES = 4 * 16_384
"""Of an answer with its tests, where completions are scored by those that come with them: the engine's
`MOST_CHARACTERS`, which is not imported because the process that reads strangers' tables would load torch with it."""
_TOKEN_BYTES = 32 + 4 + 8
"""Of one token: eight code points of 4 bytes in its text, its id and its weight. A mean."""
_LONGEST_TOKEN = 256
"""Bytes of one token's text; the longest of common vocabularies are some 128 spaces."""
_LONGEST_TEXT = 64 << 10
"""Bytes that any text may have, such as a reason, whatever the tokens."""
_LEAST_BYTES = 4 << 20
"""Tables of tiny cells may have so many, whatever their rows."""
_UNSHAPED_ROWS, _UNSHAPED_BYTES = 2_000_000, 1 << 30
"""Of a table whose cell is not known."""
_MOST_FOLDED = 200
"""Beyond `_UNSHAPED_BYTES`, a file may unfold to so many times its own size. Honest ones were seen to grow 10 to 40
times, and a record can claim any shape."""
_BATCH = 1024


class TableError(UserError):
    """A table of completions is impossible for its cell. One sentence for the user.

    Args:
        path: of the file.
        problem: what is wrong with it, as the rest of a sentence that begins with the file's name.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.problem = problem


@dataclass(frozen=True)
class TableLimit:
    """The limits of a cell's completions: rows, tokens of one row, and bytes when expanded."""

    rows: int = _UNSHAPED_ROWS
    tokens: int = _UNSHAPED_BYTES // 4
    bytes: int = _UNSHAPED_BYTES

    @property
    def text(self) -> int:
        """Bytes of one text."""
        return max(_LONGEST_TEXT, self.tokens * _LONGEST_TOKEN)

    def of_file(self, size: int) -> TableLimit:
        """The limit for a file of `size` bytes: a record can claim any shape."""
        return TableLimit(self.rows, self.tokens, min(self.bytes, max(_UNSHAPED_BYTES, _MOST_FOLDED * size)))


def limit_of(cell: Mapping[str, Any]) -> TableLimit:
    """The limit that follows from a cell's parameters; where they are not those of a cell, the one for any table.

    Of a swarm of several cohorts, every node may be one and keep the whole pool.
    """
    try:
        swarm, evaluation = cell["swarm"], cell["evaluation"]
        rounds, every = _count(cell["rounds"]), _count(evaluation["every"])
        pool = _count(swarm["prompts"]) * _count(swarm["group"])
        mixed = _mixed(swarm)
        tokens = _count(swarm["sampling"]["max_new_tokens"]) * (_REENCODED if mixed else 1)
        cohorts = _count(swarm["nodes"]) if mixed else 1
        evaluated = ((rounds - 1) // every + 1) * _count(evaluation["completions"]) + _count(evaluation["final"])
    except (KeyError, TypeError, ValueError):
        return TableLimit()
    rows = rounds * pool * cohorts + evaluated * (1 + MOST_DRAWN)
    row_bytes = _ROW_BYTES if swarm.get("truth", "public") == "public" else _ROW_BYTES + _KEY_BYTES
    return TableLimit(rows, tokens, max(_LEAST_BYTES, rows * (row_bytes + tokens * _TOKEN_BYTES)))


def exchanges_limit_of(cell: Mapping[str, Any]) -> TableLimit:
    """The limit of a cell's exchanges: every node reads every other one's vector after every round at most."""
    try:
        rows = _count(cell["rounds"]) * _count(cell["swarm"]["nodes"]) ** 2
    except (KeyError, TypeError, ValueError):
        return TableLimit()
    return TableLimit(rows, 1, max(_LEAST_BYTES, rows * _ROW_BYTES))


def stages_limit_of(cell: Mapping[str, Any]) -> TableLimit:
    """The limit of what became of a pipeline's stages: a row for every stage and round."""
    try:
        rows = _count(cell["rounds"]) * _count(cell["pipeline"]["stages"])
    except (KeyError, TypeError, ValueError):
        return TableLimit()
    return TableLimit(rows, 1, max(_LEAST_BYTES, rows * _ROW_BYTES))


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("not a positive integer")
    return value


def _mixed(swarm: Mapping[str, Any]) -> bool:
    """Like `SwarmSpec.mixed`, for a swarm as plain data."""
    parts = any(swarm.get(name) for name in ("population", "delay", "churn", "sharing"))
    return parts or swarm.get("logprobs", "none") != "none"


def read_limited(
    path: Path, limit: TableLimit, columns: Sequence[str] | None = None, schemas: Sequence[pa.Schema] = ()
) -> pa.Table:
    """The completions of a file, or some columns of them.

    Args:
        path: the file.
        limit: what it may hold.
        columns: which of them; None for all.
        schemas: those that it may have; none for any.

    Raises:
        TableError: it is not a parquet file, is damaged, has another schema, or exceeds `limit`.
    """
    try:
        limit = limit.of_file(path.stat().st_size)
        with pq.ParquetFile(path, pre_buffer=False) as plain:
            schema = plain.schema_arrow
            _check_footer(path, plain, limit)
        if schemas and not any(schema.equals(known) for known in schemas):
            raise TableError(path, "does not have the columns of stored completions")
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        table = _unfolded(path, limit, columns, texts)
        wanted = [schema.field(name) for name in table.column_names]
        table = table.cast(pa.schema(wanted)).unify_dictionaries()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        said = " ".join(str(error).split())[:200]
        raise TableError(path, f"is not a readable parquet file: {said}") from error
    return table


def _check_footer(path: Path, parquet: pq.ParquetFile, limit: TableLimit) -> None:
    metadata = parquet.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not 0 <= (rows := metadata.num_rows) <= limit.rows or sum(group.num_rows for group in groups) != rows:
        raise TableError(path, f"has {rows:,} rows, and at most {limit.rows:,} are allowed")
    if (size := sum(group.total_byte_size for group in groups)) > limit.bytes:
        raise TableError(path, f"claims {size:,} bytes, and at most {limit.bytes:,} are allowed")
    # A column's entry in the footer that contradicts itself is an error here, and ends the whole process below.
    parquet.scan_contents(batch_size=_BATCH)
    for group in groups:
        for number in range(group.num_columns):
            column = group.column(number)
            if not 0 <= column.num_values <= group.num_rows * max(1, limit.tokens):
                raise TableError(path, f"claims {column.num_values:,} values of {column.path_in_schema[:60]}")


def _unfolded(path: Path, limit: TableLimit, columns: Sequence[str] | None, texts: Sequence[str]) -> pa.Table:
    """The table with its texts still dictionary-encoded.

    Raises:
        TableError: its expanded form would exceed the limit.
    """
    batches, rows, size = [], 0, 0
    with pq.ParquetFile(path, read_dictionary=list(texts), pre_buffer=False) as file:
        schema = file.schema_arrow
        for batch in file.iter_batches(_BATCH, columns=None if columns is None else list(columns), use_threads=False):
            schema = batch.schema
            rows += batch.num_rows
            size += sum(_bytes(column) for column in batch.columns)
            if (longest := max(map(_longest, batch.columns), default=0)) > limit.text:
                raise TableError(path, f"holds a text of {longest:,} bytes, and at most {limit.text:,} are allowed")
            if rows > limit.rows:
                raise TableError(path, f"has more than the {limit.rows:,} rows that are allowed")
            if size > limit.bytes:
                raise TableError(
                    path, f"takes more than {size:,} bytes in memory, and at most {limit.bytes:,} are allowed"
                )
            batches.append(batch)
    if not batches and columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema)


def _bytes(column: pa.Array) -> int:
    """The size of a column in expanded form."""
    if pa.types.is_dictionary(column.type):
        lengths = pc.binary_length(column.dictionary)
        return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0) + 4 * len(column)
    return int(column.nbytes)


def _longest(column: pa.Array) -> int:
    """Bytes of the longest text of a column; 0 if it has none."""
    if not pa.types.is_dictionary(column.type):
        return 0
    return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
