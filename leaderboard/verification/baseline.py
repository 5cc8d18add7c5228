"""What an entry is measured against: the board's published shared cells, or cells of its own in their place.

A submitter gains by a worse control, an undefended attack that does more harm or a worse oracle as much as by better
own cells. So where the board has published these, an entry refers to them, and nothing of them is the submitter's to
say. One that brings other shared cells, as its machine computes other last bits, says why, and its row is no more than
self-reported until a verifier has run every one of them again. It is re-executed only if they came out bit-equal: a
range of results that are close enough is room to choose from. It brings all of them or none, as whoever could choose
for each cell between the published one and those of several machines would choose what suits; an entry that does both
stays self-reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from thiefbench.errors import UserError
from thiefbench.leaderboard.cell_scores import CellScores
from thiefbench.leaderboard.deliveries import made_with as arithmetic_said
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.entry_validation import other_version
from thiefbench.leaderboard.published import (
    Key,
    Published,
    PublishedCell,
    first_apart,
    key_of,
    label_of,
    made_with,
    round_hashes,
)
from thiefbench.leaderboard.set_rule import made_like, set_of_row
from thiefbench.leaderboard.verification.rescoring import InconsistentError, OtherVersionError, check_identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.arithmetic import arithmetic_of, comparable
from thiefbench.suite.store.records import Store

BEGIN_AGAIN = "remove its folder and submit it again; what its store has is not run again"
"""How an entry gets to another set."""
NUMERICS = ("device", "dtype", "threads", "batches")
"""The parameters of a cell that the board does not fix."""


@dataclass(frozen=True)
class OtherCell:
    """A shared cell that an entry brings although another one is published.

    Attributes:
        scores: from the entry.
        spec: the suite's cell.
        part: of the suite.
        published: in its place.
        apart: how the two differ, in words.
    """

    scores: CellScores
    spec: CellSpec
    part: str
    published: PublishedCell
    apart: str

    @property
    def name(self) -> str:
        """For readers."""
        return label_of(key_of(self.part, self.spec.as_dict()))


def check_references(entry: Entry, specs: Sequence[tuple[str, CellSpec]]) -> int:
    """Check that the published cells which an entry refers to are those that its own belong beside.

    Args:
        entry: which may refer to any.
        specs: its suite's cells in the entry's order, each with its part.

    Returns:
        How many there are.

    Raises:
        InconsistentError: one is another cell than the suite's, belongs to other settings than the entry's, or was made
            with another version of the benchmark.
    """
    for cell, (_, spec) in zip(entry.cells, specs, strict=True):
        if (published := entry.published.get(cell.cell_id)) is None:
            continue
        try:
            check_identity(published.record, spec)
        except OtherVersionError as error:
            subject = f"the published cell {cell.cell_id}, which it refers to, was"
            raise InconsistentError(other_version(subject, str(error))) from error
        except InconsistentError as error:
            raise InconsistentError(f"the published cell {cell.cell_id}, which it refers to: {error}") from error
        said, theirs = arithmetic_said(entry), arithmetic_of(published.record)
        if not comparable(said, theirs):
            raise InconsistentError(
                f"its own cells were made with torch {said.get('torch', 'unknown'):.60}, and the published ones that "
                f"it refers to with torch {theirs.get('torch')}; such an entry brings shared cells of its own"
            )
    return len(entry.published)


def check_set(entry: Entry, specs: Sequence[tuple[str, CellSpec]], sets: Sequence[Published]) -> None:
    """Check that an entry that refers to published cells is measured against the set that it belongs to.

    Otherwise its author could choose the one in which the undefended attack does more harm.

    Args:
        entry: which may refer to a set.
        specs: its suite's cells in the entry's order, each with its part.
        sets: all sets of the suite's published cells.

    Raises:
        InconsistentError: it belongs to another set (`set_of_row`).
        PublishedError: a published cell cannot be read.
    """
    if not entry.published:
        return
    shared = _shared_specs(entry, specs)
    in_place = [(each, cells) for each in sets if (cells := current(each, shared))]
    chosen = set_of_row(in_place, entry.manifest.numerics.model_dump(), arithmetic_said(entry))
    if chosen is not None and chosen.name != entry.shared_set:
        said = ", ".join(arithmetic_said(entry).values())
        raise InconsistentError(
            f"it is measured against {_named(entry.shared_set)} of published cells, and with own cells that were made "
            f"with {said:.120} it belongs to {_named(chosen.name)}; {BEGIN_AGAIN}"
        )


def _named(name: str) -> str:
    return f"the set {name}" if name else "the first set"


def _shared_specs(entry: Entry, specs: Sequence[tuple[str, CellSpec]]) -> dict[Key, CellSpec]:
    return {key_of(part, spec.as_dict()): spec for part, spec in specs if spec.defense != entry.manifest.defense}


def current(published: Published, specs: Mapping[Key, CellSpec]) -> dict[Key, PublishedCell]:
    """The published cells of this version of the benchmark, whatever device, dtype and threads they were run with.

    Args:
        published: of the suite.
        specs: the suite's shared cells, with any numerics.

    Raises:
        PublishedError: one cannot be read.
    """
    found = {}
    for key, spec in specs.items():
        for cell in published.cells.get(key, []):
            if of_this_version(cell, spec):
                found[key] = cell
    return found


def run_options(cell: PublishedCell) -> str:
    """The options of `run` with which a published cell was run."""
    return " ".join(f"--{name} {cell.record.cell[name]}" for name in ("device", "dtype", "threads"))


def of_this_version(cell: PublishedCell, spec: CellSpec) -> bool:
    """Whether a published cell is the suite's as this version would compute it, numerics left out."""
    try:
        there = CellSpec.from_dict(cell.record.parameters)
        if replace(there, **{name: getattr(spec, name) for name in NUMERICS}) != spec:
            return False
        check_identity(cell.record, there)
    except (ValidationError, UserError, InconsistentError):
        return False
    return True


def other_cells(
    entry: Entry, specs: Sequence[tuple[str, CellSpec]], sets: Sequence[Published], archive: Store | None = None
) -> Iterator[OtherCell]:
    """The shared cells that an entry brings although this version has others published in their place.

    They are compared with one set: the one that it refers to, or else the one that its row belongs to (`set_of_row`),
    or else the one that was computed as the entry says its cells were, or else the first. A cell that this one lacks
    and another one has is in place of that, whatever it holds: otherwise an entry could be measured against some cells
    of each set.

    Args:
        entry: of the suite.
        specs: its suite's cells in the entry's order, each with its part.
        sets: all sets of the suite's published cells.
        archive: the completions of the entry's cells; without them, files whose bytes differ count as other cells.

    Raises:
        PublishedError: a published cell cannot be read.
    """
    shared = _shared_specs(entry, specs)
    whole = [(each, cells) for each in sets if (cells := current(each, shared))]
    if not whole:
        return
    own, in_place = _set_of(entry, whole), {each.name: cells for each, cells in whole}
    for cell, (part, spec) in zip(entry.cells, specs, strict=True):
        if cell.cell_id in entry.published:
            continue
        key = key_of(part, spec.as_dict())
        if (there := in_place.get(own, {}).get(key)) is not None:
            apart = _apart(cell, there, archive)
        elif (there := next((cells[key] for cells in in_place.values() if key in cells), None)) is not None:
            apart = f"it is published, and not in the set that the row is measured against ({made_with(there.record)})"
        else:
            continue
        if apart:
            yield OtherCell(cell, spec, part, there, apart)


def _set_of(entry: Entry, in_place: Sequence[tuple[Published, Mapping[Key, PublishedCell]]]) -> str:
    """The name of the set that an entry's row is measured against, or would be if it referred to one.

    Args:
        entry: which may refer to one.
        in_place: at least one set with its cells of this version, the first one first.
    """
    if entry.refers:
        return entry.shared_set
    settings, made = entry.manifest.numerics.model_dump(), arithmetic_said(entry)
    if (chosen := set_of_row(in_place, settings, made)) is not None:
        return chosen.name
    like = (each for each, cells in in_place if made_like(cells, settings, made))
    return next(like, in_place[0][0]).name


def _apart(cell: CellScores, there: PublishedCell, archive: Store | None) -> str:
    """How a brought cell differs from the published one, in words; empty where it does not."""
    if cell.cell_id != there.cell_id:
        numerics = ", ".join(f"{name} {there.record.cell[name]}" for name in NUMERICS if name in there.record.cell)
        return f"it was run with other settings (published: {numerics})"
    if cell.completions_sha256 == there.record.completions_sha256:
        return there.numbers_apart(cell)
    if archive is None or not cell.completions_sha256:
        return "its completions have another SHA-256"
    round_apart = first_apart(there.rounds, round_hashes(archive.cell(cell.cell_id).read_rows()))
    return f"its completions differ from {round_apart} on" if round_apart else there.numbers_apart(cell)
