"""`thiefbench leaderboard verify`: nothing that is submitted is believed.

A verdict grows with what was done, and ends where something does not hold:

- **self-reported**: the entry alone is whole: its files are what it says, its cells are those of a released suite.
- **rescored**: its archive holds raw completions that are true in themselves and give its scores.
- **re-executed**: cells, drawn in secret, were run again with the defense isolated, and agree.
- **rejected**: something does not hold; the reasons say what.

Flags say what a reader should know beside the verdict. That a defense does worse at seeds drawn after its submission is
a flag too: its scores stay true, and say less than they seem to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from thiefbench import provenance, registry
from thiefbench.defenses.base import Defense
from thiefbench.engine import ENGINE_REVISION
from thiefbench.leaderboard.archive import unpack
from thiefbench.leaderboard.cell_scores import CellScores
from thiefbench.leaderboard.checking.check import FAIL_ABOVE, QUESTIONS, Finding, RuleBroken, Status, Subject
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.entry_validation import cells_of, check_source
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS, Caps
from thiefbench.leaderboard.isolation.staging import restage
from thiefbench.leaderboard.rows import suite_of
from thiefbench.leaderboard.verification.expectation import Results
from thiefbench.leaderboard.verification.held_out import HeldOut, trials
from thiefbench.leaderboard.verification.reexecution import (
    DisagreesError,
    VerificationRun,
    Watch,
    cell_of,
    chosen,
    rerun,
    try_fresh,
)
from thiefbench.leaderboard.verification.rerunning import IsolatedFactory
from thiefbench.leaderboard.verification.rescoring import (
    InconsistentError,
    SubmittedCell,
    check_completions,
    check_record,
    told_cells,
)
from thiefbench.leaderboard.verification.verdict import FLAGS, Flag, Rerun, Verdict, Verification, entry_sha256
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.execution.cell_run import RegistryFactory
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Store

MOST_REASONS = 5
_VERSIONS = ("thiefbench", "torch", "transformers", "numpy", "python")
_ASKED: dict[str, Flag] = {
    "equal views, equal verdicts": "non-deterministic",
    "order changes nothing": "depends on order",
}
"""Questions of `check` that are put to the isolated defense, and what a failure is called."""

Tell = Callable[[Finding], None]


class RejectedError(Exception):
    """Something does not hold; the reasons are its arguments, one sentence each."""


@dataclass(frozen=True)
class VerifyOptions:
    """What a verifier is to do.

    Attributes:
        archive: the entry's; without one, nothing but the entry is looked at.
        reruns: submitted cells to run again.
        fresh: seeds to draw for cells that were never submitted.
        all_attacks: at these, against all attacks of the suite rather than one.
        held_out: a maintainer's own seeds and attacks.
        store: keeps the cells that are run, and goes on with them; None forgets them. Never the submitted one.
        device, threads: in place of those of the submitted cells.
        caps: of the isolated defense.
    """

    archive: Path | None = None
    reruns: int = 1
    fresh: int = 0
    all_attacks: bool = False
    held_out: HeldOut = field(default_factory=HeldOut)
    store: Path | None = None
    device: str | None = None
    threads: int | None = None
    caps: Caps = CAPS

    @property
    def runs(self) -> bool:
        """Whether anything is to be run."""
        return bool(self.reruns or self.fresh or self.held_out.seeds or self.held_out.attacks)


@dataclass(frozen=True)
class _Isolated(Subject):
    """What is questioned, always in the sandbox."""

    caps: Caps = CAPS

    def make(self, hash_seed: int = 0) -> Isolated:
        return Isolated(self.spec, self.caps, hash_seed)


@dataclass
class _Verifier:
    entry: Entry
    asked: VerifyOptions
    tell: Tell
    watch: Watch
    samples: Callable[[], Sequence[Sample]]
    flags: set[Flag] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    reruns: list[Rerun] = field(default_factory=list)
    held_out: int = 0
    _warm: Defense | None = None  # while one isolated defense lives, others start at once

    def verdict(self) -> Verdict:
        """Do what is asked, as far as everything holds."""
        try:
            return self._verdict()
        except RejectedError as error:
            self.reasons = [_plain(str(reason))[:1000] for reason in error.args]
            return "rejected"

    def _verdict(self) -> Verdict:
        entry, asked = self.entry, self.asked
        with self._question("the suite is a released one"):
            suite = suite_of(entry)
        with self._question("its cells are those of the suite"):
            specs = cells_of(entry, suite)
        with self._question("its source is what was run"):
            check_source(entry)
        self._note_rejections(entry.own)
        if asked.archive is None:
            self.reasons = ["no archive was given, so its scores are what its authors say"]
            return "self-reported"
        with TemporaryDirectory(prefix="thiefbench-verify-") as scratch:
            with self._question("the archive is the entry's"):
                archive = unpack(asked.archive, entry, Path(scratch) / "archive")
            cells = self._rescored(specs, archive)
            if not asked.runs:
                self.reasons = ["no cell was run again"]
                return "rescored"
            guest = self._guest(Path(scratch))
            self._interrogate(guest)
            kept = Store(asked.store or Path(scratch) / "store")
            submitted = Results(suite.placebo, {cell_of(c): c.record for c in cells if c.record.status == "ok"})
            laboratory = VerificationRun(guest, archive, kept, submitted, self.watch, asked.device, asked.threads)
            again = chosen(cells, asked.reruns)
            for told in again:
                self._run_again(told, laboratory)
            self._try_fresh(suite, laboratory)
        if not again:
            self.reasons.append("no submitted cell was run again")
        if elsewhere := sum(each.equal is False for each in self.reruns):
            self.reasons.append(
                f"{elsewhere} of {len(again)} cells that were run again are not bit-equal but as expected: bits are "
                "promised on a CPU of the same kind with the same versions, to a deterministic defense"
            )
        return "re-executed" if again else "rescored"

    # --- what is said ---

    @contextmanager
    def _question(self, question: str) -> Iterator[list[str]]:
        """Tell how a question went; whatever does not hold rejects the entry. Words appended are told where it holds.

        Raises:
            RejectedError: it does not hold.
        """
        words: list[str] = []
        try:
            yield words
        except RejectedError as error:
            self._tell(question, "FAILED", "; ".join(map(str, error.args)))
            raise
        except (EntryError, InconsistentError, DisagreesError, DefenseError, registry.SpecStringError) as error:
            self._tell(question, "FAILED", str(error))
            raise RejectedError(str(error)) from error
        self._tell(question, "ok", ", ".join(words))

    def _flag(self, flag: Flag, said: str) -> None:
        self.flags.add(flag)
        self._tell(flag, "warning", said)

    def _tell(self, question: str, status: Status, said: str) -> None:
        self.tell(Finding(question, status, _plain(said)))

    # --- what is done ---

    def _note_rejections(self, own: Iterator[CellScores]) -> None:
        rates = [cell.scores["false_rejection_rate"][0] for cell in own if "false_rejection_rate" in cell.scores]
        known = [rate for rate in rates if rate is not None]
        if known and fmean(known) > FAIL_ABOVE:
            self._flag("rejects nearly everything", f"{fmean(known):.0%} of the honest rewarded completions")

    def _rescored(self, specs: Sequence[tuple[str, CellSpec]], archive: Store) -> list[SubmittedCell]:
        """All cells, each of which holds."""
        cells = list(told_cells(self.entry, specs, archive))
        source = self.entry.manifest.source_sha256
        with self._question("records are of this version and what the entry says"):
            _each(cells, lambda told: check_record(told, source))
        with self._question("completions are true in themselves and give the scores") as said:
            counts: list[int] = []

            def rescore(told: SubmittedCell) -> None:
                if told.record.status == "ok":
                    table = archive.cell(told.record.cell_id).read_rows()
                    counts.append(len(table))
                    counts.append(check_completions(told, table))

            _each(cells, rescore)
            said.append(f"{sum(counts[::2]):,} completions in {len(counts) // 2} cells")
            said.append(f"{sum(counts[1::2]):,} rewards worked out anew")
        return cells

    def _guest(self, scratch: Path) -> IsolatedFactory:
        entry = self.entry

        def make(spec: str) -> Defense:
            if anchor_of(spec):  # the benchmark's own, which may see labels
                return RegistryFactory().make(spec)
            return Isolated(spec, self.asked.caps)

        with self._question("the defense can be made in isolation"):
            spec = restage(entry, scratch / "archive" / "weights", scratch / "staged")
            self._warm = make(spec)
        return IsolatedFactory(entry.manifest.defense, spec, entry.manifest.source_sha256, make)

    def _interrogate(self, guest: IsolatedFactory) -> None:
        """Ask of the isolated defense what `check` asks, where the answer is a flag."""
        if anchor_of(guest.spec):
            return
        subject = _Isolated(guest.spec, self.samples(), caps=self.asked.caps)
        for question, ask in QUESTIONS:
            if question in _ASKED:
                with self._question(question) as said:
                    try:
                        said.append(ask(subject))
                    except RuleBroken as broken:
                        self._flag(_ASKED[question], str(broken))

    def _run_again(self, told: SubmittedCell, laboratory: VerificationRun) -> None:
        with self._question(f"run again: {told.spec.label}") as said:
            try:
                made = rerun(told, laboratory, "non-deterministic" not in self.flags)
            except DisagreesError as error:
                self.reruns += [] if error.made is None else [error.made]
                raise
            self.reruns.append(made)
            said.append(
                "bit-equal" if made.equal else f"{made.measure} {made.found}, as the submitted seeds lead one to expect"
            )

    def _try_fresh(self, suite: Suite, laboratory: VerificationRun) -> None:
        asked = self.asked
        if not (asked.fresh or asked.held_out.seeds or asked.held_out.attacks):
            return
        chosen_trials = trials(suite, asked.fresh, asked.all_attacks, asked.held_out)
        with self._question("seeds that nobody could prepare for") as said:
            fresh = try_fresh(chosen_trials, self.entry.manifest.defense, laboratory)
            said.append(f"{len(chosen_trials)} tried")
            if fresh.inconclusive:
                said.append(f"{fresh.inconclusive} inconclusive, as the attack does not beat its placebo undefended")
        self.reruns += fresh.reruns
        self.held_out = fresh.held_out
        for reason in fresh.below[:MOST_REASONS]:
            self._flag("does not generalise", reason)
            self.reasons.append(reason[:1000])


def verify(
    folder: Path, asked: VerifyOptions, tell: Tell, watch: Watch, samples: Callable[[], Sequence[Sample]]
) -> Verification:
    """Verify an entry.

    Args:
        folder: of the entry.
        asked: what to do.
        tell: told every finding as it is made.
        watch: told what is run.
        samples: plays the pools that the isolated defense is questioned on.

    Raises:
        EntryError: the folder cannot even be read as an entry.
        SandboxUnavailable: something is to be run, and this machine has no working sandbox.
    """
    entry = read_entry(folder)
    verifier = _Verifier(entry, asked, tell, watch, samples)
    verdict = verifier.verdict()
    numerics = entry.manifest.numerics
    here = provenance.provenance(asked.device or numerics.device, asked.threads or numerics.threads)
    return Verification(
        slug=entry.manifest.slug,
        entry_sha256=entry_sha256(entry),
        verdict=verdict,
        reasons=tuple(verifier.reasons),
        flags=tuple(flag for flag in FLAGS if flag in verifier.flags),
        reruns=tuple(verifier.reruns),
        held_out=verifier.held_out,
        verified=datetime.now(UTC).date(),
        engine_revision=ENGINE_REVISION,
        versions={name: str(here[name]) for name in _VERSIONS},
        machine={name: here[name] for name in (*provenance.MACHINE, "git_commit", "git_dirty")},
    )


def _plain(text: str) -> str:
    """What strangers had a part in, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _each(cells: Sequence[SubmittedCell], ask: Callable[[SubmittedCell], None]) -> None:
    """Ask something of every cell.

    Raises:
        RejectedError: it does not hold for some; the first ones are named.
    """
    wrong: list[str] = []
    for told in cells:
        try:
            ask(told)
        except InconsistentError as error:
            wrong.append(f"{told.part + ': ' if told.part else ''}{told.spec.label}: {error}")
    if len(wrong) > MOST_REASONS:
        wrong[MOST_REASONS:] = [f"and {len(wrong) - MOST_REASONS} more cells do not hold"]
    if wrong:
        raise RejectedError(*wrong)
