"""Which published shared cells a submission refers to, and what keeps it from doing so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from thiefbench.suite.store.arithmetic import arithmetic_here, arithmetic_of
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, identify
from thiefbench.wording import counted

Referred = tuple[PublishedCell, str]
"""A published cell and the hash of its file."""

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
    suite: Suite, shared: Sequence[CellSpec], store: Store, root: Path, own_shared: str, earlier: Entry | None = None
) -> References:
    """The published cells that take the place of shared ones: all that are published, or none.

    They are of one set: that of the entry that they are added to, or else the first one that has the cells which this
    store has or this machine would make.

    Args:
        suite: which they belong to.
        shared: the shared cells that a row needs.
        store: where they are, as far as they were run.
        root: of the board's published shared cells.
        own_shared: why none is referred to; empty to refer to all.
        earlier: the entry that they are added to, if there is one.

    Raises:
        EntryError: published cells are not those that this store has or this machine would make, and `own_shared` does
            not say why the entry brings its own; or it does, and none is published.
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
    problems = []
    for each, in_place in sets:
        found, problem = _of_set(each, in_place, specs, known, store)
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
) -> tuple[dict[CellSpec, Referred], str]:
    """One set's cells in place of shared ones, and why they cannot be, in a sentence.

    Args:
        published: the set.
        in_place: its cells of this version.
        specs: the shared cells.
        known: those of them that any set has.
        store: where they are, as far as they were run.
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
        if apart := _apart(there, store.cell(cell_id)):
            reasons.append(f"{spec.label}: {apart}")
        elif (cell := published.find(cell_id)) is not None:
            found[spec] = cell
    if reasons:
        return {}, (
            f"{len(reasons)} of the {len(in_place)} published cells of {published.title} are not those of this store "
            f"and machine, such as {reasons[0]}; to be measured against the published ones, use a machine and versions "
            f"like theirs, or {_OWN_SHARED}"
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


def check_machine(published: Iterable[Referred], brought: Sequence[CellSpec], store: Store) -> None:
    """Refuse to run cells otherwise than the published ones beside them were.

    Args:
        published: the cells that an entry refers to.
        brought: the cells that it brings; where the store has all of them, nothing is run.
        store: of their records.

    Raises:
        EntryError: cells are missing, and this machine computes otherwise.
    """
    if not (otherwise := _computes_otherwise(cell for cell, _ in published)):
        return
    if lacks(brought, store):
        raise EntryError(
            f"cells of this entry are still to be run, and not on this machine: the published ones beside them were "
            f"made with {otherwise}; go on where they were begun, or {_OWN_SHARED}"
        )


def lacks(cells: Sequence[CellSpec], store: Store) -> bool:
    """Whether a store lacks any of these cells; relative paths in them are those of the current folder."""
    identities = Identities()
    return any(_finished(store.cell(identify(identities.of(spec)))) is None for spec in cells)


def check_arithmetic(published: Collection[Referred], records: Sequence[Record]) -> None:
    """Refuse cells that were computed otherwise than the published ones beside them; raises EntryError."""
    for there, _ in published:
        expected = arithmetic_of(there.record)
        if record := next((each for each in records if arithmetic_of(each) != expected), None):
            raise EntryError(
                f"the cell {record.cell_id} was made with {made_with(record)}, and the published cells that it is to "
                f"be measured against with {made_with(there.record)}; run it again there, or {_OWN_SHARED}"
            )


def _finished(directory: CellDir) -> Record | None:
    try:
        record = directory.read()
    except BrokenRecordError:
        return None
    return None if record is None or record.status == "error" else record


def _apart(there: PublishedCell, directory: CellDir) -> str:
    """How the store's cell, or the one that this machine would make, differs from a published one; empty for no way."""
    if (record := _finished(directory)) is None:
        otherwise = _computes_otherwise([there])
        return otherwise and f"the store lacks it, and it was published with {otherwise}"
    if record.completions_sha256 == there.record.completions_sha256:
        return ""
    if where := first_apart(there.rounds, round_hashes(directory.read_rows())):
        made = f"published: {made_with(there.record)}; the store's: {made_with(record)}"
        return f"the store's completions differ from {where} on ({made})"
    return ""


def _computes_otherwise(cells: Iterable[PublishedCell]) -> str:
    """How published cells were computed otherwise than this machine would; empty where it computes alike."""
    for there in cells:
        device = str(there.record.cell["device"])
        if device != "cpu":
            return "a GPU, of which no bits are promised"
        here, published = arithmetic_here(device), arithmetic_of(there.record)
        if named := {name: value for name, value in published.items() if here.get(name) != value}:
            return ", ".join(f"{name} {value} (here: {here.get(name)})" for name, value in named.items())
    return ""
