"""Merging stores of separate runs: every cell once, and nothing that fails its checksum.

All stores are read and compared before anything is written. A cell is copied as a run would write it: under the cell's
lock, its record last. So a killed merge leaves unfinished cells, and the same command completes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.errors import UserError
from thiefbench.locks import LockedError
from thiefbench.regular_files import read_regular
from thiefbench.suite.store import weights
from thiefbench.suite.store.manifests import joined
from thiefbench.suite.store.records import (
    EXCHANGES_SHA256,
    MOST_RECORD_BYTES,
    STAGES_SHA256,
    BrokenRecordError,
    CellDir,
    Record,
    Store,
    file_sha256,
    write_atomically,
)
from thiefbench.trust import reads_strangers

Preference = Literal["first", "second"]

_APART = {"seconds", "pace", "provenance", "completions_sha256"}
"""Fields that may differ between two runs of a cell: when, where and how fast it ran; rows are compared."""


class MergeError(UserError):
    """Stores cannot be merged. One sentence for the user."""


@dataclass(frozen=True)
class Finished:
    """A cell with its record, in one of the stores."""

    store: Path
    directory: CellDir
    record: Record


@dataclass
class StoreSurvey:
    """The content of a store.

    Attributes:
        store: the store.
        cells: cells with an intact record, by id.
        damaged: cells whose files fail their checksum, with the problem.
        unfinished: ids of cells that were interrupted.
    """

    store: Store
    cells: dict[str, Finished] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Conflict:
    """One cell with different results in two stores."""

    one: Finished
    other: Finished

    def text(self) -> str:
        """One sentence that names both machines."""
        cell = self.one.record.cell
        which = f"{cell.get('attack')} x {cell.get('defense')}, seed {cell.get('seed')}"
        what = f"the cell {self.one.record.cell_id} ({which})"
        sides = " and ".join(f"{side.store} ({machine_of(side.record)})" for side in (self.one, self.other))
        return f"{what} has different results in {sides}"


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Attributes:
        cells: the number of cells in the joined store.
        copied: the number of cells written, by store.
        shared: the number of cells with the same results in several stores.
        conflicts: cells with different results, of which the preferred one was taken.
        damaged: cells left out or set aside, as text.
        lost: ids of damaged cells without an intact copy in any store.
        unfinished: the number of interrupted cells that are finished in no store.
        runs: remarks about the joined run.
    """

    cells: int
    copied: Mapping[Path, int]
    shared: int
    conflicts: tuple[Conflict, ...]
    damaged: tuple[str, ...]
    lost: tuple[str, ...]
    unfinished: int
    runs: tuple[str, ...]


@reads_strangers
def merge(stores: Sequence[Path], into: Path, prefer: Preference | None = None) -> Merged:
    """Join stores.

    Args:
        stores: in order of preference; none of them is changed unless it is `into`.
        into: the joined store: a new directory, or a store whose own cells come first.
        prefer: which results to keep if a cell has different ones in two stores: those of the store named "first" or
            "second".

    Raises:
        MergeError: a path is no store (`into` may also be empty or not there yet), another process works on a cell, or
            results differ and `prefer` is None.
    """
    out = Store(into)
    named = {path.resolve(): path for path in stores}
    if into.resolve() in named:
        named[into.resolve()] = into
    elif into.exists() and any(into.iterdir()):
        named = {into.resolve(): into, **named}
    surveys = [survey(path) for path in named.values()]
    chosen, shared, conflicts = choose(surveys, prefer)
    if conflicts and prefer is None:
        more = f", and {len(conflicts) - 1} more cells do" if len(conflicts) > 1 else ""
        raise MergeError(f"{conflicts[0].text()}{more}; choose with --prefer first or --prefer second")
    own = next((each for each in surveys if each.store.root == into), StoreSurvey(out))
    damaged = [_set_aside(own.store.cell(name), problem) for name, problem in own.damaged.items()]
    damaged += [
        f"{each.store.root / 'cells' / name} is left out: {problem}"
        for each in surveys
        if each is not own
        for name, problem in each.damaged.items()
    ]
    copied: dict[Path, int] = {}
    for name, holders in chosen.items():
        best, there = holders[0], own.cells.get(name)
        new = there is None or not same(there, best)
        if new or any(each.store != into for each in holders):
            _write(out.cell(name), best if new else None, holders)
        if new:
            copied[best.store] = copied.get(best.store, 0) + 1
    run, notes = joined([(str(each.store.root), each.store.read_run()) for each in surveys])
    if run is not None:
        out.write_run(run)
    lost = {name for each in surveys for name in each.damaged} - chosen.keys()
    unfinished = {name for each in surveys for name in each.unfinished} - chosen.keys()
    return Merged(
        len(chosen), copied, shared, tuple(conflicts), tuple(damaged), tuple(sorted(lost)), len(unfinished), notes
    )


def survey(path: Path) -> StoreSurvey:
    """Read a store and check all checksums.

    Raises:
        MergeError: it is not a store.
    """
    if not (path / "cells").is_dir():
        raise MergeError(f"{path} is no store: it has no folder cells; give directories that thiefbench run filled")
    surveyed = StoreSurvey(Store(path))
    for folder in sorted((path / "cells").glob("*")):
        directory = CellDir(folder)
        if ".broken-" in folder.name or not folder.is_dir():
            continue
        try:
            record = directory.read()
            if record is not None and record.cell_id != folder.name:
                raise BrokenRecordError(f"{directory.record_path} belongs to another cell, {record.cell_id}")
        except BrokenRecordError as error:
            surveyed.damaged[folder.name] = str(error)
            continue
        if record is not None:
            surveyed.cells[folder.name] = Finished(path, directory, record)
        elif directory.checkpoint.exists():
            surveyed.unfinished.append(folder.name)
    return surveyed


def choose(
    surveys: Sequence[StoreSurvey], prefer: Preference | None
) -> tuple[dict[str, list[Finished]], int, list[Conflict]]:
    """Choose the store's copy to use for every cell.

    Results are preferred to a recorded failure.

    Returns:
        By cell id, the equal copies, with the one to use first; how many cells have several copies; the conflicts.
    """
    chosen: dict[str, list[Finished]] = {}
    conflicts: list[Conflict] = []
    for each in surveys:
        for name, found in each.cells.items():
            before = chosen.setdefault(name, [found])
            if before[0] is found:
                continue
            both = (before[0].record.status, found.record.status)
            if both == ("error", "ok"):
                chosen[name] = [found]
            elif both == ("ok", "ok") and same(before[0], found):
                before.append(found)
            elif both == ("ok", "ok"):
                conflicts.append(Conflict(before[0], found))
                if prefer == "second":
                    chosen[name] = [found]
    return chosen, sum(len(holders) > 1 for holders in chosen.values()), conflicts


def same(one: Finished, other: Finished) -> bool:
    """Whether two copies of a cell have equal records, except for times and places, and equal rows."""
    alike = one.record.schema_version == other.record.schema_version
    if _results(one.record, alike) != _results(other.record, alike):
        return False
    if one.record.completions_sha256 == other.record.completions_sha256:
        return True
    return bool(_plain(one.directory.read_rows()).equals(_plain(other.directory.read_rows())))


def _results(record: Record, alike: bool) -> dict[str, Any]:
    """The parts of a record to compare; between schema versions without the limits of scores, which differ."""
    results = record.model_dump(exclude=_APART if alike else _APART | {"schema_version", "scores"})
    if not alike:
        results["scores"] = {name: (score.value, score.count) for name, score in record.scores.items()}
    return results


def machine_of(record: Record) -> str:
    """The machine of a cell, in a few words."""
    provenance = record.provenance
    device = provenance.get("device_name")
    name = provenance.get("processor") if device in (None, "CPU") else device
    return (
        f"{name or 'unknown machine'}, {provenance.get('threads', '?')} threads, torch {provenance.get('torch', '?')}"
    )


def _plain(table: pa.Table) -> pa.Table:
    """The table without dictionaries, which may number equal words differently."""
    columns = [pc.cast(c, c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table([column.combine_chunks() for column in columns], names=table.column_names)


def _write(target: CellDir, new: Finished | None, holders: Sequence[Finished]) -> None:
    """Give a cell the record and rows of `new`, unless None, and all weights that its copies keep."""
    with _locked(target):
        if new is not None:
            target.record_path.unlink(missing_ok=True)
            if target.weights.exists():  # of other pools
                shutil.rmtree(target.weights)
            if new.record.status == "ok":
                write_atomically(target.completions_path, new.directory.completions_path.read_bytes())
                if file_sha256(target.completions_path) != new.record.completions_sha256:
                    raise MergeError(f"{new.directory.path} changed while it was read; run the same command again")
                for name, hashed in (("exchanges.parquet", EXCHANGES_SHA256), ("stages.parquet", STAGES_SHA256)):
                    if (expected := new.record.provenance.get(hashed)) is not None:
                        _copy_beside(target, new.directory, name, expected)
            target.write(new.record)
        for each in holders:
            if each.directory.path.resolve() != target.path.resolve() and each.record.status == "ok":
                weights.adopt(target, each.directory)
        target.sweep()


def _copy_beside(target: CellDir, source: CellDir, name: str, expected: object) -> None:
    """Give a cell a table beside its completions, such as what its nodes made of each other's weights.

    Raises:
        MergeError: it is missing or is not what the record says.
    """
    try:
        write_atomically(target.path / name, read_regular(source.path / name, MOST_RECORD_BYTES))
    except OSError as error:
        raise MergeError(f"{source.path / name} cannot be read: {error}") from error
    if file_sha256(target.path / name) != expected:
        raise MergeError(f"{source.path / name} is not what its record says; take the cell out of that store")


def _set_aside(directory: CellDir, problem: str) -> str:
    with _locked(directory):
        return f"{problem}; set aside as {directory.set_aside().name}"


@contextmanager
def _locked(directory: CellDir) -> Iterator[None]:
    """Hold a cell's lock.

    Raises:
        MergeError: another process holds it.
    """
    try:
        with directory.locked():
            yield
    except LockedError as error:
        raise MergeError(
            f"another process works on {directory.path}; wait for its end and run the same command again"
        ) from error
