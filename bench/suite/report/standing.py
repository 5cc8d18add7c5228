"""The ranking of a run: its comparisons as the ranking's plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from thiefbench.engine.spec import Role
from thiefbench.suite.ranking import NOT_RUN, Measured, Outcome, Place, Row, Trial, rank
from thiefbench.suite.report.lines import Comparison, Line, Result
from thiefbench.suite.results import NOTHING, Record


def places(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> list[Place]:
    """The places of a run's defenses; none where its suite lacks the placebo or the cells without an attack."""
    suite = run["suite"]
    if not (suite.get("placebo") and suite.get("utility")):
        return []
    seeds = sorted({seed for comparison in comparisons for seed in comparison.seeds})
    trained = [line for c in comparisons for line in c.lines if line.how == "trained" and line.role == "attack"]
    rows = [_row(defense, comparisons, seeds) for defense in dict.fromkeys(line.defense for line in trained)]
    return rank(rows, [_trial(comparison, seeds) for comparison in comparisons], seeds)


def _trial(comparison: Comparison, seeds: Sequence[int]) -> Trial:
    def measured(role: Role) -> dict[int, Measured]:
        """By seed what the undefended cells of a role scored; a seed without a score is left out."""
        found = {seed: _measured(comparison.record(role, "none", seed)) for seed in seeds}
        return {seed: score for seed, score in found.items() if score is not None}

    return Trial(comparison.title, measured("attack"), measured(comparison.reference_role))


def _measured(record: Record | None) -> Measured | None:
    score = record.scores["asr"] if record else NOTHING
    if score.value is None or score.low is None or score.high is None:
        return None
    return Measured(score.value, score.low, score.high)


def _row(defense: str, comparisons: Sequence[Comparison], seeds: Sequence[int]) -> Row:
    attacked = {c.title: _outcomes(_line(c, "attack", defense)) for c in comparisons}
    free = [_outcomes(line) for c in comparisons if (line := _line(c, "control", defense)) is not None]
    return Row(defense, {seed: _together([found.get(seed, NOT_RUN) for found in free]) for seed in seeds}, attacked)


def _line(comparison: Comparison, role: Role, defense: str) -> Line | None:
    lines = comparison.lines
    return next((ln for ln in lines if (ln.how, ln.role, ln.defense) == ("trained", role, defense)), None)


def _outcomes(line: Line | None) -> dict[int, Outcome]:
    return {result.seed: _outcome(result) for result in line.results} if line else {}


def _outcome(result: Result) -> Outcome:
    utility, prevented = (result.scores.get(name, NOTHING).value for name in ("utility", "harm_prevented"))
    return Outcome(utility, prevented, result.problem)


def _together(cells: Sequence[Outcome]) -> Outcome:
    """One seed's cells without an attack, one from each part: their mean, or the one without a score."""
    if not cells:
        return NOT_RUN
    lacking = next((cell for cell in cells if cell.utility is None), None)
    return lacking or Outcome(fmean(cell.utility for cell in cells if cell.utility is not None))
