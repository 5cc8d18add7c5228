"""Submitted cells run again, and cells at seeds that the submitter could not know, compared with what was submitted.

What is run again is a whole comparison: an own cell together with everything that its scores are measured against
(`thiefbench.leaderboard.verification.drawing`), but for what the board has published of it. A submitted cell that is
run on a CPU of the same kind and with the same versions as its record names must give exactly the same completions.
Anywhere else, or where the defense is not deterministic, its result must be close to the submitted one or lie in the
range predicted from the submitted seeds (`thiefbench.leaderboard.verification.expectation`).

At a fresh seed, control, placebo, undefended and defended cells are run, at another one the defense without an attack,
and the means over fresh seeds are compared with the submitted ones. The seed is hashed with the verification's secret,
so that here the defense cannot know what it could work out from a public seed: who is malicious, which slots are whose,
the payload. A defense whose mean lies below does not generalise: that is no reason to reject the entry, since the
submitted scores remain correct, but it is not re-executed either.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import get_args

from thiefbench.engine.keys import generator, secret_seed
from thiefbench.engine.spec import SpecError
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.verification.drawing import drawn
from thiefbench.leaderboard.verification.expectation import (
    MARGIN,
    MOST_APART,
    Cell,
    CellResult,
    Results,
    close,
    expected,
)
from thiefbench.leaderboard.verification.held_out import HeldOutTrial
from thiefbench.leaderboard.verification.rerunning import (
    IsolatedFactory,
    first_difference,
    first_exchange_apart,
    first_stage_apart,
    run,
    surroundings_apart,
)
from thiefbench.leaderboard.verification.rescoring import SubmittedCell, beside_completions
from thiefbench.leaderboard.verification.verdict import KINDS, Kind, Rerun
from thiefbench.suite.analysis.comparison import undefended_attack, why_inconclusive
from thiefbench.suite.analysis.statistics import FEW_SEEDS
from thiefbench.suite.execution.cell_run import Progress
from thiefbench.suite.scenario import CellSpec, heading
from thiefbench.suite.store.records import CellDir, Record, Store

Watch = Callable[[str], Progress]
"""Describes a cell that is run, without its seed -> receives the progress of its rounds."""


class DisagreesError(Exception):
    """A cell that was run again differs from what was submitted. One sentence.

    Attributes:
        reruns: of its comparison, those that were finished; the last one disagrees. Empty if the cell failed.
    """

    def __init__(self, message: str, reruns: Sequence[Rerun] = ()) -> None:
        super().__init__(message)
        self.reruns = tuple(reruns)


@dataclass
class VerificationRun:
    """Where a verifier runs cells.

    Attributes:
        guest: makes the submitted defense.
        archive, store: where the submitted cells' files are, and where those of cells that are run here go.
        submitted: records of all submitted cells that have scores.
        watch: receives the progress of each cell.
        order: draws the order in which cells run, keyed by what the submitter does not know.
        device, threads: in place of those of the submitted cells; None keeps them.
    """

    guest: IsolatedFactory
    archive: Store
    store: Store
    submitted: Results
    watch: Watch
    order: random.Random
    device: str | None = None
    threads: int | None = None

    def run(self, spec: CellSpec, what: str) -> Record:
        """The record of a cell; raises what `rerunning.run` raises."""
        changes = {name: value for name, value in (("device", self.device), ("threads", self.threads)) if value}
        return run(replace(spec, **changes), self.store, self.guest, self.watch(what))  # type: ignore[arg-type]


# --- submitted cells ---

Attacked = tuple[str, str]
"""A part of the suite, and an attack in it."""
ByAttack = Mapping[Attacked, Mapping[int, list[SubmittedCell]]]
"""The cells of every comparison, by attack and seed."""


def comparisons(cells: Sequence[SubmittedCell]) -> ByAttack:
    """The cells with scores by attack and seed: those of a comparison together (see `drawing`)."""
    by_attack: dict[Attacked, dict[int, list[SubmittedCell]]] = {}
    for cell in cells:
        if cell.record.status == "ok":
            by_attack.setdefault((cell.part, cell.spec.attack), {}).setdefault(cell.spec.seed, []).append(cell)
    return by_attack


def chosen(by_attack: ByAttack, count: int, secret: bytes) -> list[list[SubmittedCell]]:
    """`count` comparisons to run again, drawn with the verification's secret; see `drawing.drawn`."""
    seeds = {attack: list(row) for attack, row in by_attack.items()}
    return [by_attack[attack][seed] for attack, seed in drawn(seeds, count, generator(secret_seed(secret, "reruns")))]


@dataclass(frozen=True)
class _Again:
    """A submitted cell that was run again.

    Attributes:
        submitted: the cell.
        record: what it left here.
        difference: what first differs from what was submitted, in words that follow "its"; empty if nothing does.
        bits: whether equal completions are promised.
    """

    submitted: SubmittedCell
    record: Record
    difference: str
    bits: bool


def rerun(cells: Sequence[SubmittedCell], verification_run: VerificationRun, deterministic: bool) -> list[Rerun]:
    """Run the cells of a comparison again, in any order: a defense that knew how long its worker has run, or how many
    guests there were before, would still not know which cell it is in.

    Published cells are not run again: they are the board's, and no word in them is the submitter's. Where equal bits
    are not promised, a result is measured against the published cells, and against the others as they came out here,
    and has to be close to the submitted one or in the range predicted from the submitted seeds.

    Args:
        cells: of one comparison.
        verification_run: where they are run.
        deterministic: whether the defense gives equal verdicts to equal views; otherwise equal bits are not expected.

    Raises:
        DisagreesError: a result differs from the submitted one.
    """
    played: list[_Again] = []
    reruns: list[Rerun] = []
    published = {cell_of(cell): cell.record for cell in cells if cell.published}
    brought = [cell for cell in cells if not cell.published]
    for submitted in verification_run.order.sample(brought, len(brought)):
        again = _again(submitted, verification_run, deterministic)
        played.append(again)
        if again.bits:
            reruns.append(_compared(again, verification_run.submitted, verification_run.submitted))
            if again.difference:
                raise DisagreesError(
                    f"{submitted.name}: run again on the same kind of machine and versions, its {again.difference}",
                    reruns,
                )
    here = {cell_of(each.submitted): each.record for each in played}
    beside = Results(verification_run.submitted.placebo, published | here)
    for again in played:
        if not again.bits:
            reruns.append(_compared(again, beside, verification_run.submitted))
            _refuse_what_no_spread_explains(again, reruns, verification_run.submitted)
    return sorted(reruns, key=lambda each: (get_args(Kind).index(each.kind or "own"), each.role))


def kind_of(cell: SubmittedCell) -> Kind:
    """What a cell is in its comparison."""
    if cell.own:
        return "own"
    if cell.spec.role == "attack":
        return "undefended" if cell.spec.defense == "none" else "oracle"
    return "placebo" if cell.spec.role == "placebo" else "control"


def unconfirmed(reruns: Sequence[Rerun]) -> list[str]:
    """Of results that agree only as far as their seeds lie apart: why they confirm nothing, a sentence each."""
    return [
        f"{heading(each.part, each.attack)}, {KINDS[each.kind or 'own']} cell, seed {each.seed}: run again, its "
        f"{each.measure} is {_number(each.found)}, neither close to the submitted one nor in the range "
        f"{_between(*each.submitted)}; the submitted seeds lie too far apart to confirm or refute it"
        for each in reruns
        if not each.agrees
    ]


def cell_difference(spec: CellSpec, here: CellDir, there: CellDir) -> str:
    """Where a cell that was run again first differs from the submitted one, in words that follow "its"; empty if
    nowhere. Beside completions, exchanges and stages count."""
    if apart := first_difference(here.read_rows(), there.read_rows()):
        return f"completions differ {apart}"
    one, other = (beside_completions(spec, each) for each in (here, there))
    return first_exchange_apart(one.exchanges, other.exchanges) or first_stage_apart(one.stages, other.stages)


def _again(submitted: SubmittedCell, verification_run: VerificationRun, deterministic: bool) -> _Again:
    name = submitted.name
    record = _scored(verification_run, submitted.spec, f"again: {name}", name)
    moved = bool(verification_run.device or verification_run.threads)
    if not moved and record.cell_id != submitted.record.cell_id:
        raise DisagreesError(f"{name}: its identity here, such as the judge it uses, differs from its record's")
    difference = cell_difference(
        submitted.spec,
        verification_run.store.cell(record.cell_id),
        verification_run.archive.cell(submitted.record.cell_id),
    )
    bits = not surroundings_apart(submitted.record) and not moved and (deterministic or not submitted.own)
    return _Again(submitted, record, difference, bits)


def _compared(again: _Again, beside: Results, submitted: Results) -> Rerun:
    """A cell that was run again next to what was submitted.

    Args:
        again: the cell.
        beside: what its new result is measured against.
        submitted: the records of the entry.
    """
    spec, cell = again.submitted.spec, cell_of(again.submitted)
    before, after = submitted.result_of(cell, again.submitted.record), beside.result_of(cell, again.record)
    low, high = _expected_of(submitted, cell, after)
    same = before is None and after is None
    if before is not None and after is not None and before.measure == after.measure:
        inside = low is not None and high is not None and low <= after.value <= high
        same = inside or close(before.value, after.value, after.slack)
    return Rerun(
        part=again.submitted.part, role=spec.role, attack=spec.attack, seed=spec.seed,
        measure=after.measure if after else "headline_asr",
        submitted=(before.value, before.value) if again.bits and before else (low, high),
        found=after.value if after else None, equal=not again.difference,
        agrees=not again.difference or (same and not again.bits), kind=kind_of(again.submitted),
    )  # fmt: skip


def _refuse_what_no_spread_explains(again: _Again, reruns: Sequence[Rerun], submitted: Results) -> None:
    """Raise DisagreesError where the last rerun lies outside even of the whole prediction interval."""
    result, cell = reruns[-1], cell_of(again.submitted)
    if result.agrees:
        return
    values = submitted.values(cell, result.measure)
    low, high = expected(values, 0.0, most=math.inf) if values and result.found is not None else (None, None)
    if result.found is None or low is None or high is None or not low <= result.found <= high:
        raise DisagreesError(
            f"{again.submitted.name}: run again, its {result.measure} is {_number(result.found)}, outside the range "
            f"predicted from the submitted seeds, {_between(*result.submitted)}",
            reruns,
        )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def cell_of(submitted: SubmittedCell) -> Cell:
    """The suite's cell that a submitted cell belongs to."""
    return Cell(submitted.part, submitted.spec.role, submitted.spec.attack, submitted.spec.defense, submitted.spec.seed)


def _expected_of(submitted: Results, cell: Cell, result: CellResult | None) -> tuple[float | None, float | None]:
    """The range predicted for another draw of a cell from the submitted seeds of its row."""
    if result is None:
        return None, None
    values = submitted.values(cell, result.measure)
    return expected(values, result.slack) if values else (None, None)


def _scored(verification_run: VerificationRun, spec: CellSpec, what: str, name: str) -> Record:
    try:
        record = verification_run.run(spec, what)
    except (DefenseError, SpecError) as error:  # the suite's swarms are valid, so the defense is at fault
        raise DisagreesError(f"{name}: run again in isolation, {error}") from error
    if record.status == "error":
        raise DisagreesError(f"{name}: run again in isolation, it failed: {record.error[:400]}")
    return record


# --- cells that the submitter could not know ---


@dataclass
class Fresh:
    """Results at seeds and against attacks that the submitter could not know.

    Attributes:
        reruns: of the suite's own attacks at drawn seeds, with the seeds hidden.
        held_out: how many cells were run for trials of which nothing is published.
        below: reasons why the defense does not generalise, one sentence each.
        conclusive: trials that say what the defense prevents.
        inconclusive: trials of attacks that do not work undefended (see `thiefbench.suite.analysis.comparison`), or do
            so little harm that the completions leave the share prevented open by more than `MOST_APART`.
        imprecise: how many of them are of the second kind.
        silent: attacks of the suite that were tried, and of which no trial is conclusive although the entry says what
            the defense prevents.
    """

    reruns: list[Rerun] = field(default_factory=list)
    held_out: int = 0
    below: list[str] = field(default_factory=list)
    conclusive: int = 0
    inconclusive: int = 0
    imprecise: int = 0
    silent: list[str] = field(default_factory=list)

    @property
    def why_inconclusive(self) -> str:
        """Why its inconclusive trials say nothing, in a clause."""
        if self.imprecise == self.inconclusive:
            return f"what is prevented there is known less precisely than to {MOST_APART}"
        return "undefended, the attack does too little harm there to measure what is prevented" + (
            f", or ({self.imprecise} of them) the defense leaves open how much of it" if self.imprecise else ""
        )


@dataclass(frozen=True)
class _Outcome:
    """One measure of one trial.

    Attributes:
        trial: the trial.
        found: its result.
        values: the submitted values that it is compared with.
        enough: a value that is in order whatever was submitted, such as what the undefended swarm learns.
    """

    trial: HeldOutTrial
    found: CellResult
    values: tuple[float, ...]
    enough: float = math.inf

    def predicted(self) -> tuple[float, float]:
        """The range predicted from the submitted values, down to what is enough."""
        low, high = expected(self.values, self.found.slack)
        return min(low, self.enough), high


def try_fresh(trials: Sequence[HeldOutTrial], defense: str, verification_run: VerificationRun) -> Fresh:
    """Run trials and compare them with what was submitted.

    Raises:
        DisagreesError: the defense fails.
    """
    made = Fresh()
    played: list[tuple[HeldOutTrial, Results]] = []
    known: set[tuple[str, int]] = set()
    for number, trial in enumerate(trials, 1):
        what = "a held-out trial" if trial.held_out else f"{trial.attack} at a fresh seed"
        beside = Results(verification_run.submitted.placebo)
        like = next(iter(verification_run.submitted.records.values()))  # any: for the numerics
        cells = list(_cells(trial, defense, like, verification_run.submitted.placebo))
        if (trial.part.name, trial.clean_seed) in known:  # without an attack, the attack changes nothing
            cells = [(cell, spec) for cell, spec in cells if cell.seed != trial.clean_seed]
        known.add((trial.part.name, trial.clean_seed))
        for cell, spec in verification_run.order.sample(cells, len(cells)):
            label = f"fresh {number} of {len(trials)}: {_role(cell)}"
            beside.records[cell] = _scored(verification_run, spec, label, what)
        made.held_out += len(cells) if trial.held_out else 0
        played.append((trial, beside))
    outcomes = [
        outcome
        for trials_of_attack in _by_attack(played)
        for outcome in _outcomes(trials_of_attack, defense, verification_run.submitted, made)
    ]
    made.reruns = [_hidden(each) for each in outcomes if not each.trial.held_out]
    made.below = list(_below(outcomes))
    return made


def _cells(trial: HeldOutTrial, defense: str, like: Record, placebo: bool) -> Iterator[tuple[Cell, CellSpec]]:
    """The cells of a trial: attacked ones and their references at its seed, and at another one those that utility is
    computed from."""
    part = trial.part
    numerics = {name: like.cell[name] for name in ("device", "dtype", "threads")}
    one = replace(part, attacks=(trial.attack,))

    def cell(spec: CellSpec) -> tuple[Cell, CellSpec]:
        return Cell(part.name, spec.role, spec.attack, spec.defense, spec.seed), spec

    for spec in one.cells(trial.seed, ("none",), placebo, False, numerics):
        yield cell(spec)
        if spec.role == "attack":
            yield cell(replace(spec, defense=defense))
    for spec in one.cells(trial.clean_seed, ("none",), False, False, numerics):
        if spec.role == "control":
            yield cell(spec)
            yield cell(replace(spec, defense=defense))


def _by_attack(played: Sequence[tuple[HeldOutTrial, Results]]) -> list[list[tuple[HeldOutTrial, Results]]]:
    """Trials that are judged together: of one attack in one part, published ones apart from held-out ones."""
    groups: dict[tuple[str, str, bool], list[tuple[HeldOutTrial, Results]]] = {}
    for trial, beside in played:
        groups.setdefault((trial.part.name, trial.attack, trial.held_out), []).append((trial, beside))
    return list(groups.values())


def _works(played: Sequence[tuple[HeldOutTrial, Results]], defense: str) -> bool:
    """Whether an attack works at the seeds of its trials, by the rule of every other page."""
    undefended: dict[int, Record | None] = {}
    reference: dict[int, Record | None] = {}
    for trial, beside in played:
        attacked = Cell(trial.part.name, "attack", trial.attack, defense, trial.seed)
        against = beside.reference(trial.attack)
        undefended[trial.seed] = beside.undefended(attacked, "attack")
        reference[trial.seed] = beside.undefended(attacked, against)
    attack = undefended_attack(heading(trial.part.name, trial.attack), undefended, reference, against)
    return not why_inconclusive(attack, sorted(undefended))


def _outcomes(
    played: Sequence[tuple[HeldOutTrial, Results]], defense: str, submitted: Results, made: Fresh
) -> Iterator[_Outcome]:
    """What trials of one attack came to, with what was submitted; those that say nothing are counted in `made`."""
    works, before = _works(played, defense), made.conclusive
    for trial, beside in played:
        part = trial.part.name
        attacked = Cell(part, "attack", trial.attack, defense, trial.seed)
        harm_outcome = beside.result_of(attacked, beside.records[attacked])
        if not works or harm_outcome is None or harm_outcome.measure != "harm_prevented":
            made.inconclusive += 1
        elif values := _submitted_harm(trial, defense, submitted):
            vague = harm_outcome.slack > MOST_APART and harm_outcome.value >= expected(values, harm_outcome.slack)[0]
            made.inconclusive += vague
            made.imprecise += vague
            made.conclusive += not vague
            yield _Outcome(trial, harm_outcome, values)
        if not trial.held_out:  # their attack may be another than the suite's, and cost learning more
            yield from _costs(trial, attacked, beside, submitted)
        free = Cell(part, "control", trial.attack, defense, trial.clean_seed)
        kept = beside.result_of(free, beside.records[free]) if free in beside.records else None
        like = (part, "control", defense)  # a part has such cells for one of its attacks, which does not change them
        rows = sorted({cell.attack for cell in submitted.records if (cell.part, cell.role, cell.defense) == like})
        values = tuple(v for attack in rows for v in submitted.values(replace(free, attack=attack), "utility"))
        if kept is not None and kept.measure == "utility" and values:
            yield _Outcome(trial, kept, values)
    if made.conclusive == before and not trial.held_out and submitted.values(attacked, "harm_prevented"):
        made.silent.append(heading(part, trial.attack))


def _costs(trial: HeldOutTrial, attacked: Cell, beside: Results, submitted: Results) -> Iterator[_Outcome]:
    """What the defense costs under the attack; a swarm that learns as well as the undefended one is not blamed."""
    none = beside.undefended(attacked, "attack")
    undefended = {} if none is None else {each.measure: each for each in beside.costs_of(attacked, none)}
    for cost in beside.costs_of(attacked, beside.records[attacked]):
        if values := submitted.values(attacked, cost.measure):
            alone = undefended.get(cost.measure)
            wide = MOST_APART if len(values) < FEW_SEEDS else MARGIN  # how far honest seeds lie apart is not known yet
            found = replace(cost, slack=max(cost.slack, wide))
            yield _Outcome(trial, found, values, 1.0 if alone is None else min(1.0, alone.value - alone.slack))


def _submitted_harm(trial: HeldOutTrial, defense: str, submitted: Results) -> tuple[float, ...]:
    """The submitted harm prevented under an attack; for one that is not the suite's, the worst case."""
    attacked = [cell for cell in submitted.records if (cell.role, cell.defense) == ("attack", defense)]
    rows = {(cell.part, cell.attack): submitted.values(cell, "harm_prevented") for cell in attacked}
    known = {row: values for row, values in rows.items() if values}
    return known.get((trial.part.name, trial.attack)) or min(known.values(), key=fmean, default=())


def _hidden(outcome: _Outcome) -> Rerun:
    trial, result = outcome.trial, outcome.found
    low, high = outcome.predicted()
    role = "control" if result.measure == "utility" else "attack"
    return Rerun(
        part=trial.part.name, role=role, attack=trial.attack, seed=None, measure=result.measure, submitted=(low, high),
        found=result.value, equal=None, agrees=result.value >= low, kind="own",
    )  # fmt: skip


def _below(outcomes: Sequence[_Outcome]) -> Iterator[str]:
    """Reasons why a defense does not generalise: a measure's mean over fresh seeds lies below the predicted range.

    Those that are known precisely are also judged alone: the mean uncertainty of all would excuse them, as a seed at
    which the undefended attack does little harm has any.
    """
    rows: dict[tuple[str, str, str, bool], list[_Outcome]] = {}
    for each in outcomes:
        trial = each.trial
        rows.setdefault((trial.part.name, trial.attack, each.found.measure, trial.held_out), []).append(each)
    for (part, attack, measure, held_out), row in rows.items():
        precise = [each for each in row if each.found.slack <= MOST_APART]
        for judged in filter(None, (precise, row)):
            mean = fmean(each.found.value for each in judged)
            low, high = expected(row[0].values, fmean(each.found.slack for each in judged), len(judged))
            low = min(low, fmean(each.enough for each in judged))
            if mean < low:
                against = "in held-out trials" if held_out else f"at fresh seeds, against {heading(part, attack)}"
                yield (
                    f"{against}, its {measure.replace('_', ' ')} is {mean:.3f}, below the range "
                    f"predicted from the submitted seeds, {_between(low, high)}"
                )
                break


def _between(low: float | None, high: float | None) -> str:
    return "which is empty" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _role(cell: Cell) -> str:
    defended = "" if cell.defense == "none" else ", defended"
    return {"attack": "under attack", "placebo": "its placebo", "control": "without an attack"}[cell.role] + defended
