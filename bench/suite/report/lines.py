"""The words of a comparison: cells, their results, the lines of a results table.

A line is a defense (or the control, or the placebo) with one result per seed. Three kinds exist and are never mixed up:
*trained* cells; defenses *replayed* on the recorded pools of the undefended cell, which have rejection rates but no
model; and `reject_all`, whose model is the start model by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from thiefbench import registry
from thiefbench.engine.spec import Role
from thiefbench.suite.analysis import scoring
from thiefbench.suite.scenario import heading
from thiefbench.suite.store.records import NOTHING, CellDir, Record, Score

How = Literal["trained", "replayed", "unmoved"]


@dataclass(frozen=True)
class Cell:
    """A cell that the run asked for.

    Attributes:
        cell_id, part, role, attack, defense, seed: as the run names them; a suite of one part has no name for it.
        directory: where its files are, if it has any.
        record: what it left; None where it is missing or damaged.
        problem: why it has no score; empty where it has.
    """

    cell_id: str
    part: str
    role: Role
    attack: str
    defense: str
    seed: int
    directory: CellDir
    record: Record | None
    problem: str

    @property
    def title(self) -> str:
        """Of the comparison that it belongs to."""
        return heading(self.part, self.attack)

    @property
    def name(self) -> str:
        """What the table calls it; the defense of an attacked cell goes by its spec string."""
        if self.role == "attack":
            return self.defense
        words = {"control": "no attack", "placebo": "placebo"}[self.role]
        return words if self.defense == "none" else f"{words}, {self.defense}"


@dataclass(frozen=True)
class Result:
    """One line at one seed: scores by name, or the problem that left it without any.

    To a record's scores it adds `headline_asr` (what harm is made of), `gain` (clean reward over the start),
    `harm_prevented` and `utility`.
    """

    seed: int
    cell_id: str
    scores: Mapping[str, Score]
    problem: str = ""


@dataclass(frozen=True)
class Line:
    """One line of the results table.

    Attributes:
        name: a spec string, or words for the control, the placebo and a matched `random`.
        how: where its numbers come from.
        role, defense: of its cells; a line that is not trained belongs to role "attack".
        results: one per seed.
        notes: what a reader must know to read the line rightly.
    """

    name: str
    how: How
    role: Role
    defense: str
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results without a score."""
        return tuple(result for result in self.results if result.problem)

    def scores(self, measure: str) -> list[Score]:
        """A measure at every seed that has a value for it."""
        found = [result.scores.get(measure, NOTHING) for result in self.results]
        return [score for score in found if score.value is not None]


@dataclass(frozen=True)
class Comparison:
    """Everything about one attack in one part of a suite.

    Attributes:
        attack: its spec string.
        cells: all cells that the run asked for, in its order.
        lines: the results table, trained lines first.
        part: the part's name; empty where the suite has only one.
    """

    attack: str
    cells: tuple[Cell, ...]
    lines: tuple[Line, ...] = ()
    part: str = ""

    @property
    def title(self) -> str:
        """What tells it from the run's other comparisons."""
        return heading(self.part, self.attack)

    @property
    def seeds(self) -> list[int]:
        """Every seed, sorted."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def finished(self) -> list[tuple[Cell, Record]]:
        """The cells that have scores."""
        return [(cell, cell.record) for cell in self.cells if cell.record is not None and not cell.problem]

    def find(self, role: Role, defense: str, seed: int) -> Cell | None:
        """The cell of a role and defense at a seed, finished or not."""
        return next((c for c in self.cells if (c.role, c.defense, c.seed) == (role, defense, seed)), None)

    def record(self, role: Role, defense: str, seed: int) -> Record | None:
        """Its record, if it has scores."""
        return next((r for c, r in self.finished if (c.role, c.defense, c.seed) == (role, defense, seed)), None)

    @property
    def reference_role(self) -> Role:
        """What harm is measured against: what the attack names, or the control where there is no placebo."""
        placebo = any(cell.role == "placebo" for cell in self.cells)
        return registry.make("attack", self.attack).reference if placebo else "control"

    def reference(self, seed: int) -> Record | None:
        """The undefended cell that harm is measured against; the control where the placebo failed."""
        return self.record(self.reference_role, "none", seed) or self.record("control", "none", seed)

    def line(self, name: str) -> Line | None:
        """The trained line of this name."""
        return next((line for line in self.lines if line.how == "trained" and line.name == name), None)

    @property
    def defended(self) -> list[Line]:
        """The trained lines of defenses under attack, `none` left out."""
        return [line for line in self.lines if line.how == "trained" and line.role == "attack" and line.name != "none"]

    @property
    def inconclusive(self) -> list[int]:
        """Seeds at which the undefended attack did not beat its reference beyond both intervals."""
        found = []
        for seed in self.seeds:
            none, reference = self.record("attack", "none", seed), self.reference(seed)
            if none is not None and reference is not None:
                low, high = none.scores["asr"].low, reference.scores["asr"].high
                if low is None or high is None or low <= high:
                    found.append(seed)
        return found


def comparative_scores(comparison: Comparison, role: Role, seed: int, record: Record) -> dict[str, Score]:
    """A record's scores with the comparative ones, each left out where a cell it needs has no score."""
    scores = dict(record.scores) | {"headline_asr": bare(scoring.headline_asr(record))}
    reward, start = scores["clean_reward"].value, scores["start_reward"].value
    scores["gain"] = bare(None if reward is None or start is None else reward - start)
    control, reference = comparison.record("control", "none", seed), comparison.reference(seed)
    undefended = comparison.record("attack", "none", seed)
    if control is not None:
        scores["utility"] = bare(scoring.utility(record, control))
    if role == "attack" and undefended is not None and reference is not None:
        scores["harm_prevented"] = bare(scoring.harm_prevented(record, undefended, reference))
    return scores


def label_notes(defense: str) -> tuple[str, ...]:
    """A warning for defenses that see the truth, which only rows of the benchmark itself may."""
    try:
        labelled = registry.make("defense", defense).sees_labels
    except registry.SpecStringError:  # a plugin that was there when the cell ran and is gone
        labelled = False
    return ("sees labels, benchmark only",) if labelled else ()


def bare(value: float | None) -> Score:
    """A score without an interval; NaN is no value."""
    return NOTHING if value is None or value != value else Score(value=value, low=None, high=None, count=0)
