"""`thiefbench leaderboard verify`: no submission is trusted by default.

The verdict depends on how far the verification got:

- **self-reported**: only the entry was read. It is complete, its files match their hashes, and its cells are those of a
  released suite. So is an entry that brings other shared cells than the board has published, until all of these were
  run again (`baseline`).
- **rescored**: the raw completions in its archive are consistent (the engine makes the same texts, rewards, labels and
  advantages from the recorded tokens and verdicts) and give the entry's scores.
- **re-executed**: comparisons drawn at random were also run again, each with all cells that the entry brings and with
  the defense isolated, and gave the submitted results; and at a seed that is hashed with a secret, where the defense
  cannot know who is malicious, it did as well. They must be so many that a forgery of one attack's cells would have
  been found with the chance `drawing.FOUND`, and at least one trial at such a seed must say something.
- **rejected**: a check failed; the reasons say which. An entry that was made with another version of the benchmark is
  rejected for that reason alone: its results cannot be checked here, and `submit` makes it again.

An entry whose seeds were brought in several deliveries has the lowest verdict of these (`by_delivery`).

Flags tell readers more than the verdict does. There is also a flag for a defense that does worse at seeds drawn after
its submission: its scores are correct, so it is rescored, but they do not generalise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from thiefbench import provenance
from thiefbench.defenses.base import Defense
from thiefbench.engine.keys import generator, new_secret, secret_seed
from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard.checking.check import QUESTIONS, Subject
from thiefbench.leaderboard.checking.check_rule import QUESTIONS as RULE_QUESTIONS
from thiefbench.leaderboard.checking.check_rule import RuleSubject
from thiefbench.leaderboard.checking.findings import Finding, RuleBroken
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.defense_kinds import DefenseKind, built_in, kind_of
from thiefbench.leaderboard.delivered_archives import at_hand, unpacked
from thiefbench.leaderboard.deliveries import check_alike, check_made_alike, delivered
from thiefbench.leaderboard.entry import Entry, read_entry
from thiefbench.leaderboard.entry_validation import cells_of, check_source
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS, Caps
from thiefbench.leaderboard.isolation.staging import restage
from thiefbench.leaderboard.manifest import Delivery
from thiefbench.leaderboard.published import SHARED, Published, published_sets, words_of
from thiefbench.leaderboard.rows import FAIL_ABOVE, mean_false_rejection, suite_of
from thiefbench.leaderboard.verification.baseline import (
    OtherCell,
    check_references,
    check_set,
    other_cells,
)
from thiefbench.leaderboard.verification.by_delivery import doubts, lowest, verdicts
from thiefbench.leaderboard.verification.drawing import FOUND, SEVERAL, chance_of_finding, comparisons_needed
from thiefbench.leaderboard.verification.expectation import Results
from thiefbench.leaderboard.verification.held_out import HeldOut, trials
from thiefbench.leaderboard.verification.judging_again import OtherVerdictsError, TwoWaysError, judge_again
from thiefbench.leaderboard.verification.questions import MOST_REASONS, Questions, RejectedError, Tell, each_cell
from thiefbench.leaderboard.verification.reexecution import (
    DisagreesError,
    Fresh,
    VerificationRun,
    Watch,
    cell_of,
    chosen,
    comparisons,
    rerun,
    try_fresh,
    unconfirmed,
)
from thiefbench.leaderboard.verification.rerunning import (
    IsolatedFactory,
    surroundings_apart,
    temporary_folder,
    weaker_sandbox,
)
from thiefbench.leaderboard.verification.rescoring import (
    InconsistentError,
    SubmittedCell,
    beside_completions,
    check_completions,
    check_drift,
    check_record,
    submitted_cells,
)
from thiefbench.leaderboard.verification.verdict import (
    EARLIER_STAYS,
    FLAGS,
    VERSIONS,
    DeliveryVerdict,
    Flag,
    Rerun,
    Verdict,
    Verification,
    carried_from,
    earlier_verification,
    kinds_of,
    own_seeds,
    stays,
)
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.recorded_rounds import LackingError
from thiefbench.suite.analysis.replay import ReplayError
from thiefbench.suite.execution.cell_identity import RegistryFactory
from thiefbench.suite.scenario import CellSpec, Suite, heading
from thiefbench.suite.store.records import Store
from thiefbench.suite.store.tables import TableError
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.tasks.text import one_line
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted

JUDGED_AGAIN: Final = "the defense gives the verdicts that were recorded"
_FLAG_OF: dict[str, Flag] = {
    "equal views, equal verdicts": "non-deterministic",
    "order changes nothing": "depends on order",
}
"""Questions of `check` for the isolated defense, and the flag for a failure of each."""


@dataclass(frozen=True)
class VerifyOptions:
    """The options of a verification.

    Attributes:
        archive, further: the entry's archive, and of an entry that was brought in several deliveries, those of others;
            without one, only the entry is read.
        reruns: number of submitted comparisons to run again; None for as many as "re-executed" requires.
        fresh: number of seeds to draw for cells that were never submitted.
        all_attacks: run all attacks of the suite at these seeds instead of one.
        held_out: a maintainer's own seeds and attacks.
        store: keeps the cells that are run, and goes on with them; None forgets them. Never the submitted one.
        device, threads: in place of those of the submitted cells.
        caps: of the isolated defense.
        shared: the board's published shared cells.
        judged: let the isolated defense judge the recorded rounds of its cells again. It needs the sandbox, and says so
            where there is none.
        earlier: folder of verifications; seeds without an archive keep the verdict that they have there.
        secret: keys what is drawn. A new one for every verification; given, it repeats one whose key was published.
    """

    archive: Path | None = None
    reruns: int | None = None
    fresh: int = 1
    all_attacks: bool = False
    held_out: HeldOut = field(default_factory=HeldOut)
    store: Path | None = None
    device: str | None = None
    threads: int | None = None
    caps: Caps = CAPS
    shared: Path = SHARED
    further: tuple[Path, ...] = ()
    judged: bool = False
    earlier: Path | None = None
    secret: bytes = field(default_factory=new_secret, repr=False)

    @property
    def archives(self) -> tuple[Path, ...]:
        """All archives that are at hand."""
        return (() if self.archive is None else (self.archive,)) + self.further

    @property
    def runs(self) -> bool:
        """Whether any cells will run."""
        return self.reruns != 0 or self.tries

    @property
    def tries(self) -> bool:
        """Whether cells will run that were never submitted."""
        return bool(self.fresh or self.held_out.seeds or self.held_out.attacks)


@dataclass(frozen=True)
class _Isolated(Subject):
    """The submitted defense, always in the sandbox."""

    caps: Caps = CAPS

    def make(self, hash_seed: int = 0) -> Isolated:
        return Isolated(self.spec, self.caps, hash_seed)


@dataclass
class _Verifier(Questions):
    entry: Entry
    options: VerifyOptions
    tell: Tell
    watch: Watch
    samples: Callable[[Suite], Sequence[Sample]]
    flags: set[Flag] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    reruns: list[Rerun] = field(default_factory=list)
    comparisons: tuple[int, int] | None = None
    forgery_found: float | None = None
    fresh: Fresh = field(default_factory=Fresh)
    ran: bool = False
    found: tuple[Delivery, ...] = ()  # whose archives are at hand; from then on, `entry` has these alone
    grown: bool = False
    in_place: set[str] = field(default_factory=set)  # see `by_delivery.verdicts`, and the next one too
    specs: tuple[CellSpec, ...] = ()
    kind: DefenseKind = "defense"  # what its suite takes
    judged: int = 0  # recorded completions that the defense judged again
    _warm: Defense | None = None  # while one isolated defense lives, others start at once
    _made: IsolatedFactory | None = None
    _apart: dict[str, None] = field(default_factory=dict)  # what is otherwise here than where they were made, in order

    @property
    def seen(self) -> set[int]:
        """The seeds at which its code gave its verdicts again, in all its own cells' rounds or in one cell."""
        judged = {seed for delivery in self.found for seed in delivery.seeds} if self.judged else set()
        return judged | own_seeds(self.reruns, equal=True)

    def _verdict(self) -> Verdict:
        entry, options = self.entry, self.options
        with self._question("the suite is a released one"):
            suite = suite_of(entry)
        with self._question("its cells are those of the suite"):
            specs = cells_of(entry, suite)
        published = Published(options.shared, suite.title, entry.shared_set)
        sets = published_sets(options.shared, suite.title)
        with self._question("published cells that it refers to are those of the suite and this version") as details:
            if count := sum(check_references(*self._of(specs, [each])) for each in entry.manifest.deliveries):
                details.append(counted(count, "cell"))
            check_set(entry, specs, sets)
            self.in_place = {each.scores.cell_id for each in other_cells(entry, specs, sets)}
        self.specs = tuple(spec for _, spec in specs)
        self.grown = bool(entry.manifest.later)
        with self._question("its cells were made alike, as it says") as details:
            check_alike(entry)
            if self.grown:
                details.append(counted(len(entry.manifest.deliveries), "delivery", "deliveries"))
        self.kind = kind_of(suite)
        with self._question("its source is the one that was run"):
            check_source(entry, self.kind)
        self._note_rejections(entry)
        if not options.archives:
            other = self._compare_shared(specs, sets)
            self.reasons = self._about_other(other, run_again=False)
            return "self-reported"
        with temporary_folder() as scratch, temporary_folder() as cells_made:
            with self._question("the archive is the entry's"):
                archives = at_hand(entry, options.archives)
                self.found = tuple(archives.values())
                self.entry, specs = self._of(specs, self.found)
                archive = unpacked(self.entry, archives, Path(scratch) / "archive", [spec for _, spec in specs])
            cells = self._rescored(specs, archive, published)
            other = self._compare_shared(specs, sets, archive)
            may_rise = entry.manifest.own_shared and not entry.published
            if other and not (may_rise and options.reruns != 0):
                self.reasons = self._about_other(other, run_again=False)
                return "self-reported"
            if options.judged and self.kind == "defense":
                self._judge_again(cells, archive, Path(scratch))
            if not options.runs:
                self.reasons = ["no cell was run again"]
                return "rescored"
            guest = self._guest(Path(scratch))
            self._interrogate(guest, suite)
            self.ran = True
            own_store = Store(options.store or Path(cells_made))  # beside whose cells no guest's file lies
            submitted = Results(suite.placebo, {cell_of(c): c.record for c in cells if c.record.status == "ok"})
            order = generator(secret_seed(options.secret, "order"))
            verification_run = VerificationRun(
                guest, archive, own_store, submitted, self.watch, order, options.device, options.threads
            )
            lacking = self._run_again(cells, verification_run, {each.scores.cell_id for each in other})
            if any(each.scores.status == "error" for each in other):  # there is nothing to run again
                self.reasons = self._about_other(other, run_again=False)
                return "self-reported"
            if options.tries:
                self._try_fresh(suite, verification_run)
        self.reasons += self._about_other(other, run_again=True)
        lacking += [*self._lacking_trials(), *weaker_sandbox(self.entry.manifest.defense)]
        if lacking:
            self.reasons[:0] = [one_line(reason, 1000) for reason in lacking]
            return "rescored"
        if self.fresh.inconclusive:
            silent = f"{self.fresh.inconclusive} of its trials at fresh seeds say nothing"
            self.reasons.append(f"{silent}: {self.fresh.why_inconclusive}")
        if unequal := sum(each.equal is False for each in self.reruns):
            reason = (
                f"{unequal} of {sum(each.equal is not None for each in self.reruns)} cells that were run again are not "
                "bit-equal, but their results are close or in the range predicted from the submitted seeds; equal bits "
                "are promised only for a deterministic defense, on a CPU of the same kind with the same versions"
            )
            here = f"; here are {', '.join(self._apart)}" if self._apart else ""
            self.reasons.append(one_line(reason + here, 1000))
        return "re-executed"

    def _of(
        self, specs: Sequence[tuple[str, CellSpec]], deliveries: Sequence[Delivery]
    ) -> tuple[Entry, list[tuple[str, CellSpec]]]:
        """Some deliveries of the entry, and those of its suite's cells that are theirs."""
        entry = delivered(self.entry, deliveries)
        return entry, [(part, spec) for part, spec in specs if spec.seed in entry.manifest.seeds]

    # --- reporting ---

    def _flag(self, flag: Flag, detail: str) -> None:
        self.flags.add(flag)
        self._tell(flag, "warning", detail)

    # --- the steps ---

    def _note_rejections(self, entry: Entry) -> None:
        rate = mean_false_rejection(entry)
        if rate is not None and rate > FAIL_ABOVE:
            self._flag("rejects nearly everything", f"{rate:.0%} of the honest work")

    def _compare_shared(
        self, specs: Sequence[tuple[str, CellSpec]], sets: Sequence[Published], archive: Store | None = None
    ) -> list[OtherCell]:
        """The shared cells that it brings in place of published ones; a flag says so."""
        with self._question("shared cells that it brings are the published ones, where there are any"):
            other = list(other_cells(self.entry, specs, sets, archive))
        if other:
            self._flag(
                "other shared cells", f"{self._count(other)}; the first is the {other[0].name}: {other[0].apart}"
            )
        return other

    def _count(self, other: Sequence[OtherCell]) -> str:
        why = self.entry.manifest.own_shared
        because = f"it says why: {why}" if why else "submit --own-shared REASON would say why, and it does not"
        beside = ", and for others it refers to these" if self.entry.published else ""
        return f"{len(other)} of its shared cells are not the published ones{beside} ({because})"

    def _about_other(self, other: Sequence[OtherCell], run_again: bool) -> list[str]:
        """Which shared cells are in place of published ones, and what that means, in lines for readers."""
        if not other:
            return []
        after = "its row is self-reported until all of them were run again"
        if run_again:
            after = "all of them were run again"
        elif self.entry.published:
            after = "an entry does one or the other, and this one is self-reported until it is submitted again"
        lines = [f"{self._count(other)}; {after}", *(f"{each.name}: {each.apart}" for each in other[:MOST_REASONS])]
        if len(other) > MOST_REASONS:
            lines.append(f"and {len(other) - MOST_REASONS} more shared cells are not the published ones")
        return [one_line(line, 1000) for line in lines]

    def _rescored(
        self, specs: Sequence[tuple[str, CellSpec]], archive: Store, published: Published
    ) -> list[SubmittedCell]:
        """All cells, after checking each of them; raises RejectedError."""
        cells = list(submitted_cells(self.entry, specs, archive))
        source = self.entry.manifest.source_sha256
        with self._question("records are of this version and match the entry"):
            each_cell(cells, lambda cell: check_record(cell, source))
            check_made_alike(self.entry, [cell.record for cell in cells if not cell.published])
        with self._question("completions are consistent and give the scores") as details:
            completions: list[int] = []
            rewards: list[int] = []

            def rescore(cell: SubmittedCell) -> None:
                if cell.record.status == "ok" and not cell.published:
                    try:
                        table = archive.cell(cell.record.cell_id).read_rows()
                    except TableError as error:
                        raise InconsistentError(f"its completions.parquet {error.problem}") from error
                    beside = beside_completions(cell.spec, archive.cell(cell.record.cell_id))
                    completions.append(len(table))
                    rewards.append(check_completions(cell, table, beside=beside))

            each_cell(cells, rescore)
            details.append(f"{sum(completions):,} completions in {counted(len(completions), 'cell')}")
            details.append(f"{sum(rewards):,} rewards computed again")
            words = words_of(self.entry.published.values(), published)
            if measured := sum(  # a control's is measured against one that was brought with it
                check_drift([cell for cell in cells if cell.spec.seed in each.seeds], archive, words)
                for each in self.entry.manifest.deliveries
            ):
                details.append(f"the drift of {counted(measured, 'cell')} as well")
        return cells

    def _guest(self, scratch: Path) -> IsolatedFactory:
        """What makes the submitted defense; its files are copied for the first call."""
        if self._made is not None:
            return self._made
        entry = self.entry

        def make(spec: str) -> Defense:
            if anchor_of(spec):  # the benchmark's own, which may see labels
                return RegistryFactory().make(spec)
            if self.kind == "defense":
                return Isolated(spec, self.options.caps)
            if built_in(spec):  # its arguments are plain values, and no file of the entry takes part
                return RegistryFactory().make(spec)
            made: Defense = RuleSubject(spec, self.kind, caps=self._rule_caps).make()
            return made

        with self._question("the defense can be made in isolation"):
            spec = restage(entry, scratch / "archive" / "weights", scratch / "staged")
            self._warm = make(spec)
        self._made = IsolatedFactory(entry.manifest.defense, spec, entry.manifest.source_sha256, make)
        return self._made

    def _judge_again(self, cells: Sequence[SubmittedCell], archive: Store, scratch: Path) -> None:
        """Let the isolated defense judge the recorded rounds of all its cells; raises RejectedError if it judges
        otherwise, as the completions are then another defense's."""
        own = [cell for cell in cells if cell.own and not cell.published and cell.record.status == "ok"]
        if not own or anchor_of(self.entry.manifest.defense):
            return
        try:
            guest = self._guest(scratch)
            other = partial(Isolated, guest.spec, self.options.caps, 1)
            self.judged = judge_again(own, archive, partial(guest.make, guest.defense), other)
        except TwoWaysError as found:
            self._flag("non-deterministic", str(found))
        except (LackingError, SandboxUnavailable) as error:
            self._tell(JUDGED_AGAIN, "warning", f"not asked: {str(error).partition(': ')[0]}")
        except (OtherVerdictsError, ReplayError, DefenseError) as error:
            failed = "" if isinstance(error, OtherVerdictsError) else "it cannot judge its recorded rounds: "
            with self._question(JUDGED_AGAIN):
                raise RejectedError(f"{failed}{error}") from error
        else:
            self._tell(JUDGED_AGAIN, "ok", f"{self.judged:,} completions in {counted(len(own), 'cell')}")

    def _interrogate(self, guest: IsolatedFactory, suite: Suite) -> None:
        """Test the isolated defense with the questions of `check` whose failure raises a flag."""
        if anchor_of(guest.spec) or (self.kind != "defense" and built_in(guest.spec)):
            return
        asked: list[tuple[str, Callable[[], str]]]
        if self.kind != "defense":
            rule = RuleSubject(guest.spec, self.kind, caps=self._rule_caps)
            asked = [(question, partial(ask, rule)) for question, ask in RULE_QUESTIONS[self.kind]]
        else:
            inspecting = _Isolated(guest.spec, partial(self.samples, suite), caps=self.options.caps)
            asked = [(question, partial(ask, inspecting)) for question, ask in QUESTIONS]
        for question, answer in asked:
            if question in _FLAG_OF:
                with self._question(question) as details:
                    try:
                        details.append(answer())
                    except RuleBroken as broken:
                        self._flag(_FLAG_OF[question], str(broken))

    @property
    def _rule_caps(self) -> Caps | None:
        """Those that the verification was given; None for the published ones."""
        return None if self.options.caps == CAPS else self.options.caps

    def _run_again(
        self, cells: Sequence[SubmittedCell], verification_run: VerificationRun, all_of: Collection[str]
    ) -> list[str]:
        """Run comparisons again, and the shared cells beside cells that are to be run again whatever is drawn.

        Args:
            cells: of the entry.
            verification_run: where they are run.
            all_of: ids of shared cells, each of which is run again.

        Returns:
            What is lacking for "re-executed", a sentence each.
        """
        options, by_attack = self.options, comparisons(cells)
        if not by_attack:
            return ["no submitted cell has scores"]
        # An isolated rule on tensors computes on one thread, and sums of several threads differ in their last bits.
        one_thread = (
            self.kind == "defense" or built_in(verification_run.guest.spec) or self.entry.manifest.numerics.threads == 1
        )
        deterministic = "non-deterministic" not in self.flags and one_thread
        moved = bool(options.device or options.threads)
        brought = [cell for cell in cells if not cell.published]
        bits = deterministic and not moved and not any(surroundings_apart(cell.record) for cell in brought)
        attacks, seeds = len(by_attack), max(map(len, by_attack.values()))
        needed = comparisons_needed(attacks, seeds, bits)
        cells_again = chosen(by_attack, needed if options.reruns is None else options.reruns, options.secret)
        for comparison in cells_again:
            self._run_comparison(comparison, verification_run, deterministic)
        left = set(all_of) - {cell.record.cell_id for comparison in cells_again for cell in comparison}
        for comparison in (comparison for by_seed in by_attack.values() for comparison in by_seed.values()):
            if any(cell.record.cell_id in left for cell in comparison):
                shared = [cell for cell in comparison if not cell.own]
                self._run_comparison(shared, verification_run, deterministic)
        self.comparisons = len(cells_again), sum(map(len, by_attack.values()))
        self.forgery_found = chance_of_finding(attacks, seeds, len(cells_again), [seeds])
        doubts = unconfirmed(self.reruns)
        unequal = sum(each.equal is False and each.kind != "own" for each in self.reruns)
        if all_of and unequal:
            doubts.append(
                f"{unequal} of the shared cells that it brings in place of published ones are not bit-equal here, and "
                "results that are only close leave room to choose what to be measured against; a verifier with a CPU "
                "of the same kind and the same versions can tell"
            )
        if not cells_again:
            return ["no submitted cell was run again", *doubts]
        if len(cells_again) < min(needed, self.comparisons[1]):
            why = (
                f"cells of one attack that are forged at all seeds would be found with a chance of {FOUND:g}"
                if bits
                else f"{SEVERAL} seeds of every attack agree, as equal bits are not promised here"
            )
            doubts.append(
                f"{len(cells_again)} of its comparisons were run again, and {needed} are needed, so that {why}"
            )
        return doubts

    def _run_comparison(
        self, cells: Sequence[SubmittedCell], verification_run: VerificationRun, deterministic: bool
    ) -> None:
        spec = cells[0].spec
        with self._question(f"run again: {heading(cells[0].part, spec.attack)}, seed {spec.seed}") as details:
            try:
                reruns = rerun(cells, verification_run, deterministic)
            except DisagreesError as error:
                self.reruns += error.reruns
                raise
            self.reruns += reruns
            brought = [cell for cell in cells if not cell.published]
            apart = dict.fromkeys(name for cell in brought for name in surroundings_apart(cell.record))
            self._apart |= apart
            equal = sum(bool(each.equal) for each in reruns)
            details.append(f"{kinds_of(reruns)}: {equal} of {len(reruns)} bit-equal")
            details += [
                f"{each.measure} {each.found}, {'as' if each.agrees else 'not as'} the submitted seeds predict"
                for each in reruns
                if not each.equal
            ]
            details += [f"with {', '.join(apart)}"] if apart else []

    def _try_fresh(self, suite: Suite, verification_run: VerificationRun) -> None:
        options = self.options
        planned = trials(suite, options.fresh, options.all_attacks, options.held_out, options.secret)
        with self._question("seeds and attacks unknown to the submitter") as details:
            self.fresh = try_fresh(planned, self.entry.manifest.defense, verification_run)
            details.append(f"{len(planned)} tried")
            if self.fresh.inconclusive:
                details.append(f"{self.fresh.inconclusive} inconclusive: {self.fresh.why_inconclusive}")
        self.reruns += self.fresh.reruns
        for reason in self.fresh.below[:MOST_REASONS]:
            self._flag("does not generalise", reason)

    def _lacking_trials(self) -> list[str]:
        """What the trials at fresh seeds lack for "re-executed"."""
        if self.fresh.below:
            return [f"does not generalise: {reason}" for reason in self.fresh.below[:MOST_REASONS]]
        if anchor_of(self.entry.manifest.defense):  # the benchmark's own, which looks for no seeds
            return []
        if not (self.fresh.conclusive or self.fresh.inconclusive):
            return ["it was not tried at a fresh seed, where it cannot know who is malicious"]
        if not self.fresh.conclusive:
            tried = self.fresh.inconclusive
            which = "its trial at a fresh seed is" if tried == 1 else f"all {tried} of its trials at fresh seeds are"
            return [f"{which} inconclusive: {self.fresh.why_inconclusive}; --fresh {tried + 2} tries more"]
        if silent := self.fresh.silent:
            return [
                f"its trials at fresh seeds say nothing of {', '.join(silent)}: {self.fresh.why_inconclusive}; "
                f"--fresh {self.options.fresh + 2} tries more"
            ]
        return []


@reads_strangers
def verify(
    folder: Path, options: VerifyOptions, tell: Tell, watch: Watch, samples: Callable[[Suite], Sequence[Sample]]
) -> Verification:
    """Verify an entry.

    Args:
        folder: of the entry.
        options: how far to go.
        tell: receives every finding.
        watch: receives the progress of the cells that are run.
        samples: plays the pools, like those of the entry's suite, that the isolated defense is tested on.

    Raises:
        EntryError: the folder cannot be read as an entry.
        WrongArchiveError: an archive is not the entry's.
        UserError: the last verification, among `options.earlier`, cannot be read.
        SandboxUnavailable: cells must run, and this machine has no working sandbox.
    """
    entry = read_entry(folder, options.shared)
    earlier = earlier_verification(options.earlier, entry.manifest.slug) if options.earlier else None
    verifier = _Verifier(entry, options, tell, watch, samples)
    verdict, today = verifier.verdict(), datetime.now(UTC).date()
    made = verdicts(entry, verifier.found, verdict, earlier, verifier.in_place, verifier.specs, verifier.seen, today)
    if verdict != "rejected":
        verdict = lowest(made)
        verifier.reasons[:0] = doubts(entry, made, verifier.found)
    carried, flags = carried_from(earlier, verifier.reruns, tried=bool(verifier.fresh.conclusive))
    may_stay = carried == "rejection" or not verifier.ran
    if earlier is not None and may_stay and (kept := _kept(earlier, verifier, verdict, made)) is not None:
        tell(Finding(EARLIER_STAYS, "ok", f"of {earlier.verified.isoformat()}"))
        return kept
    verifier.flags |= flags
    of_each = zip(entry.manifest.deliveries, made, strict=True)
    if earlier is not None and {each for of, each in of_each if of not in verifier.found} & {*earlier.deliveries}:
        verifier.flags |= set(earlier.flags)
    numerics = entry.manifest.numerics
    here = provenance.provenance(options.device or numerics.device, options.threads or numerics.threads)
    return Verification(
        slug=entry.manifest.slug,
        entry_sha256=entry.sha256,
        verdict=verdict,
        deliveries=made,
        reasons=tuple(verifier.reasons),
        flags=tuple(flag for flag in FLAGS if flag in verifier.flags),
        reruns=tuple(verifier.reruns),
        comparisons=verifier.comparisons,
        forgery_found=verifier.forgery_found,
        fresh_trials=verifier.fresh.conclusive + verifier.fresh.inconclusive,
        inconclusive=verifier.fresh.inconclusive,
        key=options.secret.hex() if verifier.ran else "",
        held_out=verifier.fresh.held_out,
        judged=verifier.judged,
        carried=carried,
        verified=today,
        engine_revision=engine_revision(),
        versions={name: str(here[name]) for name in VERSIONS},
        machine={name: here[name] for name in (*provenance.MACHINE, "git_commit", "git_dirty")},
    )


def _kept(
    earlier: Verification, verifier: _Verifier, verdict: Verdict, made: tuple[DeliveryVerdict, ...]
) -> Verification | None:
    """The earlier verification, with what was seen now; None if this one takes its place.

    Args:
        earlier: of the same entry, from which something is carried over or which ran more cells.
        verifier: after its verdict.
        verdict, made: of the entry and of its deliveries.
    """
    entry = verifier.entry
    # Without its archive, a delivery has the verdict that it keeps already.
    nothing_new = not verifier.found and made == earlier.deliveries
    whole = len(verifier.found) == len(entry.manifest.deliveries)
    if not (nothing_new or whole or earlier.verdict == "rejected") or not stays(earlier, entry, verdict, made):
        return None
    about = dict.fromkeys([*doubts(entry, made, verifier.found), *earlier.reasons])
    seen = {delivery.sha256 for delivery in made if delivery.code_seen}
    shown = {*earlier.flags, *verifier.flags}
    changes: dict[str, object] = {
        "entry_sha256": entry.sha256,
        "reasons": tuple(about),
        "flags": tuple(flag for flag in FLAGS if flag in shown),
        "judged": max(earlier.judged, verifier.judged),
        "deliveries": tuple(
            each.model_copy(update={"code_seen": True}) if each.sha256 in seen else each for each in earlier.deliveries
        ),
    }
    return earlier.model_copy(update=changes)
