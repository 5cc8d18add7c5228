"""The ranking of defenses, from plain data to places.

Defenses are ranked by harm prevented in the worst case over attacks, in four steps:

1. **There are enough seeds.** Below `statistics.FEW_SEEDS` seeds there are no intervals to compare, so nothing is
   ranked: no row has a place, and rows are sorted by name.
2. **The attacks must work.** If an attack does not beat its placebo undefended (`comparison` has the rule), a defense
   that "stops" it has shown nothing. The attacks are fixed with the suite and none is left out afterwards, so the whole
   result is then inconclusive.
3. **The defense must not harm learning**: a non-inferiority test with the suite's margin m (`RankingRules`). Let u_s be
   its utility at seed s without an attack, and d_s under an attack its utility minus that of the `oracle` row (of
   several oracle rows, the one with the better mean). The one-sided 95 % lower limits of the means over seeds must
   satisfy

       mean(u) - t s / sqrt(n) >= 1 - m    and, for every attack,    mean(d) - t s / sqrt(n) >= -m.

   The differences under all attacks share one standard deviation (`statistics.lower_limits`), because five seeds alone
   say little about it. A defense is tested on every attack and must pass each, so no limit is widened for their number
   (Berger, Technometrics 24, 1982: the intersection-union test). A defense whose true cost is m of utility under one
   attack passes in 5 % of suites if utility spreads equally under all attacks, and in 16 % if it spreads twice as much
   under that attack (`tests/benchmarks/ranking.py`). A row with a cell without a score is not ranked either.
4. **Places follow the worst case.** Rows are sorted by it, best first. The first row opens a group. Each next row joins
   the group while the interval of its paired difference to the group's *best* row includes 0; the first row for which
   it does not opens the next group. A group's number is one more than the number of rows above it (1, 1, 3). So equal
   numbers mean "not distinguishable from the best row of this group". Because groups follow the sorted table, a noisy
   row cannot rank above one with a higher value. Rows whose interval does not lie above 0 cannot be told apart from a
   defense that prevents nothing: they come after all others, in groups of their own, and never hold the first place,
   which stays empty where there are no others.

Harm prevented over seeds is a ratio of means (`statistics.ratio`). Every worst case is given with the number of seeds
at which the defense prevented at least `RankingRules.good` of the harm of every attack; seeds at which no attack works
undefended are not counted.

Anchors are shown, but have no place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from thiefbench import registry
from thiefbench.suite.analysis.comparison import RULES, UndefendedAttack, why_inconclusive
from thiefbench.suite.analysis.statistics import (
    FEW_SEEDS,
    MissingCellError,
    SeedCount,
    Summary,
    WorstCase,
    held,
    linearised,
    lower_limits,
    ratio,
    worst_case,
    worst_case_difference,
)
from thiefbench.suite.scenario import RankingRules
from thiefbench.wording import seeds_in_words

NO_ORACLE = "there is no oracle row to hold its utility under attack to"
"""Why a defense is not ranked in a table without one."""
ANCHORS = ("oracle", "blacklist", "random", "reject_all", "none")
"""The anchors, in the order in which they are shown; rows without a rank are below `none`."""

RankingStatus = Literal["ranked", "anchor", "inconclusive", "unranked", "unplaced"]


_ROUNDING = 1e-9


class RankingError(ValueError):
    """There is nothing to rank. One sentence for the user."""


def _check_finite(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RankingError(f"{name} is {value}; a cell without a value is given as None or left out")


@dataclass(frozen=True)
class AttackOutcome:
    """The result of one cell of a defense.

    Attributes:
        utility: None if it has none.
        harm_prevented: 1 - its harm / the mean undefended harm; None without an attack or without a score.
        problem: why the cell has no score; empty if it has one.
        undefended_share: the undefended harm at its seed / its mean over seeds.
    """

    utility: float | None = None
    harm_prevented: float | None = None
    problem: str = ""
    undefended_share: float = 1.0

    def __post_init__(self) -> None:
        _check_finite(vars(self))


NOT_RUN = AttackOutcome(problem="not run")


@dataclass(frozen=True)
class RankingRow:
    """A defense and its cells; a missing key means that the cell was not run.

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
    """The anchor that a spec string names; empty for others, including compositions with an anchor."""
    try:
        name = registry.parse("defense", defense).target
    except registry.SpecStringError:  # several parts, or not a valid spec string
        return ""
    return name if name in ANCHORS else ""


def beside_anchors(defenses: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    """The defenses of a suite if the user chooses some: `none`, the suite's anchors, and the chosen ones."""
    return tuple(dict.fromkeys(("none", *(each for each in defenses if anchor_of(each)), *chosen)))


@dataclass(frozen=True)
class Placement:
    """The place of a row.

    Attributes:
        defense: its spec string.
        status: "ranked"; "anchor"; "inconclusive" if an attack did not work; "unranked" if the row is not eligible;
            "unplaced" if the suite ranks nothing.
        number: its place, shared by ties; None unless it is ranked.
        worst: its worst case of harm prevented; None if one of its cells has no score, and in an inconclusive result.
        reason: why it has no place or shares one, in one clause; empty otherwise.
        leader: the row that is named in it, with which it shares its place.
    """

    defense: str
    status: RankingStatus
    number: int | None
    worst: WorstCase | None
    reason: str
    leader: str = ""


def too_few(seeds: Collection[int]) -> str:
    """Why these seeds are too few for a ranking, in one clause; empty if they are enough."""
    number = len(set(seeds))
    if number >= FEW_SEEDS:
        return ""
    return f"{number} seed{'s' if number != 1 else ''}, and a ranking takes {FEW_SEEDS} or more"


def unplaced_because(why: str, doubt: str) -> str:
    """Why a row has no place in a suite that ranks nothing, and whether its attacks would prevent a place too."""
    return f"{why}; inconclusive: {doubt}" if doubt else why


def rank(
    rows: Sequence[RankingRow],
    undefended: Sequence[UndefendedAttack],
    seeds: Sequence[int],
    rules: RankingRules = RULES,
) -> list[Placement]:
    """The places of all rows: ranked ones, best first, then anchors, then others; the module docstring has the rules.

    Args:
        rows: submissions and anchors, each defense once. Utility under attack is compared with the oracle's row.
        undefended: every attack of the suite, once.
        seeds: every seed of the suite. Cells at other seeds or of other attacks do not count.
        rules: of the suite.

    Raises:
        RankingError: there are no attacks or seeds, or a row or attack is given twice.
    """
    oracles = [row for row in rows if row.anchor == "oracle"]
    _check(rows, undefended, seeds)
    attacks = [attack.name for attack in undefended]
    return placed([(row, judged(row, oracles, undefended, seeds, rules)) for row in rows], attacks, seeds)


def judged(
    row: RankingRow,
    oracles: Sequence[RankingRow],
    undefended: Sequence[UndefendedAttack],
    seeds: Sequence[int],
    rules: RankingRules = RULES,
) -> Placement:
    """A row's placement, without a number; for the arguments see `rank`."""
    seeds = sorted(set(seeds))
    attacks = [attack.name for attack in undefended]
    doubts = [doubt for attack in undefended if (doubt := why_inconclusive(attack, seeds))]
    worst, problem = (None, "; ".join(doubts)) if doubts else worst_of(row, attacks, seeds, rules)
    if row.anchor:
        return Placement(row.defense, "anchor", None, worst, problem)
    if few := too_few(seeds):
        why = f"the suite has {few}"
        return Placement(row.defense, "unplaced", None, worst, unplaced_because(why, problem if doubts else ""))
    if doubts:
        return Placement(row.defense, "inconclusive", None, None, problem)
    if worst is None or (problem := unfit(row, oracles, attacks, seeds, rules)):
        return Placement(row.defense, "unranked", None, worst, problem)
    return Placement(row.defense, "ranked", None, worst, "")


def placed(
    rows: Sequence[tuple[RankingRow, Placement]], attacks: Sequence[str], seeds: Sequence[int]
) -> list[Placement]:
    """Judged rows in order, best first, with the numbers of ranked ones; unplaced ones are sorted by name.

    Args:
        rows: each defense once, with the result of `judged`.
        attacks, seeds: every one of the suite.
    """
    seeds = sorted(set(seeds))
    ranked = [(row, place.worst) for row, place in rows if place.status == "ranked" and place.worst is not None]
    anchors = [(row, place) for row, place in rows if place.status == "anchor"]
    anchors.sort(key=lambda pair: (ANCHORS.index(pair[0].anchor), pair[0].defense))
    unplaced = sorted((place for _, place in rows if place.status == "unplaced"), key=lambda place: place.defense)
    rest = [place for _, place in rows if place.status in ("inconclusive", "unranked")]
    return [
        *_numbered(ranked, attacks, seeds),
        *unplaced,
        *(place for _, place in anchors),
        *sorted(rest, key=_best_first),
    ]


def unfit(
    row: RankingRow,
    oracles: Sequence[RankingRow],
    attacks: Sequence[str],
    seeds: Sequence[int],
    rules: RankingRules = RULES,
) -> str:
    """Why a defense harms learning too much to be ranked, or why that is not known; empty if it may be ranked.

    It needs at least two seeds; the module docstring describes the test.
    """
    unattacked = {seed: row.unattacked.get(seed, NOT_RUN) for seed in seeds}
    kept = {seed: cell.utility for seed, cell in unattacked.items() if cell.utility is not None}
    if lost := [seed for seed in seeds if seed not in kept]:
        return f"no utility without an attack at {seeds_in_words(lost)}{_because(unattacked[lost[0]])}"
    least = 1 - rules.margin
    ((_, limit),) = _limits({"": kept})
    if limit < least:
        return f"its utility without an attack is {_limited(fmean(kept.values()), limit)}, and {least:g} is asked"
    if not oracles:
        return NO_ORACLE
    differences: dict[str, dict[int, float]] = {}
    for attack in attacks:
        reference = _best_oracle(oracles, attack, seeds)
        for seed in seeds:
            own, other = _cell(row, attack, seed).utility, reference.get(seed)
            if own is None or other is None:
                whose = "its" if own is None else "the oracle's"
                return f"{whose} cell against {attack} at seed {seed} has no utility"
            differences.setdefault(attack, {})[seed] = own - other
    attack, limit = min(_limits(differences), key=lambda pair: (pair[1], pair[0]))
    if limit >= -rules.margin:
        return ""
    behind = _limited(fmean(differences[attack].values()), limit)
    return f"its utility against {attack} minus the oracle's is {behind}, and {-rules.margin:g} is allowed"


def _limits(differences: Mapping[str, Mapping[int, float]]) -> list[tuple[str, float]]:
    """The lower limit of every name's mean; a limit that equals the margin except for rounding counts as reached."""
    limits = lower_limits(list(differences.values()))
    return [(name, limit + _ROUNDING) for name, limit in zip(differences, limits, strict=True)]


def _limited(mean: float, limit: float) -> str:
    return f"{mean:z.3f} (one-sided 95 % limit over seeds: {limit:z.3f})"


def _best_oracle(oracles: Sequence[RankingRow], attack: str, seeds: Sequence[int]) -> dict[int, float | None]:
    """The utility by seed of the oracle with the better mean, or of an oracle with a missing cell, if there is one."""
    rows = [{seed: _cell(each, attack, seed).utility for seed in seeds} for each in oracles]
    missing = next((each for each in rows if None in each.values()), None)
    return missing or max(rows, key=lambda each: fmean(value for value in each.values() if value is not None))


def _numbered(
    rows: Sequence[tuple[RankingRow, WorstCase]], attacks: Sequence[str], seeds: Sequence[int]
) -> list[Placement]:
    """Eligible rows with their places; the module docstring says which rows share one."""
    by_defense = {row.defense: _linear(row, attacks, seeds) for row, _ in rows}
    placements: list[Placement] = []
    leader: Placement | None = None
    best_first = sorted((Placement(row.defense, "ranked", None, worst, "") for row, worst in rows), key=_best_first)
    unnumbered = sorted(best_first, key=_prevents_nothing)
    first = 2 if unnumbered and _prevents_nothing(unnumbered[0]) else 1
    for position, place in enumerate(unnumbered, first):
        if leader is not None and _prevents_nothing(leader) == _prevents_nothing(place):
            lead = worst_case_difference(by_defense[leader.defense], by_defense[place.defense])
            if not lead.above_0:
                ahead = f", which is ahead by {lead.text()}" if round(lead.mean, 2) else ""
                reason = f"cannot be told apart from {leader.defense}{ahead}"
                placements.append(replace(place, number=leader.number, reason=reason, leader=leader.defense))
                continue
        leader = replace(place, number=position)
        placements.append(leader)
    return placements


def _prevents_nothing(place: Placement) -> bool:
    """Whether a ranked row cannot be told apart from a defense that prevents nothing."""
    return place.worst is None or not place.worst.summary.above_0


def worst_of(
    row: RankingRow, attacks: Sequence[str], seeds: Sequence[int], rules: RankingRules = RULES
) -> tuple[WorstCase | None, str]:
    """A row's worst case of harm prevented, or the reason why it has none.

    Its points are those of the worst attack; its count is of the seeds at which an attack works, and good are those at
    which the defense held (`statistics.held`) against every attack that works there.
    """
    prevented = _prevented(row, attacks, seeds)
    try:
        worst = worst_case(_linear(row, attacks, seeds) if len(seeds) >= FEW_SEEDS else prevented)
    except MissingCellError as error:
        unscored = next(cell for a in attacks for s in seeds if (cell := _cell(row, a, s)).harm_prevented is None)
        return None, f"{error}{_because(unscored)}"
    known = {attack: {seed: value or 0.0 for seed, value in by_seed.items()} for attack, by_seed in prevented.items()}
    by_attack = [
        held(points, {seed: _cell(row, attack, seed).undefended_share for seed in points}, rules.good)
        for attack, points in known.items()
    ]
    worked = [against for seed in seeds if (against := [each[seed] for each in by_attack if seed in each])]
    count = SeedCount(sum(map(all, worked)), len(worked))
    points = tuple(sorted(known[worst.attack].items()))
    return replace(worst, summary=replace(worst.summary, points=points, count=count)), ""


def prevented_over(cells: Mapping[int, AttackOutcome], rules: RankingRules = RULES) -> Summary:
    """Harm prevented under one attack over seeds; every seed must have a value."""
    points = {seed: cell.harm_prevented for seed, cell in cells.items() if cell.harm_prevented is not None}
    return ratio(points, {seed: cells[seed].undefended_share for seed in points}, rules.good)


def _prevented(row: RankingRow, attacks: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[int, float | None]]:
    return {attack: {seed: _cell(row, attack, seed).harm_prevented for seed in seeds} for attack in attacks}


def _linear(row: RankingRow, attacks: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[int, float | None]]:
    """Harm prevented by attack and seed, with the spread of a ratio; unchanged if a cell has no score."""
    table: dict[str, dict[int, float | None]] = {}
    for attack, points in _prevented(row, attacks, seeds).items():
        known = {seed: value for seed, value in points.items() if value is not None}
        shares = {seed: _cell(row, attack, seed).undefended_share for seed in known}
        table[attack] = points if len(known) < len(points) else {**linearised(known, shares)}
    return table


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
