"""Tables of completions, exchanges or stages from a stranger, checked for schema and size before they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.isolation.limits import TABLE_BYTES, TABLE_ROWS
from thiefbench.leaderboard.verification import _tables_worker, table_reader
from thiefbench.suite.analysis.exchanges import EXCHANGES
from thiefbench.suite.analysis.stages import STAGES
from thiefbench.suite.store.records import ANSWER_KEY, ROWS, ROWS_OF_MIXED, RULE_REWARD
from thiefbench.suite.store.tables import TableLimit, exchanges_limit_of, limit_of, stages_limit_of

_OTHERS: dict[str, tuple[pa.Schema, Callable[[Mapping[str, Any]], TableLimit]]] = {
    "exchanges.parquet": (EXCHANGES, exchanges_limit_of),
    "stages.parquet": (STAGES, stages_limit_of),
}
"""The tables that hold no completions, by name: their columns, and their limit from a cell's parameters."""


def check_tables(files: Mapping[Path, Mapping[str, Any]]) -> None:
    """Check the schema of tables, and their size by reading them in a limited process.

    Args:
        files: each with its cell's parameters, which say what columns it has, and what size it may have; no table may
            have more than `TABLE_ROWS` and `TABLE_BYTES`.

    Raises:
        EntryError: one has another schema, is damaged, or is too large.
    """
    limits = {}
    for file, cell in files.items():
        columns, limit_of_file = _OTHERS.get(file.name, (None, limit_of))
        limit = limit_of_file(cell)
        limits[file] = replace(limit, rows=min(limit.rows, TABLE_ROWS), bytes=min(limit.bytes, TABLE_BYTES))
        _check_schema(file, columns or columns_of(cell))
    for (file, limit), problem in zip(limits.items(), table_reader.problems_of(limits), strict=True):
        if problem is None:
            memory = _tables_worker.memory_of(limit.bytes)
            raise EntryError(f"{_shown(file)} cannot be read in {memory >> 20:,} MiB and {table_reader.SECONDS} s")
        if problem:
            raise EntryError(f"{_shown(file)} {problem}")


def columns_of(cell: Mapping[str, Any]) -> pa.Schema:
    """The columns of a cell's completions, from its parameters: more than usual where senders say what is true, or a
    judge rewards. Parameters that are not those of a cell have the usual ones."""
    swarm = cell.get("swarm")
    said = swarm if isinstance(swarm, Mapping) else {}
    sent = said.get("truth", "public") != "public"
    judged = said.get("reward", "rule") != "rule"
    # Nodes that exchange weights differ from one another, so their completions say whose they are.
    rows = ROWS_OF_MIXED if cell.get("averaging") else ROWS
    return pa.schema([*rows, *(ANSWER_KEY if sent else ()), *(RULE_REWARD if judged else ())])


def _check_schema(file: Path, columns: pa.Schema) -> None:
    try:
        schema = pq.read_schema(file)
        if not schema.equals(columns):
            expected = {field.name: field.type for field in columns}
            odd = [field.name for field in schema if expected.get(field.name) != field.type]
            odd += [name for name in expected if name not in schema.names]
            raise EntryError(
                f"{_shown(file)} does not have the columns of stored {file.stem}: {odd[0] if odd else 'their order'}"
            )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EntryError(f"{_shown(file)} is not a parquet file: {str(error)[:200]}") from error


def _shown(file: Path) -> str:
    return f"cells/{file.parent.name}/{file.name} in the archive"
