"""How two runs, or two defenses of one run, differ: paired differences from plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from thiefbench.suite.analysis import drift
from thiefbench.suite.analysis.comparison import Comparison, Line, Result, values_over
from thiefbench.suite.analysis.measures import COLUMNS, REJECTED, STOPPED, Column
from thiefbench.suite.analysis.ranking_inputs import seeds_of
from thiefbench.suite.analysis.statistics import Summary, paired
from thiefbench.suite.store import arithmetic
from thiefbench.suite.store.records import NOTHING, Record

_COMPARED = (
    "asr",
    "harm_prevented",
    "utility",
    *STOPPED,
    *REJECTED,
    "vector_clip_rate",
    "caught_round",
    "mean_length",
    "drift",
    "divergence",
)
MEASURES: tuple[Column, ...] = tuple(column for column in COLUMNS if column.measure in _COMPARED)

State = Literal["identical", "contradictory", "other cells"]


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs (or defenses of a run) that are compared.

    Attributes:
        name: "A" or "B".
        where: its store.
        title, fingerprint, modified: those of its suite.
        comparisons: those of its last run, with trained lines.
        defense: the compared defense, if two defenses of a run are compared; empty if two runs are.
    """

    name: str
    where: str
    title: str
    fingerprint: str
    modified: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    defense: str = ""


@dataclass(frozen=True)
class Difference:
    """One measure on both sides: means over the seeds that both have, and B - A paired by seed."""

    column: Column
    one: float
    other: float
    change: Summary


@dataclass(frozen=True)
class LinePair:
    """A line of a comparison that both sides have.

    Attributes:
        title: of the comparison.
        name: of the line.
        state: "identical" if all shared seeds have the same cells with the same scores; "contradictory" if a cell is
            the same but its scores differ.
        differences: by measure; measures without a value on both sides are left out.
        contradictions: differing scores of the same cell.
        missing: seeds that one side lacks, or that have no score there.
        settings: other differences between the two, such as the number of rounds.
        attacked: whether it is a defense's line under attack.
    """

    title: str
    name: str
    state: State
    differences: tuple[Difference, ...]
    contradictions: tuple[str, ...]
    missing: tuple[str, ...]
    settings: tuple[str, ...]
    attacked: bool = True


@dataclass(frozen=True)
class StoreComparison:
    """The comparison of two sides.

    Attributes:
        one, other: A and B.
        pairs: lines that both sides have, by comparison, in the order of A.
        alone: what only one side has, as text.
    """

    one: ComparedRun
    other: ComparedRun
    pairs: tuple[LinePair, ...]
    alone: tuple[str, ...]

    @property
    def titles(self) -> list[str]:
        """The comparisons that both have."""
        return list(dict.fromkeys(pair.title for pair in self.pairs))

    def of(self, title: str) -> list[LinePair]:
        """The pairs of a comparison."""
        return [pair for pair in self.pairs if pair.title == title]

    @property
    def contradictions(self) -> list[str]:
        """Every one, with its comparison and line."""
        return [f"{p.title}, {p.name}, {text}" for p in self.pairs for text in p.contradictions]


@dataclass(frozen=True)
class _SideLine:
    """A line of a side, with the comparison that it is part of."""

    side: ComparedRun
    comparison: Comparison
    line: Line

    def record(self, seed: int) -> Record | None:
        return self.comparison.record(self.line.role, self.line.defense, seed)


def versus(one: ComparedRun, other: ComparedRun) -> StoreComparison:
    """Compare everything that both sides have, and list what only one has."""
    first, second = ({comparison.title: comparison for comparison in side.comparisons} for side in (one, other))
    seeds = [{f"seed {seed}": 0 for seed in seeds_of(side.comparisons)} for side in (one, other)]
    alone = [*_only(one, seeds[0], seeds[1]), *_only(other, seeds[1], seeds[0])]
    alone += [*_only(one, first, second), *_only(other, second, first)]
    pairs = []
    for title in (title for title in first if title in second):
        here, there = (_lines(side, both[title]) for side, both in ((one, first), (other, second)))
        alone += [*_only(one, here, there, title), *_only(other, there, here, title)]
        pairs += [
            _pair(title, name, _SideLine(one, first[title], here[name]), _SideLine(other, second[title], there[name]))
            for name in here
            if name in there
        ]
    return StoreComparison(one, other, tuple(pairs), tuple(alone))


def _only(
    side: ComparedRun, names: Mapping[str, object], other_names: Mapping[str, object], within: str = ""
) -> list[str]:
    """What a side has and the other lacks, in one sentence, if anything."""
    lacking = [name for name in names if name not in other_names]
    where = f"{within}: " if within else ""
    return [f"{where}only {side.name} has: {'; '.join(lacking)}"] if lacking else []


def _lines(side: ComparedRun, comparison: Comparison) -> dict[str, Line]:
    """The lines that are compared; of two defenses by what happens in them, as their names differ."""
    if not side.defense:
        return {line.name: line for line in comparison.lines}
    words = {"attack": "attacked", "control": "no attack", "placebo": "placebo"}
    return {words[line.role]: line for line in comparison.lines if line.defense == side.defense}


def _pair(title: str, name: str, here: _SideLine, there: _SideLine) -> LinePair:
    first_results, second_results = (
        {result.seed: result for result in placed.line.results} for placed in (here, there)
    )
    both = [
        seed
        for seed in sorted(first_results)
        if seed in second_results and not (first_results[seed].problem or second_results[seed].problem)
    ]
    cells = [
        (seed, one, other)
        for seed in both
        if (one := here.record(seed)) is not None and (other := there.record(seed)) is not None
    ]
    same = [(seed, one, other) for seed, one, other in cells if one.cell_id == other.cell_id]
    contradictions = [text for seed, one, other in same if (text := _contradiction(seed, one, other))]
    state: State = (
        "contradictory" if contradictions else "identical" if same and len(same) == len(both) else "other cells"
    )
    ignored = ("defense",) if here.side.defense else ()
    settings = dict.fromkeys(text for _, one, other in cells for text in settings_of(one, other, ignored))
    return LinePair(
        title,
        name,
        state,
        tuple(
            each
            for each in _differences([{seed: side[seed] for seed in both} for side in (first_results, second_results)])
            if each.column.measure not in drift.MEASURES or here.line.is_control == there.line.is_control
        ),
        tuple(contradictions),
        (*_missing(here, first_results, there, second_results), *_missing(there, second_results, here, first_results)),
        tuple(settings),
        here.line.role == "attack" and (bool(here.side.defense) or here.line.defense != "none"),
    )


def _differences(results: Sequence[Mapping[int, Result]]) -> Iterator[Difference]:
    for column in MEASURES:
        one, other = (values_over(side, column.measure) for side in results)
        shared = one.keys() & other.keys()
        if shared:
            first_mean, second_mean = (
                sum(side[seed] for seed in sorted(shared)) / len(shared) for side in (one, other)
            )
            yield Difference(column, first_mean, second_mean, paired(other, one))


def _contradiction(seed: int, one: Record, other: Record) -> str:
    """Which scores of the same cell differ; empty if none does."""
    names = sorted(one.scores.keys() | other.scores.keys())
    pairs = [(name, one.scores.get(name, NOTHING), other.scores.get(name, NOTHING)) for name in names]
    differing = [
        f"{name} {first.value} and {second.value}" if first.value != second.value else f"the interval of {name}"
        for name, first, second in pairs
        if first != second
    ]
    return f"seed {seed}, cell {one.cell_id}: {', '.join(differing)}" if differing else ""


def _missing(
    placed: _SideLine, results: Mapping[int, Result], beside: _SideLine, other_results: Mapping[int, Result]
) -> Iterator[str]:
    """Cells of a line that have no score on one side; seeds that a whole run lacks are said elsewhere."""
    for seed, result in sorted(results.items()):
        if result.problem:
            yield f"{placed.side.name}, seed {seed}: {result.problem}"
        elif seed not in other_results and seed in beside.comparison.seeds:
            yield f"seed {seed} is in {placed.side.name} alone"


def settings_of(one: Record, other: Record, ignored: Sequence[str] = ()) -> list[str]:
    """Differences between two cells' parameters and identity (except the seed), and in what computed them.

    Args:
        one, other: cells of one seed.
        ignored: parameters that are meant to differ; what was hashed of them is left out as well.
    """
    first, second = (_flat({**record.identity, "cell": record.parameters}) for record in (one, other))
    differing = []
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) == second.get(name) or name.rpartition(".")[2] in (*ignored, "seed"):
            continue
        if ignored and name.startswith("judge"):
            continue
        hashed = not name.startswith("cell.") and any(isinstance(v, str) for v in (first.get(name), second.get(name)))
        values = "" if hashed else f" {first.get(name)} and {second.get(name)}"
        differing.append(f"{name.removeprefix('cell.')}{values}")
    computed = arithmetic.differing((one, other))
    return [*differing, *(f"{name} {' and '.join(values)}" for name, values in computed.items())]


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
