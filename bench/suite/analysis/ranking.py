"""The ranking of defenses: plain data in, places out.

Defenses are ranked by harm prevented in the worst case over attacks, in three steps:

1. **The attacks must work.** Where one does not beat its placebo undefended (see `comparison` for the rule), a
   defense that "stops" it has shown nothing. Which attacks count is fixed with the suite and none is left out
   afterwards, so the whole result is inconclusive.
2. **The defense must leave learning alone.** Its mean utility without an attack is at least `LEAST_UTILITY`, and in
   every attacked cell, seed by seed, its utility is at least `LEAST_UTILITY` of the `oracle` row's (of the better one
   where oracles act in several ways; a negative one only has to be reached). A cell without a score is no score, good
   or bad, and takes the row out of the ranking as well.
3. **Places follow the worst case.** Rows are sorted by it, best first. The first row opens a group. Each next row
   joins the group while the interval of its paired difference to the group's *best* row includes 0; the first row for
   which it does not opens the next group. A group's number is one more than the number of rows above it (1, 1, 3). So
   equal numbers mean "cannot be told apart from the best of this group". As groups follow the sorted table, a noisy
   row cannot climb past one with a higher value. Below `statistics.FEW_SEEDS` seeds there is no interval, nothing can
   be told apart, and all ranked rows share place 1.

Anchor rows are shown and hold no place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Literal

from thiefbench import registry
from thiefbench.suite.analysis.comparison import UndefendedAttack, listed, why_inconclusive
from thiefbench.suite.analysis.statistics import MissingCellError, WorstCase, worst_case, worst_case_difference

ANCHORS = ("oracle", "blacklist", "random", "reject_all", "none")
"""Rows of the benchmark itself, in the order they are shown; what is not ranked stands below `none`."""

LEAST_UTILITY = 0.9

RankingStatus = Literal["ranked", "anchor", "inconclusive", "unranked"]


class RankingError(ValueError):
    """There is nothing that could be ranked. One sentence for the user."""


def _check_finite(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RankingError(f"{name} is {value}; a cell without a value is given as None or left out")


@dataclass(frozen=True)
class AttackOutcome:
    """The result of one cell of a defense.

    Attributes:
        utility: None where it has none.
        harm_prevented: None without an attack, and where it has none.
        problem: why the cell has no score; empty where it has.
    """

    utility: float | None = None
    harm_prevented: float | None = None
    problem: str = ""

    def __post_init__(self) -> None:
        _check_finite(vars(self))


NOT_RUN = AttackOutcome(problem="not run")


@dataclass(frozen=True)
class RankingRow:
    """A defense and its cells; a missing key is a cell that was not run.

    Attributes:
        defense: its spec string.
        unattacked: its cells without an attack, by seed.
        attacked: its cells under attack, by attack and seed.
    """

    defense: str
    unattacked: Mapping[int, AttackOutcome]
    attacked: Mapping[str, Mapping[int, AttackOutcome]]

    @property
    def anchor(self) -> str:
        """Which anchor it is; empty for a submission."""
        return anchor_of(self.defense)


def anchor_of(defense: str) -> str:
    """Which anchor a spec string names; empty for any other, also for a composition that an anchor takes part in."""
    try:
        name = registry.parse("defense", defense).target
    except registry.SpecStringError:  # several parts, or nothing that was meant well
        return ""
    return name if name in ANCHORS else ""


def beside_anchors(defenses: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    """The defenses of a suite whose user chooses what it measures: `none`, its anchors, and what was chosen."""
    return tuple(dict.fromkeys(("none", *(each for each in defenses if anchor_of(each)), *chosen)))


@dataclass(frozen=True)
class Placement:
    """The place of a row.

    Attributes:
        defense: its spec string.
        status: "ranked"; "anchor"; "inconclusive" where an attack did not work; "unranked" where it is not eligible.
        number: its place, shared by ties; None unless it is ranked.
        worst: its worst case of harm prevented; None where a cell of it has no score, and in an inconclusive result.
        reason: in one clause why it has no place or shares one; empty otherwise.
    """

    defense: str
    status: RankingStatus
    number: int | None
    worst: WorstCase | None
    reason: str


def rank(rows: Sequence[RankingRow], undefended: Sequence[UndefendedAttack], seeds: Sequence[int]) -> list[Placement]:
    """The places of all rows, best first, then anchors, then what is not ranked; see the module for the rules.

    Args:
        rows: submissions and anchors, each defense once. The oracle's row is what utility under attack is held to.
        undefended: every attack of the suite, once.
        seeds: every seed of the suite. Cells at other seeds or of other attacks do not count.

    Raises:
        RankingError: there are no attacks or seeds, or a row or attack is given twice.
    """
    oracles = [row for row in rows if row.anchor == "oracle"]
    _check(rows, undefended, seeds)
    attacks = [attack.name for attack in undefended]
    return placed([(row, judged(row, oracles, undefended, seeds)) for row in rows], attacks, seeds)


def judged(
    row: RankingRow, oracles: Sequence[RankingRow], undefended: Sequence[UndefendedAttack], seeds: Sequence[int]
) -> Placement:
    """Whether a row may be ranked; a ranked one has no number yet. See `rank` for the arguments."""
    seeds = sorted(set(seeds))
    attacks = [attack.name for attack in undefended]
    doubts = [doubt for attack in undefended if (doubt := why_inconclusive(attack, seeds))]
    worst, problem = (None, "; ".join(doubts)) if doubts else worst_of(row, attacks, seeds)
    if row.anchor:
        return Placement(row.defense, "anchor", None, worst, problem)
    if doubts:
        return Placement(row.defense, "inconclusive", None, None, problem)
    if worst is None or (problem := unfit(row, oracles, attacks, seeds)):
        return Placement(row.defense, "unranked", None, worst, problem)
    return Placement(row.defense, "ranked", None, worst, "")


def placed(
    rows: Sequence[tuple[RankingRow, Placement]], attacks: Sequence[str], seeds: Sequence[int]
) -> list[Placement]:
    """Judged rows in their order, best first, and the ranked ones with their numbers.

    Args:
        rows: each defense once, with what `judged` says of it.
        attacks, seeds: every one of the suite.
    """
    seeds = sorted(set(seeds))
    ranked = [(row, place.worst) for row, place in rows if place.status == "ranked" and place.worst is not None]
    anchors = [(row, place) for row, place in rows if place.status == "anchor"]
    anchors.sort(key=lambda pair: (ANCHORS.index(pair[0].anchor), pair[0].defense))
    rest = [place for _, place in rows if place.status not in ("ranked", "anchor")]
    return [*_numbered(ranked, attacks, seeds), *(place for _, place in anchors), *sorted(rest, key=_best_first)]


def unfit(row: RankingRow, oracles: Sequence[RankingRow], attacks: Sequence[str], seeds: Sequence[int]) -> str:
    """Why a defense hurts learning too much to be ranked, or why that is not known; empty where it is fit."""
    unattacked = {seed: row.unattacked.get(seed, NOT_RUN) for seed in seeds}
    if lost := [seed for seed in seeds if unattacked[seed].utility is None]:
        return f"no utility without an attack at seed {listed(lost)}{_because(unattacked[lost[0]])}"
    utility = fmean(cell.utility for cell in unattacked.values() if cell.utility is not None)
    if utility < LEAST_UTILITY:
        return f"its utility without an attack is {utility:z.3f}, below {LEAST_UTILITY}"
    if not oracles:
        return "there is no oracle row to hold its utility under attack to"
    shortfalls = []
    for attack, seed in product(attacks, seeds):
        utility_here, oracle = _cell(row, attack, seed).utility, [_cell(each, attack, seed).utility for each in oracles]
        if utility_here is None or None in oracle:
            whose = "its" if utility_here is None else "the oracle's"
            return f"{whose} cell against {attack} at seed {seed} has no utility"
        best = max(value for value in oracle if value is not None)
        least = min(best, LEAST_UTILITY * best)
        if utility_here < least:
            held = f"below {LEAST_UTILITY} of the oracle's {best:z.3f}"
            shortfalls.append(
                (utility_here - least, f"its utility against {attack} at seed {seed} is {utility_here:z.3f}, {held}")
            )
    return min(shortfalls)[1] if shortfalls else ""


def _numbered(
    rows: Sequence[tuple[RankingRow, WorstCase]], attacks: Sequence[str], seeds: Sequence[int]
) -> list[Placement]:
    """Eligible rows with their places; see the module for what shares one."""
    by_defense = {row.defense: _prevented(row, attacks, seeds) for row, _ in rows}
    placements: list[Placement] = []
    leader: Placement | None = None
    unnumbered = sorted((Placement(row.defense, "ranked", None, worst, "") for row, worst in rows), key=_best_first)
    for position, place in enumerate(unnumbered, 1):
        if leader is not None:
            lead = worst_case_difference(by_defense[leader.defense], by_defense[place.defense])
            if lead.kind == "range" or lead.low <= 0:
                reason = f"cannot be told apart from {leader.defense}, which is ahead by {lead.text()}"
                placements.append(replace(place, number=leader.number, reason=reason))
                continue
        leader = replace(place, number=position)
        placements.append(leader)
    return placements


def worst_of(row: RankingRow, attacks: Sequence[str], seeds: Sequence[int]) -> tuple[WorstCase | None, str]:
    """A row's worst case of harm prevented, or the reason why it has none."""
    try:
        return worst_case(_prevented(row, attacks, seeds)), ""
    except MissingCellError as error:
        unscored = next(cell for a in attacks for s in seeds if (cell := _cell(row, a, s)).harm_prevented is None)
        return None, f"{error}{_because(unscored)}"


def _prevented(row: RankingRow, attacks: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[int, float | None]]:
    return {attack: {seed: _cell(row, attack, seed).harm_prevented for seed in seeds} for attack in attacks}


def _cell(row: RankingRow, attack: str, seed: int) -> AttackOutcome:
    return row.attacked.get(attack, {}).get(seed, NOT_RUN)


def _best_first(place: Placement) -> tuple[float, str]:
    return (-place.worst.summary.mean if place.worst else math.inf, place.defense)


def _because(cell: AttackOutcome) -> str:
    return f" ({cell.problem})" if cell.problem else ""


def _check(rows: Sequence[RankingRow], undefended: Sequence[UndefendedAttack], seeds: Sequence[int]) -> None:
    if not undefended or not seeds:
        raise RankingError("a ranking needs at least one attack and one seed")
    for what, names in (("defense", [r.defense for r in rows]), ("attack", [attack.name for attack in undefended])):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise RankingError(f"the {what} {twice[0]} is given twice; give one for each spec string")
