"""A store's cells and completions as Arrow tables, and as parquet files that other tools read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thiefbench.errors import UserError
from thiefbench.suite.store.record_content import wrong_in
from thiefbench.suite.store.records import (
    ANSWER_KEY,
    HALF_WRITTEN,
    NOTHING,
    ROWS_OF_MIXED,
    RULE_REWARD,
    BrokenRecordError,
    CellDir,
    Record,
    Store,
    write_table,
)
from thiefbench.suite.store.runs import RunError, check_run
from thiefbench.tasks.text import one_line
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted

SCORES = (
    "asr", "peak_asr", "stop_rate", "false_rejection_rate", "masked_rate", "clean_reward", "start_reward",
    "mean_length",
)  # fmt: skip
"""Scores of a cell; each has a column, and three more with `_low`, `_high` and `_count` appended to its name."""

_IDENTITY = (
    ("cell_id", pa.string()), ("suite", pa.string()), ("task", pa.string()), ("attack", pa.string()),
    ("defense", pa.string()), ("role", pa.string()), ("seed", pa.int64()),
)  # fmt: skip
"""The first columns of both tables."""

CELLS = pa.schema(
    [
        *_IDENTITY, ("part", pa.string()), ("model", pa.string()), ("topology", pa.string()), ("nodes", pa.int32()),
        ("malicious", pa.int32()), ("rounds", pa.int32()), ("status", pa.string()), ("error", pa.string()),
        ("payload", pa.string()),
        *((f"{name}{end}", kind) for name in SCORES for end, kind in (
            ("", pa.float64()), ("_low", pa.float64()), ("_high", pa.float64()), ("_count", pa.int64()),
        )),
    ]
)  # fmt: skip


_CONDITIONS = [name for name in CELLS.names if not name.endswith(("_low", "_high", "_count"))]


def _plain(field: pa.Field) -> pa.Field:
    """A stored column without dictionary encoding, which other tools read badly or not at all."""
    return pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field


COMPLETIONS = pa.schema([*_IDENTITY, *map(_plain, [*ROWS_OF_MIXED, *ANSWER_KEY, *RULE_REWARD])])


class LoadError(UserError):
    """A store cannot be loaded, or its tables cannot be written. One sentence for the user."""


@dataclass(frozen=True, repr=False)
class Results:
    """The finished cells of a store.

    Attributes:
        store: the store.
        records: their records, ordered by cell id.
        run: title of the suite and name of the part, for each cell of the store's last run.
        unfinished: number of the store's cells that were begun and are not finished.
    """

    store: Store
    records: tuple[Record, ...]
    run: Mapping[str, tuple[str, str]]
    unfinished: int = 0

    def __repr__(self) -> str:
        """One line, because a notebook shows what a cell ends with."""
        failed = sum(record.status != "ok" for record in self.records)
        counts = [counted(len(self.records), "cell")]
        counts += [f"{failed} of them failed"] if failed else []
        counts += [f"{self.unfinished} more unfinished"] if self.unfinished else []
        return f"<thiefbench results of {self.store.root}: {', '.join(counts)}; see .cells and .completions>"

    @cached_property
    def cells(self) -> pa.Table:
        """One row per cell, with the columns of `CELLS`. A failed cell has an error and no scores."""
        return pa.Table.from_pylist([self._cell_row(record) for record in self.records], CELLS)

    @cached_property
    def completions(self) -> pa.Table:
        """One row per completion and round of all cells, with the columns of `COMPLETIONS`.

        Everything is read into memory at once; select the cells that you need with `where` first.

        Raises:
            TableError: a file's content is impossible for a cell of its shape.
        """
        return pa.Table.from_batches(
            [batch for table in self._completions_by_cell() for batch in table.to_batches()], COMPLETIONS
        )

    def where(self, condition: pc.Expression) -> Results:
        """The same for a subset of the cells.

        Args:
            condition: on the columns of `cells`, as in ``pc.field("defense") == "none"``.

        Raises:
            LoadError: it is no such expression, or it does not fit the columns.
        """
        if not isinstance(condition, pc.Expression):
            raise LoadError(
                f"where takes a pyarrow expression, such as pc.field('defense') == 'none' after `import "
                f"pyarrow.compute as pc`, not {one_line(repr(condition), 80)}"
            )
        try:
            kept = set(self.cells.filter(condition)["cell_id"].to_pylist())
        except pa.ArrowException as error:  # its text repeats the whole schema
            wrong = one_line(str(error).split(" in cell_id: ")[0], 200)
            raise LoadError(f"{wrong}; the condition may use the columns {', '.join(_CONDITIONS)}") from error
        return replace(self, records=tuple(record for record in self.records if record.cell_id in kept))

    def write_parquet(self, folder: str | Path) -> Path:
        """Write cells.parquet and completions.parquet into a folder, cell by cell.

        Args:
            folder: created if missing. It must not contain either file yet.

        Returns:
            The folder.

        Raises:
            LoadError: one of the files exists.
            TableError: see `completions`.
        """
        target = Path(folder)
        for path in (target / "cells.parquet", target / "completions.parquet"):
            if path.exists():
                raise LoadError(f"{path} exists already; name another folder")
        target.mkdir(parents=True, exist_ok=True)
        self._stream(target / "completions.parquet")
        write_table(target / "cells.parquet", self.cells)
        return target

    def _stream(self, path: Path) -> None:
        """Write the completions atomically: the file gets its name only when it is complete."""
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}-", suffix=HALF_WRITTEN, delete=False
        ) as file:
            unfinished = Path(file.name)
            try:
                with pq.ParquetWriter(file, COMPLETIONS, compression="zstd") as writer:
                    for table in self._completions_by_cell():
                        writer.write_table(table)
            except BaseException:
                unfinished.unlink()
                raise
        unfinished.chmod(0o644)
        unfinished.replace(path)

    def _completions_by_cell(self) -> Iterator[pa.Table]:
        for record in self.records:
            if record.status != "ok":
                continue
            rows = self.store.cell(record.cell_id).read_rows()
            about = self._identity(record)
            columns = [
                rows[field.name].cast(field.type)
                if field.name in rows.column_names
                else pa.repeat(pa.scalar(about.get(field.name), field.type), len(rows))
                for field in COMPLETIONS
            ]
            yield pa.table(columns, schema=COMPLETIONS)

    def _identity(self, record: Record) -> dict[str, Any]:
        named = {name: record.cell[name] for name in ("task", "attack", "defense", "role", "seed")}
        return {"cell_id": record.cell_id, "suite": self.run.get(record.cell_id, (None, ""))[0], **named}

    def _cell_row(self, record: Record) -> dict[str, Any]:
        cell = record.cell
        row = self._identity(record) | {
            "part": self.run.get(record.cell_id, ("", ""))[1],
            "model": cell["model"],
            "topology": cell["swarm"]["topology"],
            "nodes": cell["swarm"]["nodes"],
            "malicious": cell["swarm"]["malicious"],
            "rounds": cell["rounds"],
            "status": record.status,
            "error": record.error,
            "payload": json.dumps(record.payload, ensure_ascii=False, sort_keys=True),
        }
        for name in SCORES:
            score = record.scores.get(name, NOTHING)
            row |= {name: score.value, f"{name}_low": score.low, f"{name}_high": score.high}
            row[f"{name}_count"] = score.count
        return row


@reads_strangers
def load_results(store: str | Path) -> Results:
    """The finished cells of a store, including those of earlier runs; see `thiefbench.load`.

    Raises:
        LoadError: there is no finished cell, or one is damaged.
    """
    kept = Store(Path(store))
    if not kept.root.is_dir():
        what = "is a file" if kept.root.exists() else "does not exist"
        raise LoadError(f"{kept.root} {what}; name the folder of a store, which thiefbench run filled")
    folders = [path for path in sorted((kept.root / "cells").glob("*")) if path.is_dir()]
    cells = [kept.cell(path.name) for path in folders if ".broken-" not in path.name]
    records = tuple(record for cell in cells if (record := _intact(cell)))
    unfinished = len(cells) - len(records)
    if unfinished and not records:
        begun = counted(unfinished, "unfinished cell")
        raise LoadError(f"{kept.root} holds {begun} and no finished one; run the suite again, which continues them")
    if not records:
        raise LoadError(f"{kept.root} holds no finished cell; name a store that thiefbench run filled")
    return Results(kept, records, _asked_for(kept), unfinished)


def _intact(directory: CellDir) -> Record | None:
    """A cell's record, or None if the cell is not finished.

    Raises:
        LoadError: it is damaged.
    """
    try:
        record = directory.read()
    except BrokenRecordError as error:
        problem = str(error)
    else:
        if record is None:
            return None
        problem = f"{directory.record_path} cannot be used: {wrong}" if (wrong := wrong_in(record)) else ""
        if not problem and record.cell_id != directory.path.name:
            problem = f"{directory.record_path} belongs to another cell"
        if not problem:
            return record
    raise LoadError(
        f"{problem}; run the suite again to renew the cell, or remove its folder to load the others without it"
    )


def _asked_for(store: Store) -> dict[str, tuple[str, str]]:
    """Title of the suite and part, by cell id; empty if the store has no usable description of a last run."""
    run = store.read_run()
    try:
        if run is None:
            return {}
        check_run(run, "run.json")
    except RunError:
        return {}
    return {cell["cell_id"]: (run["title"], cell.get("part", "")) for cell in run["cells"]}
