"""Whether a defense's measures over a suite violate a rule, and whether they are worse than a baseline's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thiefbench.suite.analysis.comparison import Comparison, Line, Result, values_over
from thiefbench.suite.analysis.differences import settings_of
from thiefbench.suite.analysis.ranking import worst_of
from thiefbench.suite.analysis.ranking_inputs import doubts, rows, seeds_of
from thiefbench.suite.analysis.statistics import FEW_SEEDS, paired
from thiefbench.suite.store.records import NOTHING, Score
from thiefbench.testing.bounds import MORE_IS_BETTER, OF_LEARNING, MisuseError, Threshold
from thiefbench.testing.numbers import Number, of_summary
from thiefbench.testing.results import TrainedResult

_WITHOUT_ATTACK = ("utility", "false_rejection_rate")

_MAY_DIFFER = ("defense", "threads", "device")


@dataclass(frozen=True)
class ThresholdResult:
    """A measure under one attack or without one: its number, or why there is none, and the result with completions."""

    where: str
    number: Number | None
    problem: str
    result: TrainedResult | None = None


def readings(metric: str, defense: str, title: str, comparisons: Sequence[Comparison]) -> list[ThresholdResult]:
    """A measure of a defense under every attack, and without an attack if that was run and the measure has a meaning.

    Args:
        metric: one of `bounds.METRICS`.
        defense: a canonical spec string.
        title: of the suite.
        comparisons: of the suite.
    """
    if metric == "worst_case":
        return [_worst(defense, title, comparisons)]
    results = []
    for comparison in comparisons:
        lines = [line for line in comparison.lines if line.how == "trained" and line.defense == defense]
        for line in lines:
            if line.role == "attack" or metric in _WITHOUT_ATTACK:
                where = comparison.title if line.role == "attack" else "no attack"
                results.append(_reading(metric, where, comparison, line.name, title))
    return results


def violated(threshold: Threshold, results: Sequence[ThresholdResult]) -> list[ThresholdResult]:
    """The results that make a defense fail: they lie within the bound, or have no number."""
    return [each for each in results if each.number is None or threshold.bound.holds(each.number)]


def _reading(metric: str, where: str, comparison: Comparison, line: str, title: str) -> ThresholdResult:
    trained = comparison.line(line)
    assert trained is not None
    try:
        result = TrainedResult(comparison, trained, title)
        number = result.measure(metric)
    except MisuseError as error:
        return ThresholdResult(where, None, str(error))
    if metric in OF_LEARNING and result.doubt:
        return ThresholdResult(where, None, f"inconclusive: {result.doubt}", result)
    return ThresholdResult(where, number, "", result)


def _worst(defense: str, title: str, comparisons: Sequence[Comparison]) -> ThresholdResult:
    seeds, everywhere = seeds_of(comparisons), "over all attacks"
    if reasons := doubts(comparisons):
        return ThresholdResult(everywhere, None, f"inconclusive: {'; '.join(reasons.values())}")
    row = next(row for row in rows(comparisons) if row.defense == defense)
    worst, problem = worst_of(row, [comparison.title for comparison in comparisons], seeds, comparisons[0].rules)
    if worst is None:
        return ThresholdResult(everywhere, None, problem)
    comparison = next(comparison for comparison in comparisons if comparison.title == worst.attack)
    line = comparison.line(defense)
    result = TrainedResult(comparison, line, title) if line is not None else None
    return ThresholdResult(worst.attack, of_summary(worst.summary), "", result)


def worse(defense: str, ours: Comparison, theirs: Comparison) -> list[str]:
    """The measures in which a defense under attack is worse than in a baseline, beyond the intervals; one line each.

    With `FEW_SEEDS` or more shared seeds, the whole 95 % Student-t interval of the difference, paired by seed, must lie
    on the worse side. With fewer, the intervals over completions must not overlap at any shared seed; measures without
    such an interval (those that compare cells) are left out.

    Raises:
        MisuseError: a cell has no scores, they share no seed, or their cells differ in more than the defense.
    """
    mine, other = ({r.seed: r for r in _line(defense, side).results} for side in (ours, theirs))
    shared = sorted(mine.keys() & other.keys())
    if not shared:
        raise MisuseError(f"{ours.title}: the baseline has other seeds; make it again with the seeds of this suite")
    for seed in shared:
        here, there = ours.record("attack", defense, seed), theirs.record("attack", defense, seed)
        for run_name, result, record in (("this run's", mine[seed], here), ("the baseline's", other[seed], there)):
            if record is None:
                raise MisuseError(f"{ours.title}: {run_name} cell at seed {seed} {result.problem}")
        if here is not None and there is not None and (settings := settings_of(there, here, _MAY_DIFFER)):
            raise MisuseError(
                f"{ours.title}: the baseline's cells differ in more than the defense, so make it again: "
                f"{'; '.join(settings)}"
            )
    differences = []
    for measure, more in MORE_IS_BETTER.items():
        ours_by_seed, theirs_by_seed = ({seed: side[seed] for seed in shared} for side in (mine, other))
        text = _worse_by(measure, ours_by_seed, theirs_by_seed, more)
        if text:
            differences.append(f"{measure}: {text}")
    return differences


def _line(defense: str, comparison: Comparison) -> Line:
    line = comparison.line(defense)
    if line is None:
        raise MisuseError(f"{comparison.title}: there are no cells of {defense}")
    return line


def _worse_by(measure: str, mine: Mapping[int, Result], theirs: Mapping[int, Result], more: bool) -> str:
    """By how much a measure is worse, beyond its intervals; empty if it is not worse, or if that cannot be said."""
    new, old = ({seed: result.scores.get(measure, NOTHING) for seed, result in side.items()} for side in (mine, theirs))
    if any(score.value is None for side in (new, old) for score in side.values()):
        return ""
    if len(new) >= FEW_SEEDS:
        change = paired(values_over(mine, measure), values_over(theirs, measure))
        return f"changed by {change.text(3)}" if (change.high < 0 if more else change.low > 0) else ""
    for seed in new:
        one, other = (new[seed], old[seed]) if more else (old[seed], new[seed])
        if one.high is None or other.low is None or one.high >= other.low:
            return ""
    return ", ".join(f"{_shown(new[seed])} instead of {_shown(old[seed])} at seed {seed}" for seed in new)


def _shown(score: Score) -> str:
    return f"{score.value:z.3f} [{score.low:z.3f}, {score.high:z.3f}]"
