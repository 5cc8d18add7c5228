"""Which published shared cells a submission refers to, and what keeps it from doing so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.manifest import Numerics
from thiefbench.leaderboard.published import (
    Key,
    Published,
    PublishedCell,
    first_apart,
    key_of,
    label_of,
    made_with,
    published_sets,
    round_hashes,
    set_name,
    words_of,
)
from thiefbench.leaderboard.set_rule import set_of_row
from thiefbench.leaderboard.verification.baseline import BEGIN_AGAIN, current, run_options
from thiefbench.provenance import provenance
from thiefbench.suite.analysis.drift import Answers
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.arithmetic import arithmetic_here, arithmetic_of, comparable
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, identify
from thiefbench.wording import counted

Referred = tuple[PublishedCell, str]
"""A published cell and the hash of its file."""

_GPU = "a GPU, of which no bits are promised"
_OWN_SHARED = (
    'write --own-shared "REASON" to run and bring shared cells of your own; the entry is then self-reported until a '
    "verifier has run all of these again"
)


@dataclass(frozen=True)
class References:
    """The published cells that an entry refers to.

    Attributes:
        cells: by the shared cell whose place each takes; empty where none is published or the entry brings its own.
        of: the set that they are of; None without any.
    """

    cells: Mapping[CellSpec, Referred] = field(default_factory=dict)
    of: Published | None = None

    def words(self) -> dict[str, Callable[[], Answers]]:
        """By cell id, what reads the words of those that are controls."""
        return {} if self.of is None else words_of((cell for cell, _ in self.cells.values()), self.of)


def referred(
    suite: Suite,
    shared: Sequence[CellSpec],
    store: Store,
    root: Path,
    own_shared: str,
    made: Mapping[str, str],
    earlier: Entry | None = None,
) -> References:
    """The published cells that take the place of shared ones: all that are published, or none.

    They are of one set: that of the entry that they are added to, or else the one that the row belongs to
    (`set_of_row`).

    Args:
        suite: which they belong to.
        shared: the shared cells that a row needs.
        store: where they are, as far as they were run.
        root: of the board's published shared cells.
        own_shared: why none is referred to; empty to refer to all.
        made: the arithmetic of the row's own cells.
        earlier: the entry that they are added to, if there is one.

    Raises:
        EntryError: the row's own cells cannot be measured against published ones, and `own_shared` does not say why the
            entry brings its own; or it does, and none is published.
        PublishedError: a published cell cannot be read.
    """
    specs = {key_of(suite.part_of(spec), spec.as_dict()): spec for spec in shared}
    sets = [(each, cells) for each in published_sets(root, suite.title) if (cells := current(each, specs))]
    if own_shared.strip():
        if not sets:
            raise EntryError(f"no shared cell of {suite.title} is published here, so leave out --own-shared")
        return References()
    if not sets:
        return References()
    known = {key for _, cells in sets for key in cells}
    if earlier is not None and earlier.published:
        sets = [(each, cells) for each, cells in sets if each.name == earlier.shared_set]
        if not sets:
            raise EntryError(
                f"the published cells that {earlier.folder} is measured against lack these seeds, which only another "
                f"set has, and a row is measured against one set; {BEGIN_AGAIN}"
            )
    elif chosen := set_of_row(sets, {name: getattr(shared[0], name) for name in Numerics.model_fields}, made):
        sets = [(each, cells) for each, cells in sets if each is chosen]
    problems = []
    for each, in_place in sets:
        found, problem = _of_set(each, in_place, specs, known, store, made)
        if not problem:
            return References(found, each)
        problems.append(problem)
    if len(problems) == 1:
        raise EntryError(problems[0])
    first = (next(iter(cells.values())).record for _, cells in sets)
    of_each = "; ".join(f"{set_name(record)}: {said}" for record, said in zip(first, problems, strict=True))
    raise EntryError(f"no set of published cells of {suite.title} is one for this store and machine: {of_each}")


def _of_set(
    published: Published,
    in_place: Mapping[Key, PublishedCell],
    specs: Mapping[Key, CellSpec],
    known: Collection[Key],
    store: Store,
    made: Mapping[str, str],
) -> tuple[dict[CellSpec, Referred], str]:
    """One set's cells in place of shared ones, and why they cannot be, in a sentence.

    Args:
        published: the set.
        in_place: its cells of this version.
        specs: the shared cells.
        known: those of them that any set has.
        store: where they are, as far as they were run.
        made: the arithmetic of the row's own cells.
    """
    identities, found, reasons = Identities(), dict[CellSpec, Referred](), []
    for key, there in in_place.items():
        spec = specs[key]
        cell_id = identify(identities.of(spec))
        if cell_id != there.cell_id:
            return {}, (
                f"the shared cells of {published.title} are published for {run_options(there)}: add these options to "
                f"be measured against them, or {_OWN_SHARED}"
            )
        if apart := _unlike(there, made) or _apart(there, store.cell(cell_id)):
            reasons.append(f"{spec.label}: {apart}")
        elif (cell := published.find(cell_id)) is not None:
            found[spec] = cell
    if reasons:
        return {}, (
            f"the entry's own cells cannot be measured against {len(reasons)} of the {len(in_place)} published cells "
            f"of {published.title}, such as {reasons[0]}; use a machine and versions like theirs, or {_OWN_SHARED}"
        )
    if lacking := [key for key in known if key not in in_place]:
        seeds = len({key[-1] for key in in_place} - {key[-1] for key in lacking})
        fewer = f"submit the first {counted(seeds, 'seed')} alone (--seeds {seeds}), " if seeds else ""
        return {}, (
            f"{counted(len(lacking), 'cell')} of {published.title} that another set has published "
            f"{'is' if len(lacking) == 1 else 'are'} not in the one that goes with this store and machine, such as the "
            f"{label_of(min(lacking))}, and a row is measured against one set; {fewer}use the other set's machine and "
            f"versions, or {_OWN_SHARED}"
        )
    return found, ""


def published_threads(suite: Suite, root: Path) -> int | None:
    """The number of threads of a suite's shared cells that this engine's revision has published; None without any.

    Of several sets, the one counts that was computed as this machine computes, or else the first with its torch, or
    else the first.

    Args:
        suite: which they belong to.
        root: of the board's published shared cells.

    Raises:
        PublishedError: a published cell cannot be read.
    """
    revision, here = engine_revision(), arithmetic_here("cpu")
    records = [
        each.record
        for published in published_sets(root, suite.title)
        for cells in published.cells.values()
        for each in cells
        if each.record.identity.get("engine_revision") == revision
    ]
    on_cpu = [(int(each.cell["threads"]), arithmetic_of(each)) for each in records if each.cell["device"] == "cpu"]
    alike = [threads for threads, made in on_cpu if made == here]
    measured = [threads for threads, made in on_cpu if comparable(made, here)]
    return next(iter([*alike, *measured, *(int(each.cell["threads"]) for each in records)]), None)


def machine_of_row(own: Sequence[CellSpec], store: Store) -> dict[str, Any]:
    """The provenance of a row's own cells: of one that a store has, or of this machine, which would run them.

    Args:
        own: the cells; relative paths in them are those of the current folder.
        store: where they are, as far as they were run.
    """
    return next((record.provenance for record in _records(own, store)), provenance(own[0].device, threads=0))


def check_machine(published: Collection[Referred], brought: Sequence[CellSpec], store: Store) -> None:
    """Refuse to run cells that could not be measured against published ones, or not in one row with those there are.

    Args:
        published: the cells that an entry refers to.
        brought: the cells that it brings; where the store has all of them, nothing is run.
        store: of their records.

    Raises:
        EntryError: cells are missing, and this machine computes otherwise.
    """
    if not lacks(brought, store):
        return
    here = arithmetic_here(brought[0].device)
    ours = next((arithmetic_of(record) for record in _records(brought, store)), here)
    theirs = next((arithmetic_of(cell.record) for cell, _ in published), here)
    unless = _OWN_SHARED
    if published and brought[0].device != "cpu":
        otherwise = f"the published ones beside them were made with {_GPU}"
    elif not comparable(theirs, here):
        otherwise = f"the published ones beside them were made with {_named_apart(theirs, here)}"
    elif ours != here:
        otherwise = f"those that the store has were made with {_named_apart(ours, here)}, and all are made alike"
        unless = "choose another --store"
    else:
        return
    raise EntryError(
        f"cells of this entry are still to be run, and not on this machine: {otherwise}; go on where they were begun, "
        f"or {unless}"
    )


def lacks(cells: Sequence[CellSpec], store: Store) -> bool:
    """Whether a store lacks any of these cells; relative paths in them are those of the current folder."""
    return sum(1 for _ in _records(cells, store)) < len(cells)


def check_arithmetic(published: Collection[Referred], records: Sequence[Record]) -> None:
    """Refuse cells that were computed otherwise than each other, or that cannot be measured against published ones.

    Args:
        published: the cells that an entry refers to.
        records: of those that it brings, at least one.

    Raises:
        EntryError: they were, or cannot be.
    """
    first = records[0]
    for there, _ in published:
        if record := next((each for each in records if _unlike(there, arithmetic_of(each))), None):
            raise EntryError(
                f"the cell {record.cell_id} was made with {made_with(record)}, and the published cells that it is to "
                f"be measured against with {made_with(there.record)}; run it again there, or {_OWN_SHARED}"
            )
    if record := next((each for each in records if arithmetic_of(each) != arithmetic_of(first)), None):
        raise EntryError(
            f"the cell {record.cell_id} was made with {made_with(record)}, and the cell {first.cell_id} with "
            f"{made_with(first)}; all cells that an entry brings are made alike: choose another --store"
        )


def _records(cells: Iterable[CellSpec], store: Store) -> Iterator[Record]:
    """The records of those cells that a store has; relative paths in them are those of the current folder."""
    identities = Identities()
    found = (_finished(store.cell(identify(identities.of(spec)))) for spec in cells)
    return (record for record in found if record is not None)


def _finished(directory: CellDir) -> Record | None:
    try:
        record = directory.read()
    except BrokenRecordError:
        return None
    return None if record is None or record.status == "error" else record


def _apart(there: PublishedCell, directory: CellDir) -> str:
    """How the store's cell is not the published one although it should be, in words; empty for no way.

    Equal bits are promised on the same model of processor alone. A GPU's are the store's own or none.
    """
    record, on_gpu = _finished(directory), there.record.cell["device"] != "cpu"
    if record is None:
        return f"the store lacks it, and it was published from {_GPU}" if on_gpu else ""
    alike = arithmetic_of(record) == arithmetic_of(there.record) and _model(record) == _model(there.record)
    if record.completions_sha256 == there.record.completions_sha256 or not (alike or on_gpu):
        return ""
    if where := first_apart(there.rounds, round_hashes(directory.read_rows())):
        made = f"published: {made_with(there.record)}; the store's: {made_with(record)}"
        return f"the store's completions differ from {where} on ({made})"
    return ""


def _model(record: Record) -> str:
    return str(record.provenance.get("processor_model"))


def _unlike(there: PublishedCell, made: Mapping[str, str]) -> str:
    """How cells of an arithmetic were made too differently from a published one to be measured against it.

    In words; empty where they can be measured against it.
    """
    published = arithmetic_of(there.record)
    return "" if comparable(published, made) else f"it was published with {_named_apart(published, made)}"


def _named_apart(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {value} (here: {other.get(name)})" for name, value in one.items() if other.get(name) != value
    )
