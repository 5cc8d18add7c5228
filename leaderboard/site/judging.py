"""One entry judged on its own cells, before it is compared with others.

An entry comes with the undefended, placebo, control and oracle cells that its own were measured against, or refers to
the published ones, so it is a complete experiment: its harm prevented and utility, whether its attacks work and whether
it leaves learning intact are all computed from *its* cells. Those that other entries bring, made on other machines, are
never mixed in. Where two machines agree, this changes nothing; where the shared cells that an entry brings are wrong or
forged, only its own row is affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from thiefbench import registry
from thiefbench.attacks.adaptive import Adaptive
from thiefbench.leaderboard import rows as entries
from thiefbench.leaderboard.deliveries import check_alike, check_seeds, why_partial
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.entry_validation import check_defense
from thiefbench.leaderboard.manifest import Delivery
from thiefbench.leaderboard.names import OWN
from thiefbench.leaderboard.published import SHARED
from thiefbench.leaderboard.verification.verdict import Verdict, Verification, read_verification
from thiefbench.suite.analysis import ranking_inputs
from thiefbench.suite.analysis.comparison import Comparison, why_inconclusive
from thiefbench.suite.analysis.ranking import (
    ANCHORS,
    Placement,
    RankingRow,
    RankingStatus,
    anchor_of,
    judged,
    unplaced_because,
    worst_of,
)
from thiefbench.suite.analysis.run_comparisons import comparisons_of_cells
from thiefbench.suite.analysis.statistics import paired
from thiefbench.suite.report.overview import Field, SuiteRow, suite_row
from thiefbench.suite.report.timings import cost
from thiefbench.suite.scenario import Suite, heading

MOST = 1e5
"""No measured share of harm or gain, and no round's length in undefended rounds, comes near it."""


@dataclass(frozen=True)
class JudgedEntry:
    """An entry that was read, with its row.

    Attributes:
        entry: the entry.
        verification: of the entry; None if there is none.
        suite: the suite it was run on.
        label: the name of its row: the folder's name, or an anchor's spec string.
        comparisons: its cells, with the label in place of the defense's spec string, which may be a path.
        row: its input to the ranking.
        numbers: its row in the table; its place has no number yet.
        anchors: the same two values for each anchor among its shared cells.
    """

    entry: Entry
    verification: Verification | None
    suite: Suite
    label: str
    comparisons: tuple[Comparison, ...]
    row: RankingRow
    numbers: SuiteRow
    anchors: tuple[tuple[RankingRow, SuiteRow], ...]

    @property
    def partial(self) -> str:
        """Why it is not ranked whatever its numbers are: it has some of its suite's seeds; empty where it has all."""
        return why_partial(self.suite, self.entry.manifest.seeds)

    @property
    def trust(self) -> Verdict:
        """The verdict of its verification."""
        return self.verification.verdict if self.verification else "self-reported"

    @property
    def maintained(self) -> bool:
        """Whether it is the maintainers' own and brings no code."""
        return not self.entry.source and OWN in self.entry.manifest.authors

    @property
    def deliveries(self) -> list[tuple[Delivery, Verdict, date | None]]:
        """Every delivery of its seeds, its verdict and the date of that; None where nobody verified it."""
        known = {each.seeds: each for each in self.verification.deliveries} if self.verification else {}
        of_all = (self.trust, self.verification.verified if self.verification else None)
        return [
            (each, *((known[each.seeds].verdict, known[each.seeds].verified) if each.seeds in known else of_all))
            for each in self.entry.manifest.deliveries
        ]


def read(folder: Path, verified: Path, shared: Path = SHARED) -> JudgedEntry:
    """Read and judge an entry; none of its code is loaded.

    Args:
        folder: of the entry.
        verified: of verifications.
        shared: of the published cells that it may refer to.

    Raises:
        EntryError: the entry or its verification is broken, its suite is not known here, or it lacks cells that the
            suite requires for a row.
    """
    entry = read_entry(folder, shared)
    verification = read_verification(verified, entry)
    suite = entries.suite_of(entry)
    if missing := ranking_inputs.lacking({"placebo": suite.placebo, "utility": suite.utility}):
        raise EntryError(f"{folder} was run on {suite.title}, which has {missing}, so nothing on it is ranked")
    check_defense(entry, suite)
    label = _label(entry)
    _check_cells(entry, suite)
    named = [
        replace(cell, defense=label) if cell.defense == entry.manifest.defense else cell
        for cell in entries.cells(entry)
    ]
    comparisons = _in_order(suite, comparisons_of_cells(named, suite.ranking, remarks=False))
    ranking_rows = {row.defense: row for row in ranking_inputs.rows(comparisons)}
    _check_plausible(entry, ranking_rows[label], comparisons)
    seeds = entry.manifest.seeds
    numbers = {
        row.defense: _numbers(row, ranking_rows.values(), comparisons, suite, seeds) for row in ranking_rows.values()
    }
    if timed_elsewhere(entry):
        numbers[label] = replace(numbers[label], cost=None)
    anchors = [(row, numbers[row.defense]) for row in ranking_rows.values() if row.anchor and row.defense != label]
    return JudgedEntry(
        entry, verification, suite, label, tuple(comparisons), ranking_rows[label], numbers[label], tuple(anchors)
    )


def reference_oracles(entries: Iterable[JudgedEntry]) -> list[JudgedEntry]:
    """The entries of an oracle that others may be held to (`held_to`): one of each, which no later entry displaces.

    A stranger's word must not decide who is ranked, so an oracle counts only after its cells were run again. Of several
    that say the same of themselves and refer to the same published cells, it is one with all cells, then the one that
    was verified first.
    """
    found: dict[tuple[str, str], JudgedEntry] = {}
    for each in sorted(entries, key=_earliest_whole):
        if each.row.anchor == "oracle" and each.trust == "re-executed" and not each.partial:
            found.setdefault((each.label, each.entry.shared_set), each)
    return list(found.values())


def _earliest_whole(judged: JudgedEntry) -> tuple[bool, date, date, str]:
    manifest, verification = judged.entry.manifest, judged.verification
    cells = [cell for by_seed in judged.row.attacked.values() for cell in by_seed.values()]
    verified = verification.verified if verification else date.max
    return any(cell.utility is None for cell in cells), verified, manifest.submitted, manifest.slug


def held_to(judged: JudgedEntry, oracles: Sequence[JudgedEntry]) -> JudgedEntry:
    """An entry, judged anew with the oracle rows of other entries where its suite has no oracle's cells of its own.

    Args:
        judged: the entry.
        oracles: see `reference_oracles`. Those that refer to other published cells do not count, as their controls may
            differ.
    """
    if judged.partial or any(row.anchor == "oracle" for row in (judged.row, *(row for row, _ in judged.anchors))):
        return judged
    rows = [each.row for each in oracles if each.entry.shared_set == judged.entry.shared_set]
    rows += [row for row, _ in judged.anchors]
    numbers = _numbers(judged.row, rows, judged.comparisons, judged.suite, judged.entry.manifest.seeds)
    return replace(judged, numbers=replace(numbers, cost=judged.numbers.cost))


def titles(suite: Suite) -> list[str]:
    """Every attack of a suite in its order, by the title of its comparison."""
    return [
        heading(part.name, registry.canonical("attack", attack)) for part in suite.scenes for attack in part.attacks
    ]


def naive_forms(suite: Suite) -> dict[str, str]:
    """The suite's attacks that adapt to the defense, each with the unadapted attack of the same part; by titles."""
    suite_titles = set(titles(suite))
    forms = {}
    for part in suite.scenes:
        for attack in (registry.canonical("attack", attack) for attack in part.attacks):
            naive = heading(part.name, _naive(attack))
            if naive in suite_titles and naive != heading(part.name, attack):
                forms[heading(part.name, attack)] = naive
    return forms


def beaten_by_naive(fields: Mapping[str, Field], forms: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of an adaptive attack and the same attack unadapted where the defense withstands the adaptive one better.

    An attacker is free not to adapt, so in such a pair the adaptive cell is not the harder test. The whole interval of
    the paired difference over seeds must lie above 0 (below 5 seeds: the difference at every seed).
    """
    for adaptive, naive in forms.items():
        ours, theirs = (fields[title].prevented if title in fields else None for title in (adaptive, naive))
        if ours is not None and theirs is not None and paired(dict(ours.points), dict(theirs.points)).low > 0:
            yield adaptive, naive


def _label(entry: Entry) -> str:
    if anchor_of(entry.manifest.defense):
        return entry.manifest.defense
    if entry.manifest.slug in ANCHORS:
        raise EntryError(f"{entry.folder} has the name of an anchor but holds another defense; rename the folder")
    if entry.manifest.slug == "placebo":
        raise EntryError(f"{entry.folder} has the name of the cells with clean completions; rename the folder")
    return entry.manifest.slug


def _check_cells(entry: Entry, suite: Suite) -> None:
    """Check that every cell that the suite requires for a row is there, at the entry's seeds; raises EntryError."""
    manifest = entry.manifest
    try:
        check_seeds(sorted(manifest.seeds), replace(suite, seeds=tuple(sorted(suite.seeds))))
        check_alike(entry)
    except EntryError as error:
        raise EntryError(f"{entry.folder}: {error}; submit it again") from error
    have = {(cell.part, cell.role, cell.attack, cell.defense, cell.seed) for cell in entry.cells}
    for cell in entries.wanted(suite, manifest.seeds, manifest.numerics, manifest.defense):
        if (suite.part_of(cell), cell.role, cell.attack, cell.defense, cell.seed) not in have:
            raise EntryError(f"{entry.folder} lacks the cell {cell.label} of {suite.title}; submit it again")


def _check_plausible(entry: Entry, row: RankingRow, comparisons: Sequence[Comparison]) -> None:
    """Refuse numbers so large that they would hide all others in a plot or a table, and a cell without clean reward.

    Every evaluation gives a clean reward; without it nobody sees what a defense costs.

    Raises:
        EntryError: the entry has one.
    """
    for each in entry.cells:
        if each.status == "ok" and (reward := each.scores.get("clean_reward")) is not None and reward[0] is None:
            raise EntryError(f"{entry.folder} has no clean reward for the cell {each.cell_id}, which every cell has")
    for cell in (cell for by_seed in row.attacked.values() for cell in by_seed.values()):
        if cell.harm_prevented is not None and abs(cell.harm_prevented) > MOST:
            said = f"a harm prevented of {cell.harm_prevented:.3g}"
            raise EntryError(f"{entry.folder} gives {said}, which no measurement can give")
    for ratio in (cost(each, row.defense).ratio for each in comparisons):
        if ratio is not None and ratio.mean > MOST:
            said = f"rounds {ratio.mean:.3g} times as long as undefended ones"
            raise EntryError(f"{entry.folder} gives {said}, which no measurement can give")


def _in_order(suite: Suite, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """As the suite names its attacks, whatever the order of an entry's cells."""
    place = {title: number for number, title in enumerate(titles(suite))}
    return sorted(comparisons, key=lambda each: place[each.title])


def _numbers(
    row: RankingRow,
    ranking_rows: Iterable[RankingRow],
    comparisons: Sequence[Comparison],
    suite: Suite,
    seeds: Sequence[int],
) -> SuiteRow:
    """A row's numbers over an entry's seeds; with some of the suite's it has no place."""
    oracles = [each for each in ranking_rows if each.anchor == "oracle"]
    attacks = ranking_inputs.undefended(comparisons)
    if why := why_partial(suite, seeds):
        doubts = "; ".join(doubt for attack in attacks if (doubt := why_inconclusive(attack, sorted(seeds))))
        worst, failed = None, ""
        if not doubts:
            worst, failed = worst_of(row, [each.name for each in attacks], sorted(seeds), suite.ranking)
        status: RankingStatus = "anchor" if row.anchor else "unplaced"
        reason = "; ".join(each for each in (unplaced_because(why, doubts), failed) if each)
        place = Placement(row.defense, status, None, worst, doubts or failed if row.anchor else reason)
    else:
        place = judged(row, oracles, attacks, suite.seeds, suite.ranking)
    numbers = suite_row(place, False, row, comparisons, suite.utility)
    return replace(numbers, cost=None) if _load_changed(row, comparisons) else numbers


def timed_elsewhere(entry: Entry) -> bool:
    """Whether a published cell that an entry is measured against was run on another model of processor than its own."""
    return any(
        cell.record.provenance.get("processor_model")
        != entry.manifest.delivery_of(cell.record.cell["seed"]).machine.get("processor_model")
        for cell in entry.published.values()
    )


def _load_changed(row: RankingRow, comparisons: Sequence[Comparison]) -> bool:
    """Whether round times of a defense say nothing: somewhere its own work does not explain them.

    So the load of the machine changed from cell to cell, or a round's other work did; either way, the ratios of its
    other cells are no cost of the defense. Records do not tell the load.
    """
    return any(cost(each, row.defense).withheld for each in comparisons)


def _naive(attack: str) -> str:
    """An attack without the adaptive part."""
    parsed = registry.parse("attack", attack)
    inner = registry.argument("attack", parsed, "attack")
    if not isinstance(inner, str):
        return attack
    if parsed.target == Adaptive.name:
        return registry.canonical("attack", inner)
    naive = replace(parsed, arguments=parsed.arguments | {"attack": _naive(inner)})
    return registry.canonical("attack", str(naive))
