"""Submitting further seeds of an entry: what is there already, and what keeps it from growing.

The earlier cells are not needed for it, neither their store nor their archive: a cell's id is a hash of all that can
change its outcome, so whether the same cell would come out here is known from the entry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import chdir
from pathlib import Path

from thiefbench import registry
from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.archive import packed_file
from thiefbench.leaderboard.cell_scores import CellScores, Reference, Scores
from thiefbench.leaderboard.deliveries import apart_in_row, check_alike, made_with, named
from thiefbench.leaderboard.entry import Entry, EntryError, parsed_scores, read_entry, read_manifest, scores_content
from thiefbench.leaderboard.entry_validation import cells_of
from thiefbench.leaderboard.isolation.staging import Staged
from thiefbench.leaderboard.manifest import MANIFEST, Manifest, Numerics
from thiefbench.leaderboard.published import published_sets
from thiefbench.leaderboard.verification.baseline import check_set, other_cells
from thiefbench.leaderboard.verification.rescoring import InconsistentError
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.arithmetic import arithmetic_here, arithmetic_of
from thiefbench.suite.store.records import Record, identify
from thiefbench.wording import counted


def begun(folder: Path) -> Manifest | None:
    """The manifest of the entry in a folder; None where there is none."""
    return read_manifest(folder) if (folder / MANIFEST).is_file() else None


def to_bring(suite: Suite, number: int, earlier: Manifest | None) -> tuple[int, ...]:
    """The seeds that an entry lacks of the first ones of a suite.

    Args:
        suite: which it is run on.
        number: how many seeds it is to have.
        earlier: the entry as it is; None where there is none.

    Raises:
        EntryError: the suite has fewer.
    """
    if number > len(suite.seeds):
        raise EntryError(
            f"{suite.title} has {counted(len(suite.seeds), 'seed')}, and --seeds asks for the first {number}"
        )
    return suite.seeds[len(earlier.seeds) if earlier else 0 : number]


def continued(
    folder: Path,
    suite: Suite,
    defense: str,
    numerics: Numerics,
    staged: Staged,
    own_shared: str,
    shared: Path,
    seeds: Sequence[int],
) -> Entry:
    """The entry in a folder, to which further seeds may be added. The defense's code is loaded.

    Args:
        folder: of the entry.
        suite, defense, numerics, staged, own_shared: of the cells that are to be added; see `submit.Submission`.
        shared: the folder of the board's published shared cells.
        seeds: that are to be added.

    Raises:
        EntryError: these would not be made as the entry's cells were, or with them it would belong to another set of
            published cells.
        PublishedError: a published cell cannot be read.
    """
    manifest, weights = read_manifest(folder), [packed_file(path).name for path in staged.weights]
    with chdir(staged.folder):
        source_sha256 = registry.source_hash("defense", defense)
    for what, before, now in (
        ("suite", manifest.suite.title, suite.title),
        ("content of the suite", manifest.suite.fingerprint, suite.fingerprint()),
        ("defense", manifest.defense, defense),
        ("source of the defense", manifest.source_sha256, source_sha256),
        ("settings", settings(manifest.numerics), settings(numerics)),
        ("weights", _named([each.name for each in manifest.weights]), _named(weights)),
        ("shared cells", _whose(manifest.own_shared), _whose(own_shared)),
    ):
        if before != now:
            raise EntryError(_otherwise(folder, manifest.seeds, f"another {what}: {before:.80}, and here {now:.80}"))
    entry = read_entry(folder, shared)
    specs = cells_of(entry, suite)
    check_alike(entry)
    with chdir(staged.folder):
        here = Identities()
        identities = [here.of(spec) for _, spec in specs]
    if any(cell.cell_id != identify(expected) for cell, expected in zip(entry.cells, identities, strict=True)):
        raise EntryError(_otherwise(folder, manifest.seeds, f"another version of the benchmark ({_version(entry)})"))
    sets = published_sets(shared, suite.title)
    grown = [(suite.part_of(s), s) for s in rows.wanted(suite, (*manifest.seeds, *seeds), numerics, defense)]
    try:
        check_set(entry, grown, sets)
    except InconsistentError as error:
        raise EntryError(f"{folder} is {named(manifest.seeds)} of {suite.title}: {error}") from error
    if not own_shared.strip() and next(other_cells(entry, specs, sets), None):
        raise EntryError(_otherwise(folder, manifest.seeds, "other shared cells than those that are published now"))
    return entry


def check_machine(earlier: Entry, with_shared: bool) -> None:
    """Refuse to run cells on a machine whose results cannot stand in one row with those of an entry.

    Args:
        earlier: the entry.
        with_shared: whether the cells that are to be added are shared ones too (`check_alike`).

    Raises:
        EntryError: they cannot.
    """
    here = arithmetic_here(earlier.manifest.numerics.device)
    if apart := apart_in_row(made_with(earlier), here, with_shared or bool(earlier.further)):
        raise EntryError(_otherwise(earlier.folder, earlier.manifest.seeds, f"another arithmetic: {apart} here"))


def check_arithmetic(earlier: Entry, records: Sequence[Record]) -> None:
    """Refuse cells that cannot stand in one row with those of the entry that they are added to; raises EntryError."""
    defense = earlier.manifest.defense
    with_shared = bool(earlier.further) or any(record.cell["defense"] != defense for record in records)
    for record in records:
        if apart := apart_in_row(made_with(earlier), arithmetic_of(record), with_shared):
            what = f"another arithmetic than the cell {record.cell_id}: {apart}"
            raise EntryError(_otherwise(earlier.folder, earlier.manifest.seeds, what))


def merged(
    earlier: Entry, suite: Suite, added: Mapping[CellSpec, CellScores | Reference], seeds: tuple[int, ...]
) -> Scores:
    """The cells of an entry as they stand in its folder, with further ones, in the suite's order.

    Args:
        earlier: the entry.
        suite: of both.
        added: the further cells.
        seeds: of all of them.
    """
    stand = parsed_scores(Scores, earlier.folder, scores_content(earlier.folder)).cells
    listed = {spec: cell for cell, (_, spec) in zip(stand, cells_of(earlier, suite), strict=True)} | dict(added)
    manifest = earlier.manifest
    ordered = rows.wanted(suite, seeds, manifest.numerics, manifest.defense)
    return Scores(cells=tuple(listed[spec] for spec in ordered))


def _otherwise(folder: Path, seeds: Sequence[int], what: str) -> str:
    return (
        f"{folder} has {named(seeds)} already, made with {what}; all seeds of an entry are made alike, so go on as it "
        "was begun, or remove the folder and submit all seeds again with --seeds"
    )


def _version(entry: Entry) -> str:
    """Which version of the benchmark made an entry, as far as it is known."""
    for each in entry.published.values():
        if (before := str(each.record.identity.get("engine_revision"))) != (here := engine_revision()):
            return f"engine revision {before:.40}; here is {here}"
    commit = str(entry.manifest.machine.get("git_commit") or "unknown")
    return f"another engine revision, or other data, models or attacks; made at commit {commit:.40}"


def settings(numerics: Numerics) -> str:
    """Numerical settings as the options that give them."""
    return " ".join(f"--{name} {value}" for name, value in numerics.model_dump().items())


def _named(weights: Collection[str]) -> str:
    return ", ".join(sorted(weights)) or "none"  # a file of weights is named by its content


def _whose(own_shared: str) -> str:
    return "its own" if own_shared.strip() else "the published ones, where there are any"
