"""Which published shared cells a submission refers to, and what keeps it from doing so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard.entry import Entry, EntryError
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
from thiefbench.leaderboard.verification.baseline import current, run_options
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

    They are of one set: that of the entry that they are added to, or else the one that was computed as the row's own
    cells are, or else, where none has all of them, the first that differs from these in vector instructions alone.

    Args:
        suite: which they belong to.
        shared: the shared cells that a row needs.
        store: where they are, as far as they were run.
        root: of the board's published shared cells.
        own_shared: why none is referred to; empty to refer to all.
        made: the arithmetic of the row's own cells (`arithmetic_of_row`).
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
                "set has, and a row is measured against one set"
            )
    sets.sort(key=lambda each: not _made_as(each[1].values(), made))
    if _made_as(sets[0][1].values(), made) and known <= sets[0][1].keys():
        del sets[1:]  # whoever computes as a set was computed does not choose another one
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

    Of several sets, the one counts that was computed as this machine computes, or else the first.

    Args:
        suite: which they belong to.
        root: of the board's published shared cells.

    Raises:
        PublishedError: a published cell cannot be read.
    """
    here, arithmetic = engine_revision(), arithmetic_here("cpu")
    records = [
        each.record
        for published in published_sets(root, suite.title)
        for cells in published.cells.values()
        for each in cells
        if each.record.identity.get("engine_revision") == here
    ]
    alike = (each for each in records if each.cell["device"] == "cpu" and arithmetic_of(each) == arithmetic)
    chosen = next(alike, next(iter(records), None))
    return None if chosen is None else int(chosen.cell["threads"])


def arithmetic_of_row(own: Sequence[CellSpec], store: Store, device: str) -> dict[str, str]:
    """The arithmetic of a row's own cells: of those that a store has, or of this machine, which would run them.

    Args:
        own: the cells; relative paths in them are those of the current folder.
        store: where they are, as far as they were run.
        device: of all of them.
    """
    return next((arithmetic_of(record) for record in _records(own, store)), arithmetic_here(device))


def check_machine(published: Collection[Referred], brought: Sequence[CellSpec], store: Store) -> None:
    """Refuse to run cells that could not be measured against published ones, or not in one row with those there are.

    Args:
        published: the cells that an entry refers to; nothing is refused without any.
        brought: the cells that it brings; where the store has all of them, nothing is run.
        store: of their records.

    Raises:
        EntryError: cells are missing, and this machine computes otherwise.
    """
    if not published or not lacks(brought, store):
        return
    here = arithmetic_here(brought[0].device)
    ours = next((arithmetic_of(record) for record in _records(brought, store)), here)
    theirs = arithmetic_of(next(iter(published))[0].record)
    if brought[0].device != "cpu":
        otherwise = f"the published ones beside them were made with {_GPU}"
    elif not comparable(theirs, here):
        otherwise = f"the published ones beside them were made with {_named_apart(theirs, here)}"
    elif ours != here:
        otherwise = f"those that the store has were made with {_named_apart(ours, here)}"
    else:
        return
    raise EntryError(
        f"cells of this entry are still to be run, and not on this machine: {otherwise}; go on where they were begun, "
        f"or {_OWN_SHARED}"
    )


def lacks(cells: Sequence[CellSpec], store: Store) -> bool:
    """Whether a store lacks any of these cells; relative paths in them are those of the current folder."""
    return sum(1 for _ in _records(cells, store)) < len(cells)


def check_arithmetic(published: Collection[Referred], records: Sequence[Record]) -> None:
    """Refuse cells that were computed otherwise than each other, or that cannot be measured against published ones.

    Args:
        published: the cells that an entry refers to; nothing is refused without any.
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


def _made_as(cells: Iterable[PublishedCell], made: Mapping[str, str]) -> bool:
    """Whether all of these published cells were computed with this arithmetic."""
    return all(arithmetic_of(cell.record) == made for cell in cells)


def _named_apart(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {value} (here: {other.get(name)})" for name, value in one.items() if other.get(name) != value
    )
