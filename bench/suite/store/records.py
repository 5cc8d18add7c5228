"""The record of a cell and the store that holds it.

A store is a directory; every cell has one directory in it, named by the hash of everything that can change its outcome.
Writes are atomic and contents are checksummed; files that fail their checksum are set aside and never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from thiefbench import strict_json
from thiefbench.engine.round_record import CompletionRow
from thiefbench.errors import UserError
from thiefbench.limits import MOST_ROUNDS
from thiefbench.locks import locked
from thiefbench.regular_files import open_regular, read_regular
from thiefbench.suite.store.tables import TableError, TableLimit, limit_of, read_limited
from thiefbench.tasks.answer_keys import AnswerKey

SCHEMA_VERSION = 2
"""Version of the measures in a record. Version 1 had Wilson intervals for rejection rates; it can still be read."""
CLUSTERED_FROM = 2
"""The first version whose intervals for rejection rates are clustered by sender and item."""
ROWS_VERSION = 1
"""Version of a cell's stored completions; part of its identity, as `schema_version`."""

MOST_RECORD_BYTES = 64 << 20
"""Most bytes of a record or of a store's description of its last run; those of standard-v1 have about 50 kB."""

SHARED = "shared"
"""Keys in provenance (which rounds were taken over, from which cells) and in `Record.seconds` (the time for them).

The time of their inspections counts like that of all inspections.

"""

CHOSEN = "member"
"""Key in payload: what an attack that chooses in a rehearsal played."""
SHARED_REHEARSAL = "shared_rehearsal"
"""Key in provenance: which rounds of the rehearsal were taken over, by copy of the swarm, from which cells."""

EXCHANGES_SHA256, STAGES_SHA256 = "exchanges_sha256", "stages_sha256"
"""What a record's provenance calls the hashes of exchanges.parquet and stages.parquet."""
HALF_WRITTEN = ".part"
"""Suffix of a file while it is written."""

ROWS = pa.schema(
    [
        ("phase", pa.dictionary(pa.int32(), pa.string())), ("round", pa.int32()), ("node", pa.int32()),
        ("sender", pa.dictionary(pa.int32(), pa.string())), ("item_id", pa.string()), ("group", pa.int32()),
        ("place", pa.int32()), ("ids", pa.list_(pa.int32())), ("text", pa.string()), ("ended", pa.bool_()),
        ("malicious", pa.bool_()), ("payload", pa.bool_()), ("reward", pa.float64()), ("refused", pa.string()),
        ("action", pa.dictionary(pa.int32(), pa.string())), ("score", pa.float64()), ("reason", pa.string()),
        ("token_weights", pa.list_(pa.float64())), ("advantage", pa.float64()), ("outcome", pa.float64()),
    ]
)  # fmt: skip
MAY_LACK = ("score", "token_weights", "outcome", "version", "answer", "tests")
"""Columns that may be null."""
ROWS_OF_MIXED = pa.schema(
    [*ROWS, ("cohort", pa.int32()), ("label", pa.dictionary(pa.int32(), pa.string())), ("version", pa.int32())]
)
"""Columns only for swarms whose nodes are not all equal and always present."""
_WORD = pa.dictionary(pa.int32(), pa.string())
ANSWER_KEY = pa.schema([("answer", _WORD), ("tests", _WORD)])
"""Further columns, only for swarms in which completions are scored by the answers and tests that come with them."""
RULE_REWARD = pa.schema([("rule_reward", pa.float64())])
"""A further column, only for swarms in which a judge rewards: the task's own reward."""
STORED = tuple(
    pa.schema([*rows, *key, *rule])
    for rows in (ROWS, ROWS_OF_MIXED)
    for key in ((), ANSWER_KEY)
    for rule in ((), RULE_REWARD)
)
"""The columns that a cell's completions may have."""


class Score(BaseModel):
    """A measured number with its interval over completions; value None if there was nothing to judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None
    low: float | None
    high: float | None
    count: int


NOTHING = Score(value=None, low=None, high=None, count=0)


class Point(BaseModel):
    """One score of one curve at one round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    value: float | None
    low: float | None = None
    high: float | None = None


class Record(BaseModel):
    """The results of a finished cell (record.json).

    Attributes:
        schema_version: version of this format.
        cell_id: hash that names the cell's directory.
        cell: every parameter; `task`, `attack`, `defense`, `topology` and `seed` are top-level keys.
        identity: what else the hash covers (fingerprints of data and weights, source hashes, engine revision).
        status: "ok", or "error" with `error`; an error has no scores.
        scores: asr, peak_asr, stop_rate, false_rejection_rate, masked_rate, clean_reward, start_reward, mean_length.
        other_rules: the last evaluation by other rules of success than the attack's outcome, if there are any.
        curves: per-round points by name; "eval_*" on held-out items, "train_*" on honest completions of the pools.
        payload: the drawn payload, in words.
        seconds: time by phase, over the whole cell.
        pace: seconds of every round, including the evaluation after it; empty in records of older versions.
        provenance: versions, commit, hardware, start and end, how it ended. Not part of the identity.
        completions_sha256: SHA-256 of completions.parquet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    cell_id: str
    cell: dict[str, Any]
    identity: dict[str, Any]
    status: Literal["ok", "error"]
    error: str = ""
    scores: dict[str, Score] = {}
    other_rules: dict[str, Score] = {}
    curves: dict[str, list[Point]] = {}
    payload: dict[str, str] = {}
    seconds: dict[str, float] = {}
    pace: list[float] = []
    provenance: dict[str, Any] = {}
    completions_sha256: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as `CellSpec.as_dict` gives them: `cell` without the topology, which its swarm names too."""
        return {name: value for name, value in self.cell.items() if name != "topology"}


def rounds_taken(record: Record) -> dict[int, str]:
    """The rounds that a finished cell took over, each with the cell from which it came; at most as many as it has."""
    rounds = record.cell.get("rounds")
    most = min(rounds, MOST_ROUNDS) if type(rounds) is int else 0
    taken: dict[int, str] = {}
    done = 0
    for first, last, cell in re.findall(r"\b(\d{1,7})-(\d{1,7}) of (\w+)", str(record.provenance.get(SHARED, ""))):
        taken |= dict.fromkeys(range(max(done + 1, int(first)), min(most, int(last)) + 1), cell)
        done = max(done, int(last))
    return taken


class BrokenRecordError(Exception):
    """A stored file is truncated or was edited. One sentence for the user."""


class LinkedFolderError(UserError):
    """A folder of a store is a link. One sentence for the user."""


def identify(identity: dict[str, Any]) -> str:
    """The cell id: 16 hex digits of the SHA-256 of the canonical JSON of everything that can change an outcome."""
    return hashlib.sha256(_canonical(identity)).hexdigest()[:16]


def rows_table(rows: Sequence[CompletionRow]) -> pa.Table:
    """Rows as a table with the stored schema."""
    schema = ROWS_OF_MIXED if any(row.label for row in rows) else ROWS
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    if any(row.answer_key for row in rows):
        schema = pa.schema([*schema, *ANSWER_KEY])
        keys = [row.answer_key for row in rows]
        columns |= {name: [getattr(key, name) if key else None for key in keys] for name in ANSWER_KEY.names}
    if any(row.rule_reward is not None for row in rows):
        schema = pa.schema([*schema, *RULE_REWARD])
        columns["rule_reward"] = [row.rule_reward for row in rows]
    return pa.table(columns, schema=schema)


def table_rows(table: pa.Table) -> Iterator[CompletionRow]:
    """The inverse of `rows_table`."""
    for line in table.to_pylist():
        weights = line["token_weights"]
        line["ids"] = tuple(line["ids"])
        line["token_weights"] = None if weights is None else tuple(weights)
        answer, tests = line.pop("answer", None), line.pop("tests", None)
        line["answer_key"] = None if answer is None or tests is None else AnswerKey(answer, tests)
        yield CompletionRow(**line)


def lacking(table: pa.Table) -> str:
    """The first column with a null that should have none, members of lists included; "" if there is none."""
    for name in table.column_names:
        column = table[name]
        members = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        if (name not in MAY_LACK and column.null_count) or (members is not column and members.null_count):
            return str(name)
    return ""


@dataclass(frozen=True)
class CellDir:
    """The directory of one cell.

    Attributes:
        path: the directory. It contains record.json, completions.parquet, where nodes exchange weights also
            exchanges.parquet, where the node is a pipeline also stages.parquet, the weights of recorded rounds (see
            `thiefbench.suite.store.weights`) and the lock; while the cell is unfinished, also a checkpoint; while a
            file is written, a hidden `.part`.
    """

    path: Path

    @property
    def record_path(self) -> Path:
        """The finished record."""
        return self.path / "record.json"

    @property
    def completions_path(self) -> Path:
        """One row per completion and round."""
        return self.path / "completions.parquet"

    @property
    def exchanges_path(self) -> Path:
        """One row per vector and receiver, of swarms that exchange weights."""
        return self.path / "exchanges.parquet"

    @property
    def stages_path(self) -> Path:
        """One row per stage and round, of pipelines."""
        return self.path / "stages.parquet"

    @property
    def checkpoint(self) -> Path:
        """The folder with the checkpoint of an unfinished cell."""
        return self.path / "checkpoint"

    @property
    def weights(self) -> Path:
        """The folder of recorded rounds' weights."""
        return self.path / "weights"

    def locked(self, waiting: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Hold the cell's lock, so that no other process works on it; see `thiefbench.locks.locked`.

        Folders that are links, as a store from somebody else could contain, are removed first: the holder of the lock
        writes, moves and deletes files in them.
        """
        for folder in (self.path, self.checkpoint, self.weights):
            if folder.is_symlink():
                folder.unlink(missing_ok=True)
        return locked(self.path / "lock", waiting)

    def read(self) -> Record | None:
        """The cell's record, or None if it has none.

        Raises:
            BrokenRecordError: record or completions fail their checksum.
        """
        if not self.record_path.exists():
            return None
        try:
            record = Record.model_validate(read_sealed(self.record_path))
        except ValidationError as error:
            raise BrokenRecordError(f"{self.record_path} is not a record of this version") from error
        if record.status == "ok" and not self._completions_intact(record):
            raise BrokenRecordError(f"{self.completions_path} is missing or does not match its record")
        return record

    def write(self, record: Record) -> None:
        """Write the record with its checksum."""
        write_sealed(self.record_path, record.model_dump(mode="json"))

    def read_rows(self, columns: list[str] | None = None) -> pa.Table:
        """The completions, or some columns of them.

        Raises:
            TableError: they are damaged, have other columns, or are too many for a cell of the record's shape.
        """
        try:
            cell = read_sealed(self.record_path).get("cell")
        except BrokenRecordError:  # rows without a record
            cell = None
        limit = limit_of(cell) if isinstance(cell, dict) else TableLimit()
        table = read_limited(self.completions_path, limit, columns, STORED)
        if name := lacking(table):
            raise TableError(self.completions_path, f"is incomplete: a completion has no {name}")
        return table

    def write_rows(self, table: pa.Table) -> str:
        """Write the completions and return their SHA-256."""
        write_table(self.completions_path, table)
        return file_sha256(self.completions_path)

    def write_exchanges(self, table: pa.Table) -> str:
        """Write what nodes made of each other's weights, and return its SHA-256."""
        write_table(self.exchanges_path, table)
        return file_sha256(self.exchanges_path)

    def write_stages(self, table: pa.Table) -> str:
        """Write what became of a pipeline's stages, and return its SHA-256."""
        write_table(self.stages_path, table)
        return file_sha256(self.stages_path)

    def sweep(self) -> None:
        """Remove `leftovers`; only the holder of the lock may call this."""
        for path in self.leftovers():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def leftovers(self) -> list[Path]:
        """Files that remain only after a kill: half-written files, and the checkpoint of a finished cell.

        A failed cell keeps its checkpoint, so that it can be tried again from there. What lies behind a link is not the
        store's.
        """
        folders = [each for each in (self.path, self.checkpoint, self.weights) if not each.is_symlink()]
        paths = [path for folder in folders for path in half_written(folder)]
        return [*paths, self.checkpoint] if self.checkpoint.exists() and self._has_scores() else paths

    def _has_scores(self) -> bool:
        try:
            record = self.read()
        except BrokenRecordError:
            return False
        return record is not None and record.status == "ok"

    def set_aside(self) -> Path:
        """Move a broken cell's files away; returns their new location."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.broken-{number}")).exists():
            number += 1
        aside.mkdir()
        for file in self.path.iterdir():
            if file.name != "lock":
                file.rename(aside / file.name)
        return aside

    def from_intact(self, run: Callable[[], Record], note: Callable[[str], None] = lambda text: None) -> Record:
        """What `run` returns; where it finds the cell's files damaged, they are set aside and it runs once more.

        Args:
            run: reads or runs the cell; called once or twice.
            note: is told in a sentence what was damaged and where it is now.

        Raises:
            BrokenRecordError: also what the second call wrote is damaged.
        """
        try:
            return run()
        except BrokenRecordError as error:
            note(f"{error}; set aside as {self.set_aside().name}, starting the cell again")
            return run()

    def _completions_intact(self, record: Record) -> bool:
        try:
            return file_sha256(self.completions_path) == record.completions_sha256
        except OSError:
            return False


@dataclass(frozen=True)
class Store:
    """A directory of cells.

    Attributes:
        root: the directory.
    """

    root: Path

    def cell(self, cell_id: str) -> CellDir:
        """The directory of a cell, existing or not."""
        return CellDir(self.root / "cells" / cell_id)

    def records(self) -> list[Record]:
        """Every intact record, by cell id; broken ones are left out (run the suite again to replace them)."""
        records = []
        for path in sorted((self.root / "cells").glob("*")):
            if ".broken-" in path.name or not path.is_dir():
                continue
            try:
                record = CellDir(path).read()
            except BrokenRecordError:
                continue
            if record is not None:
                records.append(record)
        return records

    def output_folder(self, name: str) -> Path:
        """A folder for pages, existing or not.

        Raises:
            LinkedFolderError: it is a link, which could lead anywhere in a store from somebody else.
        """
        folder = self.root / name
        if folder.is_symlink():
            raise LinkedFolderError(f"{folder} is a link, and pages are written into the store itself; remove the link")
        return folder

    def write_run(self, run: dict[str, Any]) -> None:
        """Store the description of the last run (its suite and cells), which a report shows."""
        with locked(self.root / "lock", waiting=lambda: None):
            for left in half_written(self.root):
                left.unlink()
            write_atomically(self.root / "run.json", json.dumps(run, indent=1, sort_keys=True).encode())

    def read_run(self) -> dict[str, Any] | None:
        """What `write_run` wrote, or None."""
        path = self.root / "run.json"
        try:
            loaded = strict_json.loads(read_regular(path, MOST_RECORD_BYTES))
        except (OSError, strict_json.JsonError):
            return None
        return loaded if isinstance(loaded, dict) else None


def half_written(folder: Path) -> list[Path]:
    """Temporary files of `write_atomically` in a folder, from a running or killed process."""
    return sorted(folder.glob(f".*{HALF_WRITTEN}"))


def write_atomically(path: Path, data: bytes, writer: str = "") -> None:
    """Write a file so that it always contains either its old or its complete new content.

    Args:
        path: the file.
        data: its new content.
        writer: the first word of the temporary file's name, for folders that several processes write to: it says whose
            the temporary files are that a killed process leaves.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = f".{writer}.{path.name}" if writer else f".{path.name}"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{hidden}-", suffix=HALF_WRITTEN)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # mkstemp creates private files, but stores are shared
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_sealed(path: Path, content: dict[str, Any], writer: str = "") -> None:
    """Write JSON data together with its checksum; for `writer` see `write_atomically`."""
    envelope = {"sha256": hashlib.sha256(_canonical(content)).hexdigest(), "content": content}
    write_atomically(path, json.dumps(envelope, indent=1, sort_keys=True).encode(), writer)


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Raises:
        BrokenRecordError: the file is truncated, was edited or is something else.
    """
    try:
        content_bytes = read_regular(path, MOST_RECORD_BYTES)
        envelope = strict_json.loads(content_bytes, only_finite=False)  # a swarm that diverged has a loss of NaN
        content, expected = envelope["content"], envelope["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenRecordError(f"{path} is truncated or something else") from error
    if not isinstance(content, dict) or hashlib.sha256(_canonical(content)).hexdigest() != expected:
        raise BrokenRecordError(f"{path} was edited after it was written")
    return content


def write_table(path: Path, table: pa.Table) -> None:
    """Write a parquet file atomically; equal tables give equal bytes."""
    buffer = pa.BufferOutputStream()
    # Rows collected in different chunks, for example after a resume, must give the same bytes.
    pq.write_table(table.combine_chunks().unify_dictionaries(), buffer, compression="zstd")
    write_atomically(path, buffer.getvalue().to_pybytes())


def file_sha256(path: Path) -> str:
    """SHA-256 of a regular file's content; raises OSError for anything else, which might be endless."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _canonical(data: dict[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
