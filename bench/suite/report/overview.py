"""The suite at a glance: every defense against every attack, as plain data for the page, the plot and the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from thiefbench.suite.analysis.comparison import Comparison, Line
from thiefbench.suite.analysis.lost_learning import LostLearning, lost_learning
from thiefbench.suite.analysis.measures import REJECTED, first_of
from thiefbench.suite.analysis.ranking import (
    NOT_RUN,
    AttackOutcome,
    Placement,
    RankingRow,
    RankingStatus,
    placed,
    prevented_over,
    unplaced_because,
    worst_of,
)
from thiefbench.suite.analysis.ranking_inputs import doubts, line_of, places, rows, seeds_of, why_no_ranking
from thiefbench.suite.analysis.statistics import Summary, summarize
from thiefbench.suite.report.timings import Cost, cost
from thiefbench.suite.store.records import CHOSEN, NOTHING
from thiefbench.wording import by_reason, seeds_in_words


@dataclass(frozen=True)
class Field:
    """One defense against one attack.

    Attributes:
        prevented: harm prevented over seeds; None where a seed of the suite has none.
        undefended, defended: mean over seeds of what harm is made of (`comparison.headline_asr`); None where
            `prevented` is.
        chosen: what an attack that chooses in a rehearsal played against it, over its seeds.
        problem: why there is no number; empty where there is one.
    """

    prevented: Summary | None
    undefended: float | None = None
    defended: float | None = None
    chosen: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class HighestRate:
    """The largest value of a measure among cells; `where` is a comparison's title, or says that there is no attack."""

    value: float
    where: str
    seed: int


@dataclass(frozen=True)
class SuiteRow:
    """A defense in the suite's table.

    Attributes:
        place: where it stands.
        tied: it shares its number.
        utility: without an attack, over seeds; None where a seed of the suite has none.
        no_utility: why; empty where there is one, or where the suite has no such cells.
        false_rejection: the largest of all its cells.
        drift: the largest of its cells under attack; None where it was not measured.
        cost: under the attack where it slows rounds down most, of those where the inspection explains it if there are
            any; None where no cell was timed beside its undefended one.
        fields: against every attack, by the comparison's title.
        lost: under which attacks its models learn less than undefended ones.
        untrained: the start model, by construction.
    """

    place: Placement
    tied: bool
    utility: Summary | None
    no_utility: str
    false_rejection: HighestRate | None
    drift: HighestRate | None
    cost: Cost | None
    fields: Mapping[str, Field]
    lost: tuple[LostLearning, ...]
    untrained: bool

    @property
    def defense(self) -> str:
        """Its spec string."""
        return self.place.defense

    @property
    def problems(self) -> list[str]:
        """Why numbers of it are missing."""
        titles: dict[str, list[str]] = {}
        for title, field in self.fields.items():
            titles.setdefault(field.problem, []).append(title)
        alike = "every attack" if len(self.fields) > 1 else ""
        missing = [
            f"{alike if alike and len(named) == len(self.fields) else ', '.join(named)}: {problem}"
            for problem, named in titles.items()
            if problem
        ]
        return [*missing, *([f"no utility: {self.no_utility}"] if self.no_utility else [])]

    @property
    def reason(self) -> str:
        """Why it holds no place, where its missing numbers do not say it already."""
        named = self.place.status == "unranked" and (self.place.worst is not None or not self.problems)
        return self.place.reason if named and not self.no_utility else ""


@dataclass(frozen=True)
class SuiteTable:
    """Every defense against every attack.

    Attributes:
        comparisons: its columns.
        rows: best first, then anchors, then what is not ranked.
        seeds: of the suite.
        doubts: by the comparison's title, why it is inconclusive.
        why_no_places: why there are no places at all; empty where there are.
    """

    comparisons: tuple[Comparison, ...]
    rows: tuple[SuiteRow, ...]
    seeds: tuple[int, ...]
    doubts: Mapping[str, str]
    why_no_places: str


NO_BASELINE: Final = (
    "this store has no undefended cells, which harm is measured against; if a submission filled it, they are published "
    'with the suite, and its row is on the page that "thiefbench leaderboard build" writes'
)
"""Why a store without undefended cells, such as one that a submission filled, has no numbers to rank by."""


def suite_table(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> SuiteTable:
    """The table of a run; it stands also where nothing can be ranked, and then says why."""
    seeds = seeds_of(comparisons)
    if all(comparison.line("none") is None for comparison in comparisons):
        why, reasons = NO_BASELINE, dict[str, str]()
    else:
        reasons = doubts(comparisons)
        why = why_no_ranking(run["suite"], comparisons) or "; ".join(reasons.values())
    by_defense = {row.defense: row for row in rows(comparisons)}
    placements = places(run, comparisons) or _unplaced(list(by_defense.values()), comparisons, why, reasons)
    has_utility = bool(run["suite"].get("utility"))
    table_rows = [
        suite_row(place, tied(place, placements), by_defense[place.defense], comparisons, has_utility)
        for place in placements
    ]
    return SuiteTable(tuple(comparisons), tuple(table_rows), tuple(seeds), reasons, why)


def _unplaced(
    rows: Sequence[RankingRow], comparisons: Sequence[Comparison], why: str, reasons: Mapping[str, str]
) -> list[Placement]:
    """Rows without a ranking: by name, then anchors."""
    seeds = seeds_of(comparisons)
    attacks = [comparison.title for comparison in comparisons]
    because = unplaced_because(why, "; ".join(reasons.values()))

    def unplaced(row: RankingRow) -> Placement:
        worst = None if reasons else worst_of(row, attacks, seeds, comparisons[0].rules)[0]
        status: RankingStatus = "anchor" if row.anchor else "unplaced"
        return Placement(row.defense, status, None, worst, "" if row.anchor else because)

    return placed([(row, unplaced(row)) for row in rows], attacks, seeds)


def tied(place: Placement, among: Sequence[Placement]) -> bool:
    """Whether a place's number is shared."""
    return place.number is not None and [other.number for other in among].count(place.number) > 1


def suite_row(
    place: Placement, tied: bool, row: RankingRow, comparisons: Sequence[Comparison], has_utility: bool
) -> SuiteRow:
    """A defense's numbers beside its place; `has_utility` is whether the suite has cells without an attack."""
    seeds = seeds_of(comparisons)
    free = {seed: row.unattacked.get(seed, NOT_RUN) for seed in seeds}
    utility = {seed: cell.utility for seed, cell in free.items() if cell.utility is not None}
    lost = by_reason({seed: free[seed].problem or "it has none" for seed in seeds if seed not in utility})
    lines = {c.title: line for c in comparisons if (line := line_of(c, "attack", row.defense)) is not None}
    timed = [each for c in comparisons if (each := cost(c, row.defense)).ratio is not None]
    return SuiteRow(
        place=place,
        tied=tied,
        utility=None if lost or not has_utility else summarize(utility, 1 - comparisons[0].rules.margin),
        no_utility=lost if has_utility else "",
        false_rejection=_false_rejection(row.defense, comparisons),
        drift=_drift(row.defense, comparisons),
        cost=min(timed, key=_slowest, default=None),
        fields={c.title: _field(c, lines.get(c.title), row.attacked.get(c.title, {}), seeds) for c in comparisons},
        lost=tuple(lost_learning(comparisons, row.defense)),
        untrained=any(line.how == "unmoved" for line in lines.values()),
    )


def _slowest(cost: Cost) -> tuple[bool, float, str]:
    """Sorts by how much longer rounds are, those first where the inspection explains it."""
    return cost.slowdown is None, -cost.ratio.mean if cost.ratio else 0.0, cost.comparison


def _field(
    comparison: Comparison, line: Line | None, cells: Mapping[int, AttackOutcome], seeds: Sequence[int]
) -> Field:
    outcomes = {seed: cells.get(seed, NOT_RUN) for seed in seeds}
    lost = by_reason(
        {seed: _missing(comparison, seed, cell) for seed, cell in outcomes.items() if cell.harm_prevented is None}
    )
    none = comparison.line("none")
    if lost or line is None or none is None:
        return Field(None, problem=lost)
    prevented = prevented_over(outcomes, comparison.rules)
    return Field(prevented, _headline(none, seeds), _headline(line, seeds), chosen(comparison, line.defense, seeds))


def chosen(comparison: Comparison, defense: str, seeds: Sequence[int]) -> tuple[str, ...]:
    """What an attack that chooses in a rehearsal played against a defense, without repetition; most attacks do not.

    Where the records of some seeds do not say it, as older ones do not, the others' seeds are named.
    """
    records = {seed: comparison.record("attack", defense, seed) for seed in seeds}
    played = {seed: record.payload.get(CHOSEN, "") for seed, record in records.items() if record is not None}
    known = {seed: each for seed, each in played.items() if each}
    members = tuple(dict.fromkeys(known.values()))
    if len(known) < len(played):
        at = {each: [seed for seed in known if known[seed] == each] for each in members}
        return tuple(f"{each} ({seeds_in_words(at[each])})" for each in members)
    return members


def _missing(comparison: Comparison, seed: int, cell: AttackOutcome) -> str:
    """Why a cell has no harm prevented."""
    if cell.problem:
        return cell.problem
    if comparison.record("attack", "none", seed) is None:
        return "its undefended cell has no score"
    if comparison.reference(seed) is None:
        return "what its harm is measured against has no score"
    return f"undefended, its mean harm is below {comparison.rules.least_harm:g}, too little to take a share of"


def _headline(line: Line, seeds: Sequence[int]) -> float | None:
    scored = {result.seed: result.scores.get("headline_asr", NOTHING).value for result in line.results}
    values = [value for seed in seeds if (value := scored.get(seed)) is not None]
    return fmean(values) if values else None


def _false_rejection(defense: str, comparisons: Sequence[Comparison]) -> HighestRate | None:
    rates = []
    for comparison in comparisons:
        for line in (line_of(comparison, "attack", defense), line_of(comparison, "control", defense)):
            for result in line.results if line else ():
                score = first_of(REJECTED, result.scores)
                if score is not None and (value := score.value) is not None:
                    free = f"{comparison.part}: no attack" if comparison.part else "no attack"
                    where = comparison.title if line and line.role == "attack" else free
                    rates.append(HighestRate(value, where, result.seed))
    return min(rates, key=lambda each: (-each.value, each.where, each.seed), default=None)


def _drift(defense: str, comparisons: Sequence[Comparison]) -> HighestRate | None:
    rates = [
        HighestRate(value, comparison.title, result.seed)
        for comparison in comparisons
        if (line := line_of(comparison, "attack", defense)) is not None
        for result in line.results
        if (value := result.scores.get("drift", NOTHING).value) is not None
    ]
    return min(rates, key=lambda each: (-each.value, each.where, each.seed), default=None)
