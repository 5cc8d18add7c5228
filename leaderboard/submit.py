"""From a defense to an entry: which defenses may be submitted, which cells they need, and writing the entry."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.leaderboard import growing, rows
from thiefbench.leaderboard.archive import pack, packed_file
from thiefbench.leaderboard.cell_scores import CellScores, Reference, Scores, drifts, trimmed
from thiefbench.leaderboard.defense_kinds import (
    DefenseKind,
    check_fits,
    kind_of,
    rankable,
    unreleased,
    why_not_rankable,
)
from thiefbench.leaderboard.deliveries import named
from thiefbench.leaderboard.entry import Entry, EntryError, read_manifest, write_entry
from thiefbench.leaderboard.entry_validation import NOT_VERIFIABLE
from thiefbench.leaderboard.isolation.limits import AGGREGATION_CAPS, CAPS, POOL, STAGE_CHECK_CAPS
from thiefbench.leaderboard.isolation.sandbox_paths import foreign, relocated
from thiefbench.leaderboard.isolation.staging import Staged, stage
from thiefbench.leaderboard.made_with import machine, submitted, versions
from thiefbench.leaderboard.manifest import (
    ENTRY_SCHEMA,
    GROWN_SCHEMA,
    MANIFEST,
    REFERRING_SCHEMA,
    SCORES,
    Delivery,
    Line,
    Manifest,
    Numerics,
    Reason,
    SuiteName,
    archive_name,
)
from thiefbench.leaderboard.names import wrong_names
from thiefbench.leaderboard.places import check_archive, check_folder
from thiefbench.leaderboard.published import SHARED, all_made_with, processors_apart
from thiefbench.leaderboard.referring import (
    References,
    check_arithmetic,
    check_machine,
    lacks,
    machine_of_row,
    referred,
)
from thiefbench.suite.analysis.ranking import NO_ORACLE, anchor_of
from thiefbench.suite.execution.jobs import Listener
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.report.overview import SuiteRow, suite_table
from thiefbench.suite.run_plan import look_ahead, plan_lines
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.arithmetic import arithmetic_in
from thiefbench.suite.store.records import Record, Score, Store, file_sha256
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.wording import counted, one_of

_REASON = TypeAdapter(Reason)


class Credits(BaseModel):
    """Name and authors of an entry, for its readers.

    Attributes:
        name: of the entry; its folder is named after it.
        authors: of the defense or the attack.
        paper: its address, or empty.
    """

    model_config = ConfigDict(frozen=True)

    name: Line
    authors: tuple[Line, ...] = Field(min_length=1, max_length=50)
    paper: Annotated[str, Field(max_length=300, pattern=r"^(https://[^\s<>\"']+)?$")] = ""

    @property
    def slug(self) -> str:
        """The folder's name: lower-case letters, digits and hyphens; empty if the name holds none of these."""
        plain = unicodedata.normalize("NFKD", self.name).encode("ascii", "ignore").decode().lower()
        return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:48].strip("-")


@dataclass(frozen=True)
class Submission:
    """A defense that is being submitted.

    Attributes:
        credits: name and authors.
        suite: the released suite.
        defense: its spec string in canonical form, relative to `staged.folder`.
        staged: its files.
        numerics: of every cell.
        cells: the cells that its row needs, at `seeds`.
        store: of their records; the archive is written there too.
        folder: of the entry.
        references: those of them that are published and that it refers to.
        own_shared: why it brings shared cells of its own although others are published.
        shared: the folder of the board's published shared cells.
        seeds: that it brings; empty where the entry has all that were asked for.
        earlier: the entry that it adds them to; None where it is written anew.
        made_on: the machine of its own cells, or the one that would run them.
    """

    credits: Credits
    suite: Suite
    defense: str
    staged: Staged
    numerics: Numerics
    cells: tuple[CellSpec, ...]
    store: Store
    folder: Path
    references: References = field(default_factory=References)
    own_shared: str = ""
    shared: Path = SHARED
    seeds: tuple[int, ...] = ()
    earlier: Entry | None = None
    made_on: Mapping[str, Any] = field(default_factory=dict)

    @property
    def brought(self) -> tuple[CellSpec, ...]:
        """The cells that it brings itself, and that are run where the store lacks them."""
        return tuple(cell for cell in self.cells if cell not in self.references.cells)

    @property
    def checkable(self) -> str:
        """The spec string for `leaderboard check`, with absolute paths; empty for an anchor, which breaks its rules."""
        if anchor_of(self.defense):
            return ""
        return relocated(self.defense, lambda file: str(self.staged.folder.resolve() / file))

    @property
    def archive(self) -> Path:
        """The path of the archive of what it brings."""
        return self.store.root / archive_name(self.folder.name, self.seeds if self.earlier else ())


def credits_of(name: str, authors: str, paper: str) -> Credits:
    """Name and authors from the command line; `authors` are separated by commas.

    Raises:
        EntryError: a name or address is not allowed in an entry.
    """
    listed = tuple(each.strip() for each in authors.split(",") if each.strip())
    wanted = {
        "name": "--name says what the board calls the entry: one line of at most 200 characters",
        "authors": '--authors names 1 to 50 people, separated by commas, as in --authors "A. Author, B. Author"',
        "paper": f"--paper is an address that begins with https://, not {paper[:100]!r}",
    }
    try:
        credits = Credits(name=name.strip(), authors=listed, paper=paper)
    except ValidationError as error:
        raise EntryError(wanted[str(error.errors()[0]["loc"][0])]) from error
    if not credits.slug:
        raise EntryError(f"--name {name!r} holds no letter or digit that a folder could be called after; give another")
    return credits


def released(name: str, kind: DefenseKind | None = None) -> Suite:
    """A released suite that defenses are ranked on.

    Args:
        name: of the suite.
        kind: of the defense, for the suites that a message names; None for those of all kinds.

    Raises:
        EntryError: it is a file, or no defense can be ranked on it.
        SpecStringError: there is no such suite.
    """
    why = unreleased(name)
    if not why:
        suite = load_suite(name)
        why = why_not_rankable(name, suite)
    if why:
        raise EntryError(f"{why}; write --suite {one_of(rankable(kind))}")
    return suite


def prepare(
    spec: str,
    credits: Credits,
    suite: Suite,
    numerics: Numerics,
    store: Path,
    out: Path,
    baseline: bool = False,
    own_shared: str = "",
    shared: Path = SHARED,
    seeds: int | None = None,
) -> Submission:
    """Copy a defense to the folder from which it runs, and list the cells that it needs. This loads its code.

    Where shared cells of the suite are published, it refers to them, and they need not be run. Those that the store
    holds must be equal if they were made on a processor of the same model.

    Args:
        spec: of the defense.
        credits: name and authors.
        suite: as `released`.
        numerics: of every cell.
        store: of records.
        out: the folder of entries.
        baseline: whether the benchmark's own rows may be entered.
        own_shared: why it brings shared cells of its own although others are published; empty to refer to those.
        shared: the folder of the board's published shared cells.
        seeds: how many of the suite's first seeds the entry is to have; those that it has already stay as they are.
            None for all of them, in place of what it has.

    Raises:
        EntryError: it cannot be submitted, its name or authors are another entry's or the benchmark's own, published
            cells are not those that this store and this machine have, the entry's cells were made otherwise than the
            further seeds would be, or something else lies where entry or archive will be written.
        PublishedError: a published cell cannot be read.
        SpecStringError: see `registry.make`.
    """
    if (anchor := anchor_of(spec)) and not baseline:
        raise EntryError(
            f"{anchor} is a row of the benchmark itself and is already in every table; submit a defense of your own"
        )
    if wrong := wrong_names(credits.name, credits.slug, credits.authors, spec, baseline):
        raise EntryError(wrong)
    for declared in foreign(spec):
        assert declared.dist is not None
        raise EntryError(
            f"{declared.name} is installed by {declared.dist.name}, which others do not have; submit its file instead, "
            "as path/to/file.py:Class"
        )
    _check_reason(own_shared)
    folder = out / credits.slug
    _check_free(folder, credits, suite)
    cell_store = Store(store.expanduser().resolve())
    check_folder(folder, cell_store.root)
    staged = stage(spec, cell_store.root / "submissions")
    with chdir(staged.folder), staged.named_as_original():
        registry.allow(staged.spec)  # a copy of what the user named
        defense = registry.canonical("defense", staged.spec)
        try:
            made = registry.make("defense", defense)  # wrong arguments are reported now, not after a minute of checks
        except registry.SpecStringError:
            raise
        except Exception:
            # A constructor is the submitter's code and may raise anything. The check, which comes before any cell is
            # run, reports the failure as a broken rule; anchors are not checked.
            if anchor:
                raise
        else:
            check_fits(suite, made, defense)
        if registry.source_hash("defense", defense) != registry.source_hash("defense", defense, load=False):
            raise EntryError(NOT_VERIFIABLE)  # by the hash that a verifier computes, who loads no file
    _check_same(folder, credits, defense)
    begun = None if seeds is None else growing.begun(folder)
    wanted_seeds = suite.seeds if seeds is None else growing.to_bring(suite, seeds, begun)
    earlier = None
    if begun is not None:
        earlier = growing.continued(folder, suite, defense, numerics, staged, own_shared, shared, wanted_seeds)
    cells = tuple(rows.wanted(suite, wanted_seeds, numerics, defense)) if wanted_seeds else ()
    needed = [cell for cell in cells if cell.defense != defense]
    references, made_on = References(), dict[str, Any]()
    if cells:
        with chdir(staged.folder):
            made_on = machine_of_row([cell for cell in cells if cell.defense == defense], cell_store)
        alike = arithmetic_in(made_on, numerics.device)
        references = referred(suite, needed, cell_store, shared, own_shared, alike, earlier)
    submission = Submission(
        credits, suite, defense, staged, numerics, cells, cell_store, folder, references, own_shared.strip(), shared,
        wanted_seeds, earlier, made_on,
    )  # fmt: skip
    check_archive(submission.archive)
    return submission


def estimate(submission: Submission, workers: int = 1) -> list[str]:
    """How many cells to run and how long they take, as lines for the author; raises like `run_suite`."""
    try:
        with chdir(submission.staged.folder):
            plan = look_ahead(_suite_of_row(submission), submission.brought, submission.store, workers)
    except UserError:
        raise
    except Exception:
        return []  # the submitter's constructor raised it; the check that follows reports where
    return plan_lines(plan)


def run(submission: Submission, listener: Listener, workers: int = 1) -> list[Record]:
    """Run the cells that a submission brings and the store lacks; returns the records of all that it brings.

    Raises:
        EntryError: cells are missing, and this machine computes otherwise than the one that its published cells, or
            those of its earlier seeds, are of.
        KeyboardInterrupt, OSError, WorkerError: see `run_suite`.
    """
    with chdir(submission.staged.folder):
        check_machine(submission.references.cells.values(), submission.brought, submission.store)
        if submission.earlier and lacks(submission.brought, submission.store):
            with_shared = any(spec.defense != submission.defense for spec in submission.brought)
            growing.check_machine(submission.earlier, with_shared)
        return run_suite(_suite_of_row(submission), submission.brought, submission.store, listener, workers=workers)


def _suite_of_row(submission: Submission) -> Suite:
    defenses = tuple(dict.fromkeys(cell.defense for cell in submission.cells))
    return replace(submission.suite, defenses=defenses)


def write(submission: Submission, records: Sequence[Record]) -> Entry:
    """Write the archive and the entry, or the entry with what is added to it; equal records give equal bytes.

    Args:
        submission: the one that was run.
        records: of the cells that it brings, in their order.

    Raises:
        EntryError: they were made with several versions of a package, or otherwise than the published cells that they
            are measured against or than the entry's earlier ones, or are too large for an entry.
        PublishedError: the words of a published control cannot be read.
    """
    own, suite, store = submission, submission.suite, submission.store
    check_arithmetic(own.references.cells.values(), records)
    if own.earlier:
        growing.check_arithmetic(own.earlier, records)
    drift = _drifts(own, records)
    brought = {
        spec: trimmed(
            record,
            suite.part_of(spec),
            spec.defense == own.defense,
            file_sha256(store.cell(record.cell_id).record_path),
            drift.get(record.cell_id),
        )
        for spec, record in zip(own.brought, records, strict=True)
    }
    listed: dict[CellSpec, CellScores | Reference] = {}
    for spec in own.cells:
        if spec in own.references.cells:
            cell, sha256 = own.references.cells[spec]
            listed[spec] = Reference(cell_id=cell.cell_id, published=sha256)
        else:
            listed[spec] = brought[spec]
    delivery = Delivery(
        seeds=own.seeds,
        submitted=submitted(records),
        versions=versions(records, store),
        machine=machine(records),
        archive=pack(own.archive, store, list(brought.values()), own.staged.weights),
    )
    if own.earlier:
        manifest = _with_delivery(own, own.earlier.manifest, delivery)
        scores = growing.merged(own.earlier, suite, listed, manifest.seeds)
    else:
        manifest, scores = _manifest(own, delivery, records), Scores(cells=tuple(listed.values()))
    return write_entry(own.folder, manifest, scores, own.staged.source, own.shared)


def _with_delivery(own: Submission, earlier: Manifest, delivery: Delivery) -> Manifest:
    changes = {
        "schema_version": GROWN_SCHEMA,
        "name": own.credits.name,
        "paper": own.credits.paper,
        "own_shared": own.own_shared,
        "seeds": (*earlier.seeds, *delivery.seeds),
        "later": (*earlier.later, delivery),
    }
    return Manifest.model_validate(earlier.model_copy(update=changes).model_dump())


def _manifest(own: Submission, delivery: Delivery, records: Sequence[Record]) -> Manifest:
    sources = [record.identity["sources"]["defense"] for record in records if record.cell["defense"] == own.defense]
    return Manifest(
        schema_version=REFERRING_SCHEMA if own.references.cells or own.own_shared else ENTRY_SCHEMA,
        slug=own.credits.slug,
        name=own.credits.name,
        authors=own.credits.authors,
        paper=own.credits.paper,
        defense=own.defense,
        suite=SuiteName(name=own.suite.name, version=own.suite.version, fingerprint=own.suite.fingerprint()),
        seeds=delivery.seeds,
        submitted=delivery.submitted,
        numerics=own.numerics,
        versions=delivery.versions,
        machine=delivery.machine,
        source_sha256=sources[0],
        files={SCORES: "0" * 64},
        weights=tuple(packed_file(path) for path in own.staged.weights),
        archive=delivery.archive,
        own_shared=own.own_shared,
    )


def measured_against(submission: Submission) -> list[str]:
    """Which shared cells its row is measured against, in lines for the author; none where nothing is published."""
    if published := submission.references.cells:
        cells = [cell for cell, _ in published.values()]
        apart = processors_apart(submission.made_on, cells)
        lines = [
            f"measured against {counted(len(published), 'published cell')} of {submission.suite.title} "
            f"(made with {all_made_with(cells)}), which are not run here"
        ]
        if apart:
            lines.append(f"note: {apart}")
        if further := sum(spec.defense != submission.defense for spec in submission.brought):
            lines.append(
                f"note: {counted(further, 'shared cell is', 'shared cells are')} not published yet, so the entry must "
                "bring its own, and be submitted again once others are published in their place; to avoid this, submit "
                "fewer seeds with --seeds"
            )
        return lines
    if submission.own_shared:
        return [
            "measured against shared cells of its own, which are run where the store lacks them; the entry stays "
            "self-reported until a verifier has run all of them again"
        ]
    if submission.shared != SHARED:
        return [f"no shared cell of {submission.suite.title} is published in {submission.shared}, so all are run here"]
    return []


def replaced(submission: Submission) -> list[str]:
    """What is lost of an entry that was brought in several deliveries, in lines for the author."""
    there = None if submission.earlier else growing.begun(submission.folder)
    if there is None or not there.later:
        return []
    count, seeds = counted(len(there.deliveries), "delivery", "deliveries"), named(there.seeds)
    return [f"note: {submission.folder} has {seeds} in {count}, which will be replaced; --seeds adds to them"]


def _drifts(submission: Submission, records: Sequence[Record]) -> dict[str, dict[str, Score]]:
    """The drift of the cells that an entry brings, beside controls of the store or published ones."""
    part_of, references = submission.suite.part_of, submission.references
    compared = [(part_of(spec), record) for spec, record in zip(submission.brought, records, strict=True)]
    compared += [(cell.part, cell.record) for cell, _ in references.cells.values() if cell.is_control]
    return drifts(compared, submission.store, references.words())


def row_of(entry: Entry) -> SuiteRow:
    """An entry's row in a table of its own cells, as in a report."""
    suite = rows.suite_of(entry)
    table = suite_table({"suite": asdict(suite)}, rows.comparisons(entry))
    return next(row for row in table.rows if row.defense == entry.manifest.defense)


def row_summary(row: SuiteRow, partial: str = "") -> list[str]:
    """The results of a row, as lines for its author; `partial` is why it is not ranked, whatever they are."""
    worst, place = row.place.worst, row.place
    lines = []
    if worst is not None:
        chosen = ", ".join(row.fields[worst.attack].chosen)
        lines.append(
            f"worst case of harm prevented: {worst.summary.text()}, against {worst.attack}"
            + (f", which chose {chosen}" if chosen else "")
        )
    if row.utility is not None:
        lines.append(f"utility without an attack: {row.utility.text()}")
    if row.false_rejection is not None:
        rejected = row.false_rejection
        lines.append(f"false rejection, at most: {rejected.value:.3f} ({rejected.where}, seed {rejected.seed})")
    if partial:
        return [*lines, f"it will be listed without a place: {partial}; submit --seeds adds further ones"]
    if place.status == "ranked":
        return [*lines, "it will be ranked"]
    if place.reason == NO_ORACLE:
        return [*lines, "the board says whether it is ranked: it holds utility under attack to the oracle's entry"]
    listed = "without a place" if place.status == "unplaced" else f"as {place.status}"
    return [*lines, f"it will be listed {listed}" + (f": {place.reason}" if place.reason else "")]


def caps(suite: Suite) -> str:
    """The limits of a submission, as a sentence for its author; verification enforces them."""
    kind = kind_of(suite)
    if kind == "stage_check":
        most = STAGE_CHECK_CAPS
        return (
            f"limits for a stage in a round: {most.seconds:g} s of the check's own time, {most.questions} questions "
            f"for the repeated work, {most.service_seconds:g} s for their answers, {most.memory >> 20:,} MiB"
        )
    if kind == "aggregation":
        most = AGGREGATION_CAPS
        return (
            f"limits for an exchange: {most.seconds:g} s of the aggregation's own time, {most.questions} questions for "
            f"reward or loss, {most.service_seconds:g} s for their answers, {most.memory >> 20:,} MiB"
        )
    return (
        f"limits for a round of {POOL} completions: {CAPS.seconds:g} s of the defense's own time, "
        f"{CAPS.service_seconds:g} s for the answers of policy and judge, {CAPS.memory >> 20:,} MiB"
    )


def next_steps(submission: Submission, entry: Entry) -> list[str]:
    """Where the results are, and what to do with them, in lines for the author."""
    folder, size = submission.folder, entry.manifest.deliveries[-1].archive.bytes
    return [
        f"the entry: {folder}",
        f"its archive: {submission.archive} ({size / 1e6:,.1f} MB)",
        f"to see it on the board: thiefbench leaderboard build site --entries {folder.parent}",
        f"to try it: thiefbench leaderboard verify {folder} --archive {submission.archive}",
        "to submit it: open a pull request that adds the folder, and attach the archive to a release of your fork "
        "(nothing has been uploaded)",
    ]


def _check_reason(own_shared: str) -> None:
    """Raise EntryError where `--own-shared` was given without a reason, or with one that an entry has no room for."""
    try:
        reason = _REASON.validate_python(own_shared.strip())
    except ValidationError:
        reason = ""
    if own_shared and not reason:
        raise EntryError("--own-shared gives the reason in one line of at most 300 characters")


def _check_free(folder: Path, credits: Credits, suite: Suite) -> None:
    """Raise EntryError unless the folder is free or holds an entry of the same authors on the same suite."""
    if not folder.exists():
        return
    if not (folder / MANIFEST).is_file():
        if any(folder.iterdir()):
            raise EntryError(f"{folder} already exists and is not an entry; give another --name or --out")
        return
    manifest = read_manifest(folder)
    if manifest.authors != credits.authors:
        raise EntryError(f"{folder} is an entry of {', '.join(manifest.authors)}; give yours another --name")
    if manifest.suite.name != suite.name:
        raise EntryError(
            f"{folder} is an entry on {manifest.suite.title}, and this one, on {suite.title}, "
            "would replace it; give it another --name, or another folder with --out"
        )


def _check_same(folder: Path, credits: Credits, defense: str) -> None:
    """Raise EntryError where the folder's entry has another name and another defense: two names may give one folder."""
    if (manifest := growing.begun(folder)) and manifest.name != credits.name and manifest.defense != defense:
        raise EntryError(
            f"{folder} is the entry {manifest.name!r} of another defense ({manifest.defense:.80}), and this one would "
            "replace it; give it another --name"
        )
