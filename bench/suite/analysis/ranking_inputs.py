"""The ranking of a run: its comparisons as plain rows for the ranking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from thiefbench.engine.spec import Role
from thiefbench.suite.analysis.comparison import (
    Comparison,
    Line,
    Result,
    UndefendedAttack,
    too_little_gain,
    why_inconclusive,
)
from thiefbench.suite.analysis.ranking import NOT_RUN, AttackOutcome, Placement, RankingRow, anchor_of, rank, too_few
from thiefbench.suite.analysis.statistics import linearised
from thiefbench.suite.store.records import NOTHING


def places(run: Mapping[str, Any], comparisons: Sequence[Comparison]) -> list[Placement]:
    """The places of a run's defenses; empty if its suite ranks nothing (`why_no_ranking`)."""
    if why_no_ranking(run["suite"], comparisons):
        return []
    return rank(rows(comparisons), undefended(comparisons), seeds_of(comparisons), comparisons[0].rules)


def why_no_ranking(suite: Mapping[str, Any], comparisons: Sequence[Comparison]) -> str:
    """Why a suite ranks nothing, whatever its results, in one clause; empty if it ranks."""
    clauses = [clause for clause in (lacking(suite), too_few(seeds_of(comparisons))) if clause]
    return f"the suite has {'; it has '.join(clauses)}" if clauses else ""


def lacking(suite: Mapping[str, Any]) -> str:
    """Which cells a suite lacks for a ranking, in one clause; empty if it lacks none."""
    wanted = {
        "placebo": "no placebo to beat",
        "utility": "no cells with a defense but without an attack, for its utility",
    }
    return " and ".join(words for name, words in wanted.items() if not suite.get(name))


def seeds_of(comparisons: Sequence[Comparison]) -> list[int]:
    """Every seed of a run, sorted."""
    return sorted({seed for comparison in comparisons for seed in comparison.seeds})


def rows(comparisons: Sequence[Comparison]) -> list[RankingRow]:
    """Rows for the ranking: trained defenses and anchors, and `reject_all` with the start model."""
    lines = [line for c in comparisons for line in c.lines if line.role == "attack"]
    named = [line.defense for line in lines if line.how == "trained"]
    named += [line.defense for line in lines if line.how == "unmoved" and anchor_of(line.defense)]
    return [_row(defense, comparisons) for defense in dict.fromkeys(named)]


def undefended(comparisons: Sequence[Comparison]) -> list[UndefendedAttack]:
    """Every attack without a defense, at every seed of the run."""
    seeds = seeds_of(comparisons)
    return [comparison.undefended(seeds) for comparison in comparisons]


def doubts(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Why attacks are inconclusive, by the comparison's title; attacks that work are left out."""
    seeds = seeds_of(comparisons)
    reasons = {attack.name: why_inconclusive(attack, seeds) for attack in undefended(comparisons)}
    return {name: reason for name, reason in reasons.items() if reason}


def spread_over_seeds(comparisons: Sequence[Comparison]) -> tuple[float, int] | None:
    """The standard deviation over seeds of harm prevented by one defense under one attack, pooled over all of these.

    Returns:
        The standard deviation and its degrees of freedom; None if no defense, except anchors, has two seeds of an
        attack.
    """
    squares, freedom = 0.0, 0
    for comparison in comparisons:
        for line in comparison.defended:
            cells = {seed: cell for seed, cell in _outcomes(line).items() if cell.harm_prevented is not None}
            if len(cells) < 2 or anchor_of(line.defense):
                continue
            points = {seed: cell.harm_prevented or 0.0 for seed, cell in cells.items()}
            shares = {seed: cell.undefended_share for seed, cell in cells.items()}
            values = list(linearised(points, shares).values())
            squares += sum((value - fmean(values)) ** 2 for value in values)
            freedom += len(values) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else None


def _row(defense: str, comparisons: Sequence[Comparison]) -> RankingRow:
    attacked = {c.title: _outcomes(line_of(c, "attack", defense)) for c in comparisons}
    unattacked = [_unattacked(c, line) for c in comparisons if (line := line_of(c, "control", defense)) is not None]
    seeds = seeds_of(comparisons)
    return RankingRow(
        defense, {seed: _together([outcomes.get(seed, NOT_RUN) for outcomes in unattacked]) for seed in seeds}, attacked
    )


def _unattacked(comparison: Comparison, line: Line) -> dict[int, AttackOutcome]:
    """A line without an attack; where the control gains too little for a share, that is the problem."""
    outcomes = _outcomes(line)
    for seed, outcome in outcomes.items():
        if outcome.utility is None and not outcome.problem:
            reason = too_little_gain(comparison.record("control", "none", seed))
            outcomes[seed] = replace(outcome, problem=reason)
    return outcomes


def line_of(comparison: Comparison, role: Role, defense: str) -> Line | None:
    """A defense's trained line of a role, or the start model, which is the same in every role."""
    lines = [line for line in comparison.lines if line.defense == defense]
    trained = (line for line in lines if line.how == "trained" and line.role == role)
    return next(trained, None) or next((line for line in lines if line.how == "unmoved"), None)


def _outcomes(line: Line | None) -> dict[int, AttackOutcome]:
    return {result.seed: _outcome(result) for result in line.results} if line else {}


def _outcome(result: Result) -> AttackOutcome:
    names = ("utility", "harm_prevented", "undefended_share")
    utility, prevented, share = (result.scores.get(name, NOTHING).value for name in names)
    return AttackOutcome(utility, prevented, result.problem, 1.0 if share is None else share)


def _together(cells: Sequence[AttackOutcome]) -> AttackOutcome:
    """One seed's cells without an attack, one from each part: their mean, or the one without a score."""
    if not cells:
        return NOT_RUN
    lacking = next((cell for cell in cells if cell.utility is None), None)
    return lacking or AttackOutcome(fmean(cell.utility for cell in cells if cell.utility is not None))
