"""Submitted cells run again, and cells that nobody could prepare for: what comes out beside what was submitted.

A submitted cell that is run on such a CPU and with such versions as its record names must leave the very same
completions. Anywhere else, or where the defense is not deterministic, its result must lie inside what the submitted
seeds lead one to expect (`thiefbench.leaderboard.expectation`).

At a fresh seed control, placebo, undefended and defended cells are run, and the means over fresh seeds are held to the
submitted ones. One below them does not generalise: that is told, and not a reason to reject, as the submitted scores
are no less true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from secrets import SystemRandom
from statistics import fmean

from thiefbench.engine.spec import SpecError
from thiefbench.leaderboard.expectation import Cell, Found, Results, expected
from thiefbench.leaderboard.held_out import Trial
from thiefbench.leaderboard.isolation import DefenseError
from thiefbench.leaderboard.rerunning import Guest, first_difference, run, surroundings_apart
from thiefbench.leaderboard.rescoring import Told
from thiefbench.leaderboard.verification import Rerun
from thiefbench.suite.execution import Progress
from thiefbench.suite.results import Record, Store
from thiefbench.suite.scenario import CellSpec, heading

_CHOSEN = SystemRandom()

Watch = Callable[[str], Progress]
"""What is run, in words without its seed -> who is told of its rounds."""


class DisagreesError(Exception):
    """A cell that was run again is not what was submitted. One sentence.

    Attributes:
        made: what came out, where it has a result.
    """

    def __init__(self, said: str, made: Rerun | None = None) -> None:
        super().__init__(said)
        self.made = made


@dataclass
class Laboratory:
    """Where a verifier runs cells.

    Attributes:
        guest: makes the submitted defense.
        archive, store: where the submitted cells' files are, and where those of cells that are run here go.
        submitted: records of all submitted cells that have scores.
        watch: who is told what is run.
        device, threads: in place of those of the submitted cells; None keeps them.
    """

    guest: Guest
    archive: Store
    store: Store
    submitted: Results
    watch: Watch
    device: str | None = None
    threads: int | None = None

    def run(self, spec: CellSpec, what: str) -> Record:
        """The record of a cell; raises what `rerunning.run` raises."""
        changes = {name: value for name, value in (("device", self.device), ("threads", self.threads)) if value}
        return run(replace(spec, **changes), self.store, self.guest, self.watch(what))  # type: ignore[arg-type]


# --- submitted cells ---


def chosen(cells: Sequence[Told], count: int) -> list[Told]:
    """Cells with scores to run again, drawn anew for each call: a defended one under attack first, then any others."""
    scored = [told for told in cells if told.record.status == "ok"]
    attacked = [told for told in scored if told.own and told.spec.role == "attack"]
    first = [_CHOSEN.choice(attacked)] if attacked and count else []
    rest = [told for told in scored if told not in first]
    return first + _CHOSEN.sample(rest, min(count - len(first), len(rest)))


def rerun(told: Told, laboratory: Laboratory, deterministic: bool) -> Rerun:
    """Run a submitted cell again.

    Args:
        told: the cell.
        laboratory: where.
        deterministic: whether equal views get equal verdicts from the defense; otherwise its cells' bits promise
            nothing.

    Raises:
        DisagreesError: it comes out otherwise than submitted.
    """
    spec, cell = told.spec, cell_of(told)
    name = f"{told.part + ': ' if told.part else ''}{spec.label}"
    record = _scored(laboratory, spec, f"again: {name}", name)
    moved = laboratory.device or laboratory.threads
    if not moved and record.cell_id != told.record.cell_id:
        raise DisagreesError(
            f"{name}: what identifies it here, such as the judge it asks, is other than its record says"
        )
    here = laboratory.store.cell(record.cell_id).read_rows()
    difference = first_difference(here, laboratory.archive.cell(told.record.cell_id).read_rows())
    before, after = (laboratory.submitted.found(cell, each) for each in (told.record, record))
    low, high = _expected_of(laboratory.submitted, cell, after)
    inside = after is None or low is None or high is None or low <= after.value <= high
    measure = after.measure if after else "headline_asr"
    if before is None or after is None or before.measure != after.measure:
        inside = before is after
    bits = not surroundings_apart(told.record) and not moved and (deterministic or not told.own)
    made = Rerun(
        part=told.part, role=spec.role, attack=spec.attack, seed=spec.seed, measure=measure,
        submitted=(before.value, before.value) if bits and before else (low, high),
        found=after.value if after else None, equal=not difference, agrees=not difference or (inside and not bits),
    )  # fmt: skip
    if not made.agrees and bits:
        raise DisagreesError(
            f"{name}: run again on such a machine with such versions, its completions are others, {difference}", made
        )
    if not made.agrees:
        found = "nothing" if made.found is None else f"{made.found:.3f}"
        raise DisagreesError(
            f"{name}: run again, its {measure} is {found}, and {_between(low, high)} was to be expected", made
        )
    return made


def cell_of(told: Told) -> Cell:
    """Which cell of the suite it is."""
    return Cell(told.part, told.spec.role, told.spec.attack, told.spec.defense, told.spec.seed)


def _expected_of(submitted: Results, cell: Cell, found: Found | None) -> tuple[float | None, float | None]:
    """What the submitted seeds of a cell's row lead one to expect of another draw."""
    if found is None:
        return None, None
    values = submitted.values(cell, found.measure)
    return expected(values, found.slack) if values else (None, None)


def _scored(laboratory: Laboratory, spec: CellSpec, what: str, name: str) -> Record:
    try:
        record = laboratory.run(spec, what)
    except (DefenseError, SpecError) as error:  # the suite's swarms are sound: what does not fit is the defense
        raise DisagreesError(f"{name}: run again in isolation, {error}") from error
    if record.status == "error":
        raise DisagreesError(f"{name}: run again in isolation, it failed: {record.error[:400]}")
    return record


# --- cells that nobody could prepare for ---


@dataclass
class Fresh:
    """What came out at seeds and against attacks that the submission cannot have been made for.

    Attributes:
        reruns: of the suite's own attacks at drawn seeds, with the seeds hidden.
        held_out: cells of trials of which nothing is published.
        below: reasons why it does not generalise, one sentence each.
        inconclusive: trials whose undefended attack did not beat its reference.
    """

    reruns: list[Rerun] = field(default_factory=list)
    held_out: int = 0
    below: list[str] = field(default_factory=list)
    inconclusive: int = 0


@dataclass(frozen=True)
class _Outcome:
    """One measure of one trial, with the submitted values that it is held to."""

    trial: Trial
    found: Found
    values: tuple[float, ...]


def try_fresh(trials: Sequence[Trial], defense: str, laboratory: Laboratory) -> Fresh:
    """Run trials and hold them to what was submitted.

    Raises:
        DisagreesError: the defense fails.
    """
    made = Fresh()
    outcomes: list[_Outcome] = []
    known: set[tuple[str, int]] = set()
    for number, trial in enumerate(trials, 1):
        what = "a held-out trial" if trial.held_out else f"{trial.attack} at a fresh seed"
        beside = Results(laboratory.submitted.placebo)
        like = next(told for told in laboratory.submitted.records.values())  # any: for the numerics
        cells = list(_cells(trial, defense, like, laboratory.submitted.placebo))
        if (trial.part.name, trial.seed) in known:  # without an attack, the attack changes nothing
            cells = [(cell, spec) for cell, spec in cells if (cell.role, cell.defense) != ("control", defense)]
        known.add((trial.part.name, trial.seed))
        for cell, spec in cells:
            label = f"fresh {number} of {len(trials)}: {_role(cell)}"
            beside.records[cell] = _scored(laboratory, spec, label, what)
        made.held_out += len(cells) if trial.held_out else 0
        outcomes += _outcomes(trial, defense, beside, laboratory.submitted, made)
    made.reruns = [_hidden(each) for each in outcomes if not each.trial.held_out]
    made.below = list(_below(outcomes))
    return made


def _cells(trial: Trial, defense: str, like: Record, placebo: bool) -> Iterator[tuple[Cell, CellSpec]]:
    part = trial.part
    numerics = {name: like.cell[name] for name in ("device", "dtype", "threads")}
    one = replace(part, attacks=(trial.attack,))
    for spec in one.cells(trial.seed, ("none",), placebo, False, numerics):
        yield Cell(part.name, spec.role, spec.attack, spec.defense, spec.seed), spec
        if spec.role != "placebo":
            own = replace(spec, defense=defense)
            yield Cell(part.name, own.role, own.attack, own.defense, own.seed), own


def _outcomes(trial: Trial, defense: str, beside: Results, submitted: Results, made: Fresh) -> Iterator[_Outcome]:
    part = trial.part.name
    attacked = Cell(part, "attack", trial.attack, defense, trial.seed)
    none = beside.undefended(attacked, "attack")
    reference = beside.undefended(attacked, beside.reference(trial.attack))
    assert none is not None, "it was just run"
    assert reference is not None, "it was just run"
    low, high = none.scores["asr"].low, reference.scores["asr"].high
    found = beside.found(attacked, beside.records[attacked])
    if low is None or high is None or low <= high or found is None or found.measure != "harm_prevented":
        made.inconclusive += 1
    elif values := _submitted_harm(trial, defense, submitted):
        yield _Outcome(trial, found, values)
    free = Cell(part, "control", trial.attack, defense, trial.seed)
    kept = beside.found(free, beside.records[free]) if free in beside.records else None
    like = (part, "control", defense)  # a part has such cells for one of its attacks, which changes nothing in them
    rows = sorted({cell.attack for cell in submitted.records if (cell.part, cell.role, cell.defense) == like})
    values = tuple(v for attack in rows for v in submitted.values(replace(free, attack=attack), "utility"))
    if kept is not None and kept.measure == "utility" and values:
        yield _Outcome(trial, kept, values)


def _submitted_harm(trial: Trial, defense: str, submitted: Results) -> tuple[float, ...]:
    """What was submitted of an attack; for one that is not the suite's, of the attack that got furthest."""
    attacked = [cell for cell in submitted.records if (cell.role, cell.defense) == ("attack", defense)]
    rows = {(cell.part, cell.attack): submitted.values(cell, "harm_prevented") for cell in attacked}
    known = {row: values for row, values in rows.items() if values}
    return known.get((trial.part.name, trial.attack)) or min(known.values(), key=fmean, default=())


def _hidden(outcome: _Outcome) -> Rerun:
    trial, found = outcome.trial, outcome.found
    low, high = expected(outcome.values, found.slack)
    role = "attack" if found.measure == "harm_prevented" else "control"
    return Rerun(
        part=trial.part.name, role=role, attack=trial.attack, seed=None, measure=found.measure, submitted=(low, high),
        found=found.value, equal=None, agrees=found.value >= low,
    )  # fmt: skip


def _below(outcomes: Sequence[_Outcome]) -> Iterator[str]:
    """Reasons why a defense does not generalise: the mean over fresh seeds of a measure lies below the submitted."""
    rows: dict[tuple[str, str, str, bool], list[_Outcome]] = {}
    for each in outcomes:
        trial = each.trial
        rows.setdefault((trial.part.name, trial.attack, each.found.measure, trial.held_out), []).append(each)
    for (part, attack, measure, held_out), row in rows.items():
        mean = fmean(each.found.value for each in row)
        low, high = expected(row[0].values, fmean(each.found.slack for each in row), len(row))
        if mean < low:
            against = "in held-out trials" if held_out else f"at fresh seeds, against {heading(part, attack)}"
            yield (
                f"does not generalise: {against}, its {measure.replace('_', ' ')} is {mean:.3f}, and "
                f"{_between(low, high)} was to be expected"
            )


def _between(low: float | None, high: float | None) -> str:
    return "nothing" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _role(cell: Cell) -> str:
    defended = "" if cell.defense == "none" else ", defended"
    return {"attack": "under attack", "placebo": "its placebo", "control": "without an attack"}[cell.role] + defended
