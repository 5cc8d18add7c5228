"""`thiefbench leaderboard verify` for an attack's entry: the same verdicts by the same means as for a defense's.

- **self-reported**: only the entry was read. Its files match their hashes, its cells are those of a released suite, the
  defenses are listed, and clean text does not satisfy its outcome.
- **rescored**: the raw completions give the entry's scores. The isolated attack judges every completion again, once in
  the recorded order and once shuffled, as what it says of a completion may depend on nothing else; where it needs no
  weights, it also submits again.
- **re-executed**: all cells of drawn seeds were run again with attack and defense isolated, and gave the submitted
  completions and costs; and at a seed hashed with a secret, the defense prevented no more than predicted.
- **rejected**: a check failed; the reasons say which.

An attack's entry brings everything that it is measured against, so nothing of it rests on another entry's cells.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from thiefbench import provenance, registry
from thiefbench.engine.keys import generator, secret_seed
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine_revision import engine_revision
from thiefbench.errors import UserError
from thiefbench.leaderboard.archive import unpack
from thiefbench.leaderboard.attacking import measured
from thiefbench.leaderboard.attacking.cells import Wanted, fitting_parts, strange_part, wanted
from thiefbench.leaderboard.attacking.entry import AttackEntry, read_attack_entry, restage_attack
from thiefbench.leaderboard.attacking.manifest import granted
from thiefbench.leaderboard.attacking.running import AttackFactory, Guarded, run_attack_cell
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackCost, attack_cell, examples
from thiefbench.leaderboard.attacking.submit import about_of, check_target, guarded_of
from thiefbench.leaderboard.checking.check_attack import other_outcomes
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.entry_validation import other_version, unreadable, wrong_file, wrong_import, wrong_size
from thiefbench.leaderboard.isolation.guest import Said, contradictory
from thiefbench.leaderboard.isolation.isolated_attack import IsolatedAttack
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.isolation.sandbox_paths import files
from thiefbench.leaderboard.made_with import COST, wrong_statement
from thiefbench.leaderboard.published import PublishedError
from thiefbench.leaderboard.rows import suite_named
from thiefbench.leaderboard.verification.attack_consistency import outcomes_apart, rounds_alike, submissions_apart
from thiefbench.leaderboard.verification.attack_costs import check_costs
from thiefbench.leaderboard.verification.drawing import FOUND, chance_of_finding, comparisons_needed, drawn
from thiefbench.leaderboard.verification.expectation import MARGIN, MOST_APART, close, expected, headline, prevented
from thiefbench.leaderboard.verification.questions import Questions, Tell, each_cell
from thiefbench.leaderboard.verification.reexecution import DisagreesError, Watch, cell_difference
from thiefbench.leaderboard.verification.rerunning import surroundings_apart, temporary_folder, weaker_sandbox
from thiefbench.leaderboard.verification.rescoring import (
    InconsistentError,
    SubmittedCell,
    beside_completions,
    check_completions,
    check_identity,
    check_results,
)
from thiefbench.leaderboard.verification.verdict import (
    EARLIER_STAYS,
    FLAGS,
    VERSIONS,
    Flag,
    Kind,
    Rerun,
    Verdict,
    Verification,
    carried_from,
    earlier_verification,
    kinds_of,
    stays,
)
from thiefbench.leaderboard.verification.verify import VerifyOptions
from thiefbench.sources import source_files
from thiefbench.suite.analysis.comparison import HEADLINE_EVALUATIONS
from thiefbench.suite.execution.cell_identity import Identities, identity
from thiefbench.suite.scenario import CellSpec, RankingRules, Suite
from thiefbench.suite.store.records import Record, Store, file_sha256, identify, table_rows
from thiefbench.suite.store.tables import TableError
from thiefbench.tasks.text import one_line
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted

ASKED_AGAIN = {"headline": 150, "earlier": 50, "train": 50}
"""Completions of a cell whose outcome is asked again: of the evaluations that its headline ASR is the mean of, of those
before, and of its rounds."""


class TargetError(UserError):
    """A defense that an attack was run against cannot be read here. One sentence for the user."""


Drawn = tuple[str, int]
"""A part and a seed: what is run again together."""


@dataclass
class _Verifier(Questions):
    entry: AttackEntry
    options: VerifyOptions
    tell: Tell
    watch: Watch
    reasons: list[str] = field(default_factory=list)
    flags: set[Flag] = field(default_factory=set)
    reruns: list[Rerun] = field(default_factory=list)
    comparisons: tuple[int, int] | None = None
    forgery_found: float | None = None
    fresh_trials: int = 0
    inconclusive: int = 0
    told_of: set[str] = field(default_factory=set)  # the targets of which a trial at a fresh seed says something
    ran: bool = False
    outdated: bool = False  # its cells are not those of this version
    out_of_reach: list[str] = field(default_factory=list)  # defenses whose weights are not at hand
    other_errors: list[str] = field(default_factory=list)  # of defenses that failed again, and otherwise
    again: dict[str, Record] = field(default_factory=dict)  # what cells left here, by their ids in the entry

    said: list[set[Said]] = field(default_factory=list)  # by the attack, in each attacked cell of what is run again

    @cached_property
    def order(self) -> random.Random:
        """Draws in which order cells run: knowing how many there were before does not say which one this is."""
        return generator(secret_seed(self.options.secret, "order"))

    def _verdict(self) -> Verdict:
        entry, options, manifest = self.entry, self.options, self.entry.manifest
        with self._question("the suite is a released one"):
            suite = suite_named(manifest.suite, entry.folder)
        with self._question("its cells are those of the suite"):
            cells = _cells_of(entry, suite)
        with temporary_folder() as scratch, temporary_folder() as cells_made:
            with self._question("the defenses that it was run against are listed, and unchanged since"):
                guarded = self._targets(Path(scratch) / "listed", has_archive=options.archive is not None)
            with self._question("its source is the one that was run"):
                _check_source(entry)
            with self._question("clean text does not satisfy its outcome"):
                if wrong := measured.too_true(entry.cells):
                    raise EntryError(wrong)
            self.outdated = _of_other_version(entry, cells)
            if options.archive is None:
                self.reasons = ["no archive was given, so its scores are those that its authors report"]
                return "self-reported"
            if self.out_of_reach:
                self.reasons = [
                    f"{', '.join(self.out_of_reach)} has weights, which lie in its own archive; an attack on such a "
                    "defense cannot be verified yet"
                ]
                return "self-reported"
            with self._question("the archive is the entry's"):
                folder = Path(scratch) / "archive"
                archive = unpack(options.archive, entry, folder, [each.spec for each in cells])
            with self._question("the attack can be made in isolation, with its threat model") as details:
                spec = restage_attack(entry, folder / "weights", Path(scratch) / "staged")
                isolated = isolated_attack(spec)  # while it lives, others start at once
                details += self._check_attack(isolated, suite)
            factory = AttackFactory(manifest.attack, spec, manifest.source_sha256)
            records = self._rescored(cells, archive, factory, guarded)
            self._judged_again(cells, records, archive, spec)
            if not options.runs:
                self.reasons = ["no cell was run again", *self._failed()]
                return "rescored"
            self.ran = True
            store = Store(options.store or Path(cells_made))  # beside whose cells no guest's file lies
            lacking = self._run_again(cells, records, archive, store, factory, guarded)
            if options.fresh:
                lacking += self._try_fresh(suite, store, factory, guarded)
            else:
                lacking.append("it was not tried at a fresh seed")
            lacking += weaker_sandbox(manifest.attack)
            isolated.close()
        self.reasons += [*self._about_bits(), *self._failed()]
        if lacking:
            self.reasons[:0] = [one_line(reason, 1000) for reason in lacking]
            return "rescored"
        return "re-executed"

    def _failed(self) -> list[str]:
        """What nothing was computed again of: cells in which a defense failed, and that were not run again."""
        failed = sum(cell.status == "error" and cell.cell_id not in self.again for cell in self.entry.cells)
        if not failed:
            return []
        which = counted(failed, "cell")
        return [f"in {which} the defense failed, as the entry says, of which nothing can be computed again"]

    def _about_bits(self) -> list[str]:
        """What a reader should know where equal bits were not promised, and did not come out."""
        ran = [each for each in self.reruns if each.seed is not None]
        if not (unequal := sum(not each.equal for each in ran)):
            return []
        return [
            f"{unequal} of {len(ran)} cells that were run again are not bit-equal, but their ASRs are within "
            f"{MARGIN:g} of the submitted ones; equal bits are promised only on a CPU of the same kind with the same "
            "versions, and the costs of these cells are those that the authors report"
        ]

    # --- reading ---

    def _targets(self, folder: Path, has_archive: bool) -> dict[str, Guarded]:
        found = {}
        for target in self.entry.manifest.targets:
            listed = self._listed(target.slug)
            there = listed.manifest
            check_target(listed)
            if not target.meets(there):
                raise EntryError(
                    f"it was run against another version of {target.slug} than the listed one; thiefbench leaderboard "
                    "attack runs it again"
                )
            if there.weights:
                self.out_of_reach.append(target.slug)
            elif has_archive:
                found[target.slug] = guarded_of(listed, None, folder)
        return found

    def _listed(self, slug: str) -> Entry:
        """The entry beside the attack's own of a defense that it was run against; raises TargetError."""
        beside = self.entry.folder.resolve().parent
        try:
            return read_entry(beside / slug, self.options.shared)
        except (EntryError, PublishedError) as error:
            raise TargetError(
                f"{self.entry.manifest.slug} was run against {slug}, whose entry in {beside} cannot be read, which "
                f"says nothing about the attack: {one_line(str(error), 500)}"
            ) from error

    def _check_attack(self, isolated: IsolatedAttack, suite: Suite) -> list[str]:
        manifest = self.entry.manifest
        if granted(isolated.threat, isolated.attack_kind) != manifest.threat:
            raise EntryError("the entry states another threat model than its attack has")
        if isolated.reference != manifest.reference:
            raise EntryError(
                f"the entry's harm is measured against the {manifest.reference}, and its attack says "
                f"{isolated.reference}"
            )
        if about_of(isolated) != manifest.about:
            raise EntryError("the entry describes its attack otherwise than the first line of the attack's docstring")
        parts, _ = fitting_parts(suite, isolated)
        if tuple(parts) != manifest.parts:
            raise EntryError(
                f"the attack fits {len(parts)} parts of the suite, and the entry has {len(manifest.parts)}"
            )
        return [isolated.name]

    # --- rescoring ---

    def _rescored(
        self, cells: Sequence[Wanted], archive: Store, factory: AttackFactory, guarded: dict[str, Guarded]
    ) -> dict[str, Record]:
        """The records of all cells by id, after checking each of them; raises RejectedError."""
        records: dict[str, Record] = {}
        submitted = []
        for each, cell in zip(cells, self.entry.cells, strict=True):
            record = archive.cell(cell.cell_id).read()
            assert record is not None, "an archive that was unpacked holds a record of every cell"
            records[cell.cell_id] = record
            submitted.append(SubmittedCell(each.spec, each.part, cell, record, own=True))
        targets = {cell.cell_id: guarded.get(each.target.slug) if each.target else None
                   for each, cell in zip(cells, self.entry.cells, strict=True)}  # fmt: skip

        def of_version(cell: SubmittedCell) -> None:
            assert isinstance(cell.scores, AttackCell)
            here = identity(cell.spec, factory.against(targets[cell.scores.cell_id]))
            check_identity(cell.record, cell.spec, here=here)
            check_results(cell.record)
            digest = file_sha256(archive.cell(cell.record.cell_id).record_path)
            try:
                again = attack_cell(cell.record, cell.part, cell.scores.target, digest)
            except (ValidationError, KeyError) as error:
                raise InconsistentError(
                    "its record in the archive holds a number or a name that no entry takes"
                ) from error
            for name in type(again).model_fields:
                if (one := getattr(cell.scores, name)) != (other := getattr(again, name)):
                    raise InconsistentError(
                        f"the entry differs from the record in the archive in its {name}: {one!r:.120} instead of "
                        f"{other!r:.120}"
                    )

        with self._question("records are of this version and match the entry") as details:
            each_cell(submitted, of_version)
            manifest, made = self.entry.manifest, list(records.values())
            finished = [record for record in made if record.status == "ok"]
            if wrong := wrong_statement(manifest.versions, manifest.machine, manifest.submitted, made, finished):
                raise EntryError(f"it does not say how its cells were made: {wrong}")
            details.append(f"{len(submitted)} cells")
        with self._question("scores follow from the completions, and these from the tokens and verdicts") as details:
            rewards: list[int] = []

            def rescore(cell: SubmittedCell) -> None:
                if cell.record.status == "ok":
                    try:
                        table = archive.cell(cell.record.cell_id).read_rows()
                    except TableError as error:
                        raise InconsistentError(f"its completions.parquet {error.problem}") from error
                    beside = beside_completions(cell.spec, archive.cell(cell.record.cell_id))
                    with closing(isolated_attack(factory.spec)) as attack:
                        rewards.append(check_completions(cell, table, attack=attack, beside=beside))
                    check_costs(cell, beside, self.entry.manifest.threat)

            each_cell(submitted, rescore)
            details.append(f"{sum(rewards):,} rewards and outcomes computed again in {len(rewards)} cells")
        with self._question("equal completions have equal outcomes, and equal views equal submissions") as details:
            details.append(f"{self._compared(cells, records, archive):,} pairs of cells")
        with self._question("the completions that its page shows are in the archive"):
            if self.entry.examples != examples(self.entry.cells, records, archive):
                raise InconsistentError("the entry shows other completions than the archive holds")
        return records

    def _compared(self, cells: Sequence[Wanted], records: dict[str, Record], archive: Store) -> int:
        """Compare the cells of each part and seed, as `attack_consistency` says; returns in how many pairs of cells
        submissions were.

        Raises:
            InconsistentError: they contradict each other.
        """
        pairs = 0
        for (part, seed), group in self._groups(cells).items():
            here = [(each, records[cell.cell_id]) for each, cell in group if cell.status == "ok"]
            tables = [archive.cell(record.cell_id).read_rows() for _, record in here]
            where = f"{part + ', ' if part else ''}seed {seed}"
            if wrong := outcomes_apart(tables):
                raise InconsistentError(f"{where}: {wrong}")
            alone = next(at for at, (each, _) in enumerate(here) if each.spec.role == "attack" and not each.target)
            for at, (each, record) in enumerate(here):
                if each.target and (rounds := rounds_alike(self.entry.manifest.threat, here[alone][1], record)):
                    pairs += 1
                    if wrong := submissions_apart(tables[alone], tables[at], rounds):
                        raise InconsistentError(f"{where}, {each.target.slug}: {wrong}")
        return pairs

    def _judged_again(self, cells: Sequence[Wanted], records: dict[str, Record], archive: Store, spec: str) -> None:
        """Ask for outcomes again, in one process that is shown the completions of all cells, mixed."""
        rng = random.Random(secret_seed(self.options.secret, "outcomes"))
        with self._question("its outcome depends on item and completion alone") as details:
            asked = 0
            for (_, seed), group in self._groups(cells).items():
                made = [records[cell.cell_id] for _, cell in group]
                rows = [row for table in _tables(made, archive) for row in _some_rows(table, rng)]
                some = group[0][0].spec
                task = registry.make("task", some.task)
                with closing(isolated_attack(spec)) as attack:
                    wrong = other_outcomes(attack, some.swarm, task, seed, rows, rng)
                if wrong:
                    raise InconsistentError(wrong)
                asked += len(rows)
            details.append(f"{asked:,} completions")

    def _groups(self, cells: Sequence[Wanted]) -> dict[Drawn, list[tuple[Wanted, AttackCell]]]:
        """The cells by part and seed, in their order: what is compared, and run again, together."""
        groups: dict[Drawn, list[tuple[Wanted, AttackCell]]] = {}
        for each, cell in zip(cells, self.entry.cells, strict=True):
            groups.setdefault((each.part, each.spec.seed), []).append((each, cell))
        return groups

    # --- running ---

    def _run_again(
        self,
        cells: Sequence[Wanted],
        records: dict[str, Record],
        archive: Store,
        store: Store,
        factory: AttackFactory,
        guarded: dict[str, Guarded],
    ) -> list[str]:
        """Run all cells of drawn parts and seeds again; returns what is lacking for "re-executed"."""
        options, groups = self.options, self._groups(cells)
        seeds: dict[str, list[int]] = {}
        for part, seed in groups:
            seeds.setdefault(part, []).append(seed)
        bits = not (options.device or options.threads) and not any(map(surroundings_apart, records.values()))
        parts, count = len(seeds), max(map(len, seeds.values()))
        needed = comparisons_needed(parts, count, bits)
        rng = generator(secret_seed(options.secret, "reruns"))
        again = drawn(seeds, needed if options.reruns is None else options.reruns, rng)
        for part, seed in again:
            with self._question(f"run again: {part + ', ' if part else ''}seed {seed}") as details:
                group = groups[part, seed]
                made: dict[int, Rerun] = {}
                self.said = []
                try:
                    for place in self.order.sample(range(len(group)), len(group)):
                        made[place] = self._again(*group[place], records, archive, store, factory, guarded, bits)
                    self._check_said(f"seed {seed}")
                finally:
                    reruns = [made[place] for place in sorted(made)]
                    self.reruns += reruns
                if not bits:
                    self._check_prevented(seed, group, records, factory)
                details.append(f"{kinds_of(reruns)}: {sum(bool(r.equal) for r in reruns)} of {len(reruns)} bit-equal")
        self.comparisons = len(again), parts * count
        self.forgery_found = chance_of_finding(parts, count, len(again), [count])
        if len(again) < min(needed, parts * count):
            return [
                *self.other_errors,
                f"{len(again)} of its seeds were run again, and {needed} are needed, so that a forgery of one part's "
                f"cells would be found with a chance of {FOUND:g}",
            ]
        return self.other_errors

    def _again(
        self,
        each: Wanted,
        cell: AttackCell,
        records: dict[str, Record],
        archive: Store,
        store: Store,
        factory: AttackFactory,
        guarded: dict[str, Guarded],
        bits: bool,
    ) -> Rerun:
        there, options = records[cell.cell_id], self.options
        changes = {name: value for name, value in (("device", options.device), ("threads", options.threads)) if value}
        spec = replace(each.spec, **changes)  # type: ignore[arg-type]
        target = guarded[each.target.slug] if each.target else None
        record = run_attack_cell(
            spec, store, self._heard(factory.against(target), spec), self.watch(f"again: {each.name}")
        )
        self.again[cell.cell_id] = record
        if record.status != there.status:
            raise DisagreesError(f"{each.name}: run again, it ends otherwise: {record.error[:300] or 'with scores'}")
        if record.error != there.error:
            self.other_errors.append(f"{each.name}: run again, the defense fails otherwise: {record.error[:300]}")
        before: tuple[float, float, float] | None = None
        after: tuple[float, float, float] | None = None
        equal = True
        if record.status == "ok":
            difference = cell_difference(spec, store.cell(record.cell_id), archive.cell(cell.cell_id))
            before, after, equal = headline(there), headline(record), not difference
            if difference and bits:
                raise DisagreesError(
                    f"{each.name}: run again on the same kind of machine and versions, its {difference}"
                )
            spent, said = AttackCost.model_validate(record.provenance.get(COST, {})), cell.cost
            if equal and spent != said:
                raise DisagreesError(f"{each.name}: run again, it uses {spent}, and the entry says {said}")
        one, other = before and before[0], after and after[0]
        agrees = equal or (one is not None and other is not None and close(one, other, MARGIN))
        if not agrees:
            raise DisagreesError(f"{each.name}: run again, its headline ASR is {other}, and the entry's {one}")
        clean: Kind = "placebo" if spec.role == "placebo" else "control"
        role: Kind = "own" if each.target else "undefended" if spec.role == "attack" else clean
        return Rerun(
            part=each.part, role=spec.role, attack=self.entry.manifest.name, seed=spec.seed, measure="headline_asr",
            submitted=(one, one), found=other, equal=equal, agrees=agrees, kind=role,
        )  # fmt: skip

    def _heard(self, factory: AttackFactory, spec: CellSpec) -> AttackFactory:
        """The factory, with a record of what its attack says where it poisons."""
        if spec.role == "attack":
            factory.said = set()
            self.said.append(factory.said)
        return factory

    def _check_said(self, where: str) -> None:
        """Check that the attack did the same in two cells until it was told something else.

        Raises:
            DisagreesError: it did not.
        """
        if contradictory(*self.said):
            raise DisagreesError(
                f"{where}: told the same in two cells, it does not do the same; so it goes by something else, such as "
                "a clock"
            )

    def _check_prevented(
        self,
        seed: int,
        group: Sequence[tuple[Wanted, AttackCell]],
        records: dict[str, Record],
        factory: AttackFactory,
    ) -> None:
        """Check that each defense prevents as much as submitted: ASRs that are all close may be forged apart.

        Raises:
            DisagreesError: one does not.
        """
        here = {(each.spec.role, each.target.slug if each.target else ""): cell.cell_id for each, cell in group}
        with closing(isolated_attack(factory.spec)) as attack:
            for slug in (target.slug for target in self.entry.manifest.targets):
                ids = [here[key] for key in (("attack", slug), ("attack", ""), (self.entry.manifest.reference, ""))]
                if records[ids[0]].status != "ok":
                    continue
                before, after = (prevented(attack, *(of[cell_id] for cell_id in ids)) for of in (records, self.again))
                if before is not None and after is not None and not close(before[0], after[0], after[1]):
                    raise DisagreesError(
                        f"seed {seed}, {slug}: run again, it prevents {after[0]:.3f} of the harm, and {before[0]:.3f} "
                        "in the entry"
                    )

    def _try_fresh(self, suite: Suite, store: Store, factory: AttackFactory, guarded: dict[str, Guarded]) -> list[str]:
        """Play one part against every defense at secret seeds; returns what is lacking for "re-executed"."""
        options, manifest, lacking = self.options, self.entry.manifest, list[str]()
        rng = generator(secret_seed(options.secret, "attack"))
        with self._question("seeds unknown to the submitter") as details:
            for number in range(1, options.fresh + 1):
                part = rng.choice(manifest.parts)
                seed = secret_seed(options.secret, "fresh", number)
                here = replace(suite, seeds=(seed,))
                records: dict[tuple[str, str], Record] = {}
                fresh: list[AttackCell] = []
                self.said = []
                due = wanted(here, (part,), manifest.attack, manifest.targets, manifest.numerics)
                for each in self.order.sample(due, len(due)):
                    target = guarded[each.target.slug] if each.target else None
                    slug = each.target.slug if each.target else ""
                    label = f"{each.spec.role} against {slug}" if slug else each.spec.role
                    progress = self.watch(f"fresh {number} of {options.fresh}: {label}")
                    made = self._heard(factory.against(target), each.spec)
                    record = run_attack_cell(each.spec, store, made, progress)
                    records[each.spec.role, slug] = record
                    digest = file_sha256(store.cell(record.cell_id).record_path)
                    fresh.append(attack_cell(record, part, slug, digest))
                self._check_said("at a fresh seed")
                self._check_fresh(seed, fresh, records, store, suite, factory.spec)
                for target_slug in (target.slug for target in manifest.targets):
                    self.fresh_trials += 1
                    lacking += self._fresh_result(part, target_slug, records, suite, factory)
            details.append(f"{self.fresh_trials} tried, {self.inconclusive} inconclusive")
        claimed = {each.target for each in measured.results(self.entry, suite.ranking) if each.prevented is not None}
        if self.fresh_trials and (silent := sorted(claimed - self.told_of)):
            lacking.append(
                f"its trials at fresh seeds say nothing of {', '.join(silent)}: undefended, it does too little harm "
                f"there to measure what is prevented; --fresh {options.fresh + 2} tries more"
            )
        return lacking

    def _check_fresh(
        self,
        seed: int,
        cells: Sequence[AttackCell],
        records: dict[tuple[str, str], Record],
        store: Store,
        suite: Suite,
        spec: str,
    ) -> None:
        """Check the outcomes at a seed that no table in the attack's source can hold.

        Raises:
            InconsistentError: clean text satisfies the outcome about as often as what was learned from the attack, or
                the outcome of a completion is another one beside those of other cells.
        """
        control, attacked = (
            next((measured.headline_of(cell) for cell in cells if (cell.role, cell.target) == (role, "")), None)
            for role in ("control", "attack")
        )
        tables = list(_tables(records.values(), store))
        if wrong := outcomes_apart(tables):
            raise InconsistentError(f"at a fresh seed, {wrong}")
        little = attacked is None or control is None or attacked - control < suite.ranking.least_harm
        if little and (wrong := measured.too_true(cells)):
            raise InconsistentError(f"at a fresh seed, {wrong}")
        rng = random.Random(secret_seed(self.options.secret, "fresh outcomes", seed))
        rows = [row for table in tables for row in _some_rows(table, rng)]
        one = records["control", ""].cell
        part = next(each for each in suite.scenes if each.name == cells[0].part)
        with closing(isolated_attack(spec)) as attack:
            wrong = other_outcomes(attack, part.swarm, registry.make("task", one["task"]), seed, rows, rng)
        if wrong:
            raise InconsistentError(f"at a fresh seed, {wrong}")

    def _fresh_result(
        self, part: str, slug: str, records: dict[tuple[str, str], Record], suite: Suite, factory: AttackFactory
    ) -> list[str]:
        reference = self.entry.manifest.reference
        submitted = measured.against(self.entry.cells, part, slug, suite.ranking, reference)
        none, beside, own = records["attack", ""], records[reference, ""], records["attack", slug]
        result = None
        if own.status == "ok" and _works(none, beside, suite.ranking):
            with closing(isolated_attack(factory.spec)) as attack:
                result = prevented(attack, own, none, beside)
        if submitted.prevented is None or result is None:
            self.inconclusive += 1
            return []
        value, slack = result
        low, high = expected([v for _, v in submitted.prevented.points], slack)
        if value <= high and slack > MOST_APART:  # an attack that does little where it is not known would always agree
            self.inconclusive += 1
            return []
        self.told_of.add(slug)
        self.reruns.append(
            Rerun(part=part, role="attack", attack=self.entry.manifest.name, seed=None, measure="harm_prevented",
                  submitted=(low, high), found=value, equal=None, agrees=value <= high, kind="own")
        )  # fmt: skip
        if value <= high:
            return []
        self.flags.add("does not generalise")
        return [
            f"does not generalise: at a fresh seed, {slug} prevents {value:.3f} of its harm, above the range predicted "
            f"from the submitted seeds, {low:.3f} to {high:.3f}"
        ]


def _works(undefended: Record, reference: Record, rules: RankingRules) -> bool:
    """Whether an attack works at one seed: it does enough harm, and its interval lies above its reference's."""
    one, other = headline(undefended), headline(reference)
    return one is not None and other is not None and one[0] - other[0] >= rules.least_harm and one[1] > other[2]


def _tables(records: Iterable[Record], store: Store) -> Iterator[pa.Table]:
    """The completions of the cells that have scores, one cell after the other."""
    return (store.cell(record.cell_id).read_rows() for record in records if record.status == "ok")


def _some_rows(table: pa.Table, rng: random.Random) -> list[CompletionRow]:
    """Some of a cell's completions, whose outcomes are asked again (`ASKED_AGAIN`)."""
    rows = list(table_rows(table))
    evaluated = sorted({row.round for row in rows if row.phase != "train" and row.round > 0})
    headline_rounds = evaluated[-HEADLINE_EVALUATIONS:]
    probed = any(row.phase == "probe" for row in rows)  # then evaluations of other items measure something else
    drawn_from: dict[str, list[CompletionRow]] = {name: [] for name in ASKED_AGAIN}
    for row in rows:
        if row.phase == "train":
            drawn_from["train"].append(row)
        elif not (probed and row.phase == "eval"):
            drawn_from["headline" if row.round in headline_rounds else "earlier"].append(row)
    return [row for name, there in drawn_from.items() for row in rng.sample(there, min(len(there), ASKED_AGAIN[name]))]


def _cells_of(entry: AttackEntry, suite: Suite) -> list[Wanted]:
    """The cells that the entry has to have; raises EntryError where it has others, or in another order."""
    manifest = entry.manifest
    if manifest.seeds != suite.seeds:
        raise EntryError(f"it was run at the seeds {manifest.seeds}, but {suite.title} has {suite.seeds}")
    if wrong := strange_part(manifest.parts, suite, manifest.threat.kind):
        raise EntryError(wrong)
    cells = wanted(suite, manifest.parts, manifest.attack, manifest.targets, manifest.numerics)
    due = [
        (each.part, each.spec.role, each.spec.attack, each.spec.defense, each.spec.seed,
         each.target.slug if each.target else "")
        for each in cells
    ]  # fmt: skip
    present = [(c.part, c.role, c.attack, c.defense, c.seed, c.target) for c in entry.cells]
    if due != present:
        raise EntryError(f"its {len(present)} cells are not the {len(due)} that such an entry has, in their order")
    if any(cell.status == "error" and not cell.target for cell in entry.cells):
        raise EntryError("a cell without a defense failed, and only a defense's error may be part of an entry")
    return cells


def _of_other_version(entry: AttackEntry, cells: Sequence[Wanted]) -> bool:
    """Whether its cells without a defense are not those of this version, as their ids say; nothing is loaded."""
    identities = Identities(AttackFactory(entry.manifest.attack, entry.spec, entry.manifest.source_sha256))
    pairs = zip(entry.cells, cells, strict=True)
    return any(cell.cell_id != identify(identities.of(each.spec)) for cell, each in pairs if not each.target)


def _check_source(entry: AttackEntry) -> None:
    submitted = files(entry.spec, "attack")
    if wrong := wrong_file(entry.source, submitted):
        raise EntryError(wrong)
    for file in submitted:
        if wrong := wrong_size(file):
            raise EntryError(wrong)
    if wrong := unreadable([path for file in submitted for path in source_files(file) if path.suffix == ".py"]):
        raise EntryError(wrong)
    for file in submitted:
        if wrong := wrong_import(file, "attack"):
            raise EntryError(wrong)
    if registry.source_hash("attack", entry.spec, load=False) != entry.manifest.source_sha256:
        made_with = entry.manifest.versions.get("thiefbench", "unknown")
        raise EntryError(other_version("it was", f"its source, or what it imports of thiefbench {made_with}, differs"))


@reads_strangers
def verify_attack(folder: Path, options: VerifyOptions, tell: Tell, watch: Watch) -> Verification:
    """Verify an attack's entry; the defenses are those listed beside it.

    Args:
        folder: of the entry.
        options: how far to go; `held_out`, `all_attacks` and `caps` are those of a defense's.
        tell: receives every finding.
        watch: receives the progress of the cells that are run.

    Raises:
        EntryError: the folder cannot be read as an entry.
        TargetError: the entry of a defense that it was run against cannot be read.
        SandboxUnavailable: this machine has no working sandbox.
    """
    entry = read_attack_entry(folder)
    earlier = earlier_verification(options.earlier, entry.manifest.slug) if options.earlier else None
    verifier = _Verifier(entry, options, tell, watch)
    verdict = verifier.verdict()
    carried, flags = carried_from(earlier, verifier.reruns, tried=verifier.fresh_trials > verifier.inconclusive)
    may_stay = carried == "rejection" or not (verifier.ran or verifier.outdated)
    if earlier is not None and may_stay and stays(earlier, entry, verdict):
        tell(Finding(EARLIER_STAYS, "ok", f"of {earlier.verified.isoformat()}"))
        return earlier.model_copy(update={"entry_sha256": entry.sha256})
    verifier.flags |= flags
    numerics = entry.manifest.numerics
    here = provenance.provenance(options.device or numerics.device, options.threads or numerics.threads)
    return Verification(
        slug=entry.manifest.slug,
        entry_sha256=entry.sha256,
        verdict=verdict,
        reasons=tuple(verifier.reasons),
        flags=tuple(flag for flag in FLAGS if flag in verifier.flags),
        reruns=tuple(verifier.reruns),
        comparisons=verifier.comparisons,
        forgery_found=verifier.forgery_found,
        fresh_trials=verifier.fresh_trials,
        inconclusive=verifier.inconclusive,
        key=options.secret.hex() if verifier.ran else "",
        carried=carried,
        verified=datetime.now(UTC).date(),
        engine_revision=engine_revision(),
        versions={name: str(here[name]) for name in VERSIONS},
        machine={name: here[name] for name in (*provenance.MACHINE, "git_commit", "git_dirty")},
    )
