"""From an attack to its entry: which attacks may be submitted, running them, and writing the entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from thiefbench import registry
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.archive import pack, packed_file
from thiefbench.leaderboard.attacking import measured
from thiefbench.leaderboard.attacking.cells import Wanted, fitting_parts, wanted
from thiefbench.leaderboard.attacking.entry import (
    AttackEntry,
    is_attack_entry,
    read_attack_entry,
    write_attack_entry,
)
from thiefbench.leaderboard.attacking.manifest import (
    MOST_TARGETS,
    AttackManifest,
    Target,
    granted,
)
from thiefbench.leaderboard.attacking.running import AttackFactory, Guarded, run_attack_cell
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackScores, attack_cell, cost_in_words, examples
from thiefbench.leaderboard.defense_kinds import kind_of
from thiefbench.leaderboard.delivered_archives import at_hand, unpacked
from thiefbench.leaderboard.deliveries import delivered
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.entry_validation import check_source, wrong_import, wrong_size
from thiefbench.leaderboard.growing import settings
from thiefbench.leaderboard.isolation.isolated import forbidden_judge
from thiefbench.leaderboard.isolation.isolated_attack import IsolatedAttack
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.isolation.limits import CONTROL_ASR, POOL
from thiefbench.leaderboard.isolation.sandbox_paths import files, foreign, relocated
from thiefbench.leaderboard.isolation.staging import Staged, restage, stage
from thiefbench.leaderboard.made_with import machine, submitted, versions
from thiefbench.leaderboard.manifest import MANIFEST, SCORES, Numerics, SuiteName
from thiefbench.leaderboard.names import wrong_names
from thiefbench.leaderboard.places import FOLDER_OF_ONE, check_archive, check_folder
from thiefbench.leaderboard.published import SHARED
from thiefbench.leaderboard.submit import Credits
from thiefbench.loading import names_module
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.estimates.eta import Stage
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.execution.cell_run import Progress
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.run_plan import estimate_of, time_lines
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Store, file_sha256, identify
from thiefbench.tasks.text import one_line
from thiefbench.wording import counted

Watch = Callable[[str], Progress]
"""A cell's name -> receives the progress of its rounds."""


@dataclass(frozen=True)
class AttackSubmission:
    """An attack that is being submitted.

    Attributes:
        credits: name and authors.
        suite: the suite of the listed defense.
        parts: the names of its parts that the attack fits.
        staged: its files.
        attack: its spec string in the entry.
        isolated: the attack, whose threat model counts.
        targets: the defenses that it is run against; those of an earlier version of the entry come first.
        guarded: these defenses as they are made here, by the folder of their entry.
        numerics: of every cell.
        store: of the records; the archive is written there too.
        folder: of the entry.
    """

    credits: Credits
    suite: Suite
    parts: tuple[str, ...]
    staged: Staged
    attack: str
    isolated: IsolatedAttack
    targets: tuple[Target, ...]
    guarded: Mapping[str, Guarded]
    numerics: Numerics
    store: Store
    folder: Path

    @property
    def cells(self) -> list[Wanted]:
        """The cells of the entry."""
        return wanted(self.suite, self.parts, self.attack, self.targets, self.numerics)

    @property
    def spec(self) -> str:
        """The attack's spec string with absolute paths."""
        return relocated(self.attack, lambda file: str(self.staged.folder.resolve() / file), "attack")

    @property
    def factory(self) -> AttackFactory:
        """Makes the attack in the sandbox."""
        return AttackFactory(self.attack, self.spec, registry.source_hash("attack", self.spec, load=False))

    @property
    def archive(self) -> Path:
        """The path of the entry's archive."""
        return self.store.root / f"{self.folder.name}.tar"


def checked_spec(spec: str) -> None:
    """Check that an attack's spec string and files may be submitted; nothing is loaded.

    Raises:
        EntryError: they may not.
        SpecStringError: the spec string is malformed, or names what is not there.
    """
    parsed = registry.parse("attack", spec)
    if names_module(parsed.target):
        raise EntryError(f"{parsed.target} is a class of an installed module; submit its file, as in mine.py:Attack")
    for declared in foreign(spec, "attack"):
        assert declared.dist is not None
        raise EntryError(
            f"{declared.name} is installed by {declared.dist.name}, which others do not have; submit its file instead, "
            "as path/to/file.py:Class"
        )
    named = [target for value in parsed.arguments.values() for target in registry.classes_in(value)]
    if any(map(registry.reads_like_class, named)):
        raise EntryError("an argument of the attack names another file; put all that it needs into one file or package")
    for file in files(spec, "attack"):
        if wrong := wrong_size(file) or wrong_import(file, "attack"):
            raise EntryError(wrong)


def prepare_attack(
    entry_folder: Path,
    spec: str,
    credits: Credits,
    store: Path | None,
    out: Path,
    target_archive: Path | None = None,
    shared: Path = SHARED,
) -> AttackSubmission:
    """Copy an attack to the folder from which it runs, isolate it, and list the cells that it needs.

    Args:
        entry_folder: of the listed defense.
        spec: of the attack.
        credits: name and authors.
        store: of records; by default the suite's in ``runs``.
        out: the folder of entries. Where it has the same attack's entry by the same authors, the defense is added.
        target_archive: of the defense's entry, if it has weights.
        shared: the board's published shared cells, which the defense's entry may refer to.

    Raises:
        EntryError: the attack or the defense cannot be used here.
        AttackError: the attack cannot be constructed, or needs what a submitted attack cannot have.
        PublishedError, SandboxUnavailable, SpecStringError: see there.
    """
    checked_spec(spec)
    if wrong := wrong_names(credits.name, credits.slug, credits.authors, spec, baseline=":" not in spec):
        raise EntryError(wrong)
    entry = _listed(entry_folder, shared)
    suite = rows.suite_of(entry)
    root = (store or Path("runs") / suite.name).expanduser().resolve()
    check_folder(out / credits.slug, root)
    staged = stage(spec, root / "submissions", "attack")
    attack = str(registry.parse("attack", staged.spec))
    if ":" not in attack:
        attack = registry.canonical("attack", attack)
    isolated = isolated_attack(relocated(attack, lambda file: str(staged.folder.resolve() / file), "attack"))
    parts, why = fitting_parts(suite, isolated)
    if not parts:
        raise EntryError(f"the attack {isolated.name} fits no part of {suite.title}: {why}")
    own = AttackSubmission(
        credits, suite, tuple(parts), staged, attack, isolated, (), {}, entry.manifest.numerics,
        Store(root), out / credits.slug,
    )  # fmt: skip
    check_archive(own.archive)
    targets = [each for each in _earlier(own) if each.slug != entry.manifest.slug]
    target = Target(
        slug=entry.manifest.slug,
        defense=entry.manifest.defense,
        entry_sha256=entry.sha256,
        source_sha256=entry.manifest.source_sha256,
    )
    if len(targets) >= MOST_TARGETS:
        raise EntryError(f"{own.folder} was run against {len(targets)} defenses, and more do not fit into one entry")
    guarded = {entry.manifest.slug: guarded_of(entry, target_archive, root / "listed")}
    for each in targets:
        guarded[each.slug] = guarded_of(_listed(entry_folder.parent / each.slug, shared), None, root / "listed")
    return replace(own, targets=(*targets, target), guarded=guarded)


def guarded_of(entry: Entry, archive: Path | None, folder: Path) -> Guarded:
    """A listed defense, laid out so that it can be made here; its code is a stranger's where it comes with files.

    Args:
        entry: of the defense.
        archive: of the entry; needed where the defense has weights.
        folder: for a copy, which is used again the next time.

    Raises:
        EntryError: it is not of this version, an anchor, or asks a judge that it may not, or its weights are missing.
    """
    manifest = entry.manifest
    check_target(entry)
    check_source(entry, kind := kind_of(rows.suite_of(entry)))
    if not entry.source:
        isolated = _needs_isolation(manifest.defense)
        return Guarded(manifest.defense, manifest.defense, manifest.source_sha256, isolated, kind)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=f".{manifest.slug}-") as scratch:
        brought = Path(scratch) / "archive"
        if manifest.weights:
            if archive is None:
                raise EntryError(f"{manifest.slug} has weights, which are in its archive: add --archive PATH")
            deliveries = at_hand(entry, [archive])
            unpacked(delivered(entry, list(deliveries.values())), deliveries, brought, ())
        spec = restage(entry, brought / "weights", folder / f"{manifest.slug}-{entry.sha256[:16]}")
    return Guarded(manifest.defense, spec, manifest.source_sha256, isolated=True, kind=kind)


def estimate(own: AttackSubmission) -> list[str]:
    """How many cells to run and how long they take, as lines for the author.

    Raises:
        DefenseError: a defense that it is run against cannot be made.
    """
    factory, identities = own.factory, dict[str, Identities]()
    stages = []
    for each in own.cells:
        slug = each.target.slug if each.target else ""
        if slug not in identities:
            identities[slug] = Identities(factory.against(own.guarded.get(slug)))
        directory = own.store.cell(identify(identities[slug].of(each.spec)))
        if not _is_finished(directory):
            stages.append(Stage(each.spec, each.spec.rounds, checkpointed(directory)))
    cached = len(own.cells) - len(stages)
    first = f"{own.suite.title}: {counted(len(stages), 'cell')} to run, {cached} in the store already"
    return [first, *time_lines(estimate_of(stages, own.store), len(stages))]


def _is_finished(directory: CellDir) -> bool:
    """As `run_attack_cell` sees it."""
    try:
        record = directory.read()
    except BrokenRecordError:
        return False
    return record is not None and record.status == "ok"


def replaced(own: AttackSubmission) -> list[str]:
    """Which results of an earlier version of the entry will be lost, in lines for the author."""
    if not is_attack_entry(own.folder):
        return []
    there = read_attack_entry(own.folder).manifest
    if _is_version_of(there, own):
        return []
    return [
        f"note: {own.folder} has results of another version of this attack ({there.attack:.80}) against "
        f"{', '.join(each.slug for each in there.targets)}, which will be removed"
    ]


def run_attack(own: AttackSubmission, watch: Watch) -> list[Record]:
    """Run the cells that the store lacks; returns the records of all.

    Raises:
        EntryError: the attack's own cells already say that it cannot be taken.
        AttackError, DefenseError: see `run_attack_cell`.
    """
    records, factory = [], own.factory
    cells = own.cells
    for number, each in enumerate(cells, 1):
        target = own.guarded[each.target.slug] if each.target else None
        progress = watch(f"cell {number} of {len(cells)}, {each.name}")
        record = run_attack_cell(each.spec, own.store, factory.against(target), progress)
        if record.status == "ok" and (wrong := measured.too_true([_cell(own, each, record)])):
            raise EntryError(f"the attack {own.isolated.name} cannot be taken: {wrong}")
        records.append(record)
    return records


def write_attack(own: AttackSubmission, records: Sequence[Record]) -> AttackEntry:
    """Write the archive and the entry; equal records give equal bytes.

    Raises:
        EntryError: they were made with several versions of a package, or are too large for an entry.
    """
    cells = [_cell(own, each, record) for each, record in zip(own.cells, records, strict=True)]
    finished = [record for record in records if record.status == "ok"]
    if not finished:
        raise EntryError("no cell of the attack has scores")
    manifest = AttackManifest(
        slug=own.credits.slug,
        name=own.credits.name,
        authors=own.credits.authors,
        paper=own.credits.paper,
        about=about_of(own.isolated),
        attack=own.attack,
        threat=granted(own.isolated.threat, own.isolated.attack_kind),
        reference=own.isolated.reference,
        targets=own.targets,
        suite=SuiteName(name=own.suite.name, version=own.suite.version, fingerprint=own.suite.fingerprint()),
        parts=own.parts,
        seeds=own.suite.seeds,
        submitted=submitted(records),
        numerics=own.numerics,
        versions=versions(records, own.store),
        machine=machine(finished),
        source_sha256=own.factory.sha256,
        files={SCORES: "0" * 64},
        weights=tuple(packed_file(path) for path in own.staged.weights),
        archive=pack(own.archive, own.store, cells, own.staged.weights),
    )
    shown = examples(cells, {record.cell_id: record for record in records}, own.store)
    return write_attack_entry(own.folder, manifest, AttackScores(cells=tuple(cells), examples=shown), own.staged.source)


def about_of(attack: IsolatedAttack) -> str:
    """How an entry describes its attack: the first line of the docstring, or nothing where that is not readable."""
    return attack.about if attack.about.isprintable() else ""


def summary(entry: AttackEntry, suite: Suite) -> list[str]:
    """The results of an entry, as lines for its author."""
    lines = []
    for each in measured.results(entry, suite.ranking):
        where = f"{each.part}: " if each.part else ""
        if each.crashed:
            lines.append(f"{where}{each.target} failed under it: {each.crashed}")
        if each.prevented is None:
            lines.append(f"{where}against {each.target}: nothing is concluded, because {each.problem}")
        else:
            lines.append(f"{where}against {each.target}: it prevents {each.prevented.text()} of the harm")
        if each.cost:
            used = cost_in_words(each.cost) or "nothing"
            lines.append(f"{where}cost against {each.target}, per seed: {used}")
    return lines


def next_steps(own: AttackSubmission, entry: AttackEntry) -> list[str]:
    """Where the results are, and what to do with them, in lines for the author."""
    size = entry.manifest.archive.bytes
    return [
        f"the entry: {own.folder}",
        f"its archive: {own.archive} ({size / 1e6:,.1f} MB)",
        f"to try it: thiefbench leaderboard verify {own.folder} --archive {own.archive}",
        "to submit it: open a pull request that adds the folder beside the entry that it attacks, and attach the "
        "archive to a release of your fork (nothing has been uploaded)",
    ]


def limits(attack: IsolatedAttack) -> str:
    """The limits of a submitted attack, as a sentence for its author."""
    caps, of_completions = attack.caps, attack.attack_kind == "attack"
    what = f"{POOL} slots of a round" if of_completions else "whatever it sends, adds or learns at once"
    answers = "policy and defense" if of_completions else "models"
    return (
        f"limits for {what}: {caps.seconds:g} s of the attack's own time, {caps.service_seconds:g} s for the answers "
        f"of {answers}, {caps.memory >> 20:,} MiB; its outcome on clean text must stay below {CONTROL_ASR:g}"
    )


def _cell(own: AttackSubmission, each: Wanted, record: Record) -> AttackCell:
    return attack_cell(
        record,
        each.part,
        each.target.slug if each.target else "",
        file_sha256(own.store.cell(record.cell_id).record_path),
    )


def _needs_isolation(defense: str) -> bool:
    """Whether a listed defense that comes with the package runs isolated: its arguments are a stranger's.

    Raises:
        EntryError: it names a judge that no submission may ask.
    """
    made = registry.make("defense", defense)
    if made.judge is not None and (why := forbidden_judge(made.judge.model, made.judge.endpoint)):
        raise EntryError(f"{one_line(defense, 60)} {why}")
    return made.judge is not None or made.sees_labels  # isolated, the one is limited, and the other refused


def _listed(folder: Path, shared: Path) -> Entry:
    """The entry of a listed defense."""
    if is_attack_entry(folder):
        raise EntryError(f"{folder} is an attack's entry; name the entry of the defense that you attack")
    if not (folder / MANIFEST).is_file():
        raise EntryError(f"there is no entry of a defense in {folder}; name {FOLDER_OF_ONE}")
    entry = read_entry(folder, shared)
    check_target(entry)
    return entry


def check_target(entry: Entry) -> None:
    """Check that an entry is a defense's that can be attacked; raises EntryError for an anchor's."""
    if anchor := anchor_of(entry.manifest.defense):
        raise EntryError(f"{anchor} is a row of the benchmark itself, against which an attack shows nothing")


def _earlier(own: AttackSubmission) -> tuple[Target, ...]:
    """The targets of the version of the entry that is there already.

    Raises:
        EntryError: it is another's, or of another suite, attack or settings, whose cells would be lost.
    """
    if not own.folder.exists():
        return ()
    if not is_attack_entry(own.folder):
        if any(own.folder.iterdir()):
            raise EntryError(f"{own.folder} already exists and is not an attack's entry; give another --name or --out")
        return ()
    there = read_attack_entry(own.folder).manifest
    if there.authors != own.credits.authors:
        raise EntryError(f"{own.folder} is an entry of {', '.join(there.authors)}; give yours another --name")
    renamed = there.name != own.credits.name
    for what, before, now in (
        ("on", there.suite.title, own.suite.title),
        ("with", settings(there.numerics), settings(own.numerics)),
        ("of the attack", there.attack if renamed else "", own.attack if renamed else ""),
    ):
        if before != now:
            raise EntryError(
                f"{own.folder} is an entry {what} {before:.80}, and this one, {what} {now:.80}, would replace it; give "
                "it another --name, or another folder with --out"
            )
    return there.targets if _is_version_of(there, own) else ()


def _is_version_of(there: AttackManifest, own: AttackSubmission) -> bool:
    """Whether an entry's cells are of the attack that is being submitted, on the same content of the suite."""
    return (there.attack, there.source_sha256, there.suite.fingerprint) == (
        own.attack, own.factory.sha256, own.suite.fingerprint(),
    )  # fmt: skip
