"""Which published shared cells a submission refers to, and what keeps it from doing so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.published import Published, PublishedCell, first_apart, key_of, made_with, round_hashes
from thiefbench.leaderboard.verification.baseline import current, run_options
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.arithmetic import arithmetic_here, arithmetic_of
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, identify

Referred = tuple[PublishedCell, str]
"""A published cell and the hash of its file."""

_OWN_SHARED = (
    'write --own-shared "REASON" to run and bring shared cells of your own; the entry is then self-reported until a '
    "verifier has run all of these again"
)


def referred(
    suite: Suite, shared: Sequence[CellSpec], store: Store, root: Path, own_shared: str
) -> dict[CellSpec, Referred]:
    """The published cells that take the place of shared ones, by these: all that are published, or none.

    Args:
        suite: which they belong to.
        shared: the shared cells that a row needs.
        store: where they are, as far as they were run.
        root: of the board's published shared cells.
        own_shared: why none is referred to; empty to refer to all.

    Raises:
        EntryError: published cells are not those that this store has or this machine would make, and `own_shared` does
            not say why the entry brings its own; or it does, and none is published.
        PublishedError: a published cell cannot be read.
    """
    published = Published(root, suite.title)
    specs = {key_of(suite.part_of(spec), spec.as_dict()): spec for spec in shared}
    in_place = current(published, specs) if published else {}
    if own_shared.strip():
        if not in_place:
            raise EntryError(f"no shared cell of {suite.title} is published here, so leave out --own-shared")
        return {}
    identities, found, reasons = Identities(), dict[CellSpec, Referred](), []
    for key, there in in_place.items():
        spec = specs[key]
        cell_id = identify(identities.of(spec))
        if cell_id != there.cell_id:
            raise EntryError(
                f"the shared cells of {suite.title} are published for {run_options(there)}: add these options to be "
                f"measured against them, or {_OWN_SHARED}"
            )
        if apart := _apart(there, store.cell(cell_id)):
            reasons.append(f"{spec.label}: {apart}")
        elif (cell := published.find(cell_id)) is not None:
            found[spec] = cell
    if reasons:
        raise EntryError(
            f"{len(reasons)} of the {len(in_place)} published cells of {suite.title} are not those of this store and "
            f"machine, such as {reasons[0]}; to be measured against the published ones, use a machine and versions "
            f"like theirs, or {_OWN_SHARED}"
        )
    return found


def published_threads(suite: Suite, root: Path) -> int | None:
    """The number of threads of a suite's shared cells that this engine's revision has published; None without any.

    Args:
        suite: which they belong to.
        root: of the board's published shared cells.

    Raises:
        PublishedError: a published cell cannot be read.
    """
    here = engine_revision()
    cells = (cell for found in Published(root, suite.title).cells.values() for cell in found)
    return next((c.record.cell["threads"] for c in cells if c.record.identity.get("engine_revision") == here), None)


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
