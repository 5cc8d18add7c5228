"""The board as plain data: every entry is read, judged on its own cells, and ranked with the others of its suite.

**Places.** `judging` decides which rows may be ranked; those are placed together as
`thiefbench.suite.analysis.ranking` places the rows of a report, by their own harm prevented, paired by seed. Places
count only rows whose numbers were checked (rescored or re-executed). A self-reported row takes no place from them: its
own place, counted among all rows, is shown in brackets.

Where a suite has no oracle among its shared cells, utility under attack is held to a re-executed entry of the oracle,
of several the one that was verified first, so that no later entry changes who is ranked.

**Partial** entries, which have the first seeds of their suite alone, are never ranked. They stand below the ranked ones
with the numbers of their own seeds, in the order of `partial_order`.

**Anchors** are shown once, with the numbers of a checked entry that measured them; of several, of one that is
re-executed or the maintainers' own, then of the one with the most seeds, then the most trusted, then the earliest.

**Apart**, with the reason, are listed entries that verification rejected and entries that cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from thiefbench.leaderboard import CURRENT
from thiefbench.leaderboard.attacking.entry import is_attack_entry
from thiefbench.leaderboard.deliveries import of_all
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.names import seen
from thiefbench.leaderboard.published import SHARED
from thiefbench.leaderboard.rows import FAIL_ABOVE, mean_false_rejection
from thiefbench.leaderboard.site.attacks import (
    BROKEN_BY,
    MASKING,
    BestKnown,
    JudgedAttack,
    best_known,
    broken_by,
    masking,
    read_attack,
)
from thiefbench.leaderboard.site.judging import (
    JudgedEntry,
    beaten_by_naive,
    held_to,
    naive_forms,
    read,
    reference_oracles,
    titles,
)
from thiefbench.leaderboard.verification.verdict import FLAGS, Flag, Verdict, own_seeds
from thiefbench.suite.analysis.comparison import Comparison
from thiefbench.suite.analysis.ranking import Placement, RankingRow, placed, too_few
from thiefbench.suite.report.overview import SuiteRow, SuiteTable, tied
from thiefbench.suite.report.suite_files import LEARNS_LESS, write_lost
from thiefbench.suite.report.tables import short_names
from thiefbench.suite.scenario import Suite
from thiefbench.tasks.text import one_line

CHECKED: tuple[Verdict, ...] = ("re-executed", "rescored")
"""The verdicts that give a row a place, the most trusted first."""

NAIVE = "naive beats adaptive"
NAMESAKE = "shares its name"
NEVER_RUN = "its code was not run"
NO_BETTER = "prevents nothing in its worst case"
NEVER_RUN_MEANS = "its completions were scored again, but nobody has seen its code give these verdicts"
NO_REASON = "rejected without a reason"

Broken = tuple[str, str]
"""A folder's name, and one sentence that says why it is not shown."""

_SENTENCE = 500
_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class RedFlag:
    """What a reader should know about a row: a name of a few words, and a clause that explains it."""

    name: str
    meaning: str


MEANS: dict[Flag, str] = {
    "depends on order": "its verdicts change with the order of the pool, which carries no information",
    "non-deterministic": "it gives different verdicts when it inspects the same pool again",
    "rejects nearly everything": "it rejects more than half of the honest completions that earned a reward, or of "
    "honest vectors or stages",
    "does not generalise": "at seeds drawn after the submission it does worse than at the public seeds",
    "other shared cells": "it is measured against undefended, placebo, control or oracle cells of its own and not "
    "against the published ones",
}


@dataclass(frozen=True)
class BoardRow:
    """A row of a suite's table.

    Attributes:
        row: its numbers and its place, which counts self-reported rows if it is `provisional`.
        judged: the entry whose cells it is computed from.
        own: whether it is that entry's own row, and not one of the anchors among its shared cells.
        provisional: nobody checked its numbers, so its place is shown in brackets.
        flags: what a reader should know.
        best: the best-known worst case, over the attacks of outsiders too; None for anchors.
    """

    row: SuiteRow
    judged: JudgedEntry
    own: bool
    provisional: bool
    flags: tuple[RedFlag, ...]
    best: BestKnown | None = None

    @property
    def seeds(self) -> str:
        """How many of the suite's seeds it has, where it lacks some: "3 of 5 seeds"."""
        return of_all(self.judged.suite, self.judged.entry.manifest.seeds) if self.judged.partial else ""


@dataclass(frozen=True)
class SuiteBoard:
    """A suite and its table.

    Attributes:
        suite: the suite.
        rows: ranked ones, best first; then those with some of the seeds, and anchors; then those that are not ranked.
        table: the same rows as a report's table.
        apart: entries without a row, with the reasons.
        attacks: those of outsiders, by name.
        namesakes: the flags of entries that may be taken for others, by their folders' names.
    """

    suite: Suite
    rows: tuple[BoardRow, ...]
    table: SuiteTable
    apart: tuple[tuple[JudgedEntry, str], ...]
    attacks: tuple[JudgedAttack, ...] = ()
    namesakes: Mapping[str, RedFlag] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """The whole board.

    Attributes:
        suites: those that rank defenses, then superseded ones, then those with too few seeds to rank; each by title.
        broken: folders that cannot be shown, each with one sentence.
    """

    suites: tuple[SuiteBoard, ...]
    broken: tuple[Broken, ...]


def _nothing() -> None:
    """Counts nothing."""


def board(entries: Path, verified: Path, shared: Path = SHARED) -> Board:
    """Read a folder of entries and their verifications; `shared` holds the published cells that these may refer to.

    Raises:
        EntryError: there is no such folder.
    """
    judged, broken = read_all(entries, verified, shared)
    attacks, unread = read_attacks(entries, verified)
    return board_of(list(judged.values()), [*broken, *unread], list(attacks.values()))


def read_all(
    entries: Path, verified: Path, shared: Path = SHARED, count: Callable[[], None] = _nothing
) -> tuple[dict[str, JudgedEntry], list[Broken]]:
    """The defenses' entries of a folder by name, and the folders that cannot be read. Raises: see `board`."""
    folders = {folder.name: folder for folder in folders_of(entries) if not is_attack_entry(folder)}
    return each_alone(folders, lambda folder: read(_own_folder(folder), verified, shared), count)


def read_attacks(
    entries: Path, verified: Path, count: Callable[[], None] = _nothing
) -> tuple[dict[str, JudgedAttack], list[Broken]]:
    """The attacks' entries of a folder by name, and those that cannot be read. Raises: see `board`."""
    folders = {folder.name: folder for folder in folders_of(entries) if is_attack_entry(folder)}
    return each_alone(folders, lambda folder: read_attack(_own_folder(folder), verified), count)


def folders_of(entries: Path) -> list[Path]:
    """The folders of all entries; raises EntryError if there is no folder of entries."""
    if not entries.is_dir():
        raise EntryError(f"there is no folder {entries}; name the folder of entries with --entries DIR")
    return sorted(path for path in entries.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))


def _own_folder(folder: Path) -> Path:
    if folder.is_symlink():
        raise EntryError(f"{folder.name} is a link, and an entry is a folder of its own")
    return folder


def each_alone(
    inputs: Mapping[str, _Of], do: Callable[[_Of], _Made], count: Callable[[], None] = _nothing
) -> tuple[dict[str, _Made], list[Broken]]:
    """The results of a function by name, and for inputs on which it fails, one sentence; a failure stops no other.

    `count` is called after each input.
    """
    results: dict[str, _Made] = {}
    broken: list[Broken] = []
    for name, one in inputs.items():
        try:
            results[name] = do(one)
        except EntryError as error:
            broken.append((name, one_line(str(error), _SENTENCE)))
        except Exception as error:  # a stranger's numbers and texts may break any code that reads them
            broken.append((name, f"{name} cannot be shown: {type(error).__name__}: {error}"[:_SENTENCE]))
        count()
    return results, broken


def board_of(entries: Sequence[JudgedEntry], broken: Sequence[Broken], attacks: Sequence[JudgedAttack] = ()) -> Board:
    """The board of entries that were read."""
    suites = {judged.suite.title: judged.suite for judged in entries}
    boards = [
        suite_board(
            suite,
            [each for each in entries if each.suite.title == title],
            [each for each in attacks if each.suite.title == title],
        )
        for title, suite in sorted(suites.items(), key=_current_first)
    ]
    elsewhere = {each.entry.manifest.slug: each.suite.title for each in attacks if each.suite.title not in suites}
    lost = [
        (slug, f"{slug}: no defense of {title}, which it attacks, has an entry here")
        for slug, title in elsewhere.items()
    ]
    return Board(tuple(boards), tuple(sorted([*broken, *lost])))


def _current_first(titled: tuple[str, Suite]) -> tuple[bool, bool, bool, str]:
    """The suite that is meant unless another is named, then others that rank defenses, of these the superseded last."""
    title, suite = titled
    return title != CURRENT, bool(too_few(suite.seeds)), bool(suite.superseded), title


def suite_board(suite: Suite, entries: Sequence[JudgedEntry], attacks: Sequence[JudgedAttack] = ()) -> SuiteBoard:
    """The table of one suite; see the module."""
    oracles = reference_oracles(entries)
    entries = [held_to(each, oracles) for each in entries]
    trusted = sorted((each for each in entries if each.trust != "rejected"), key=_most_trust_first)
    # An entry holds an oracle's cells under attack only, so a missing utility needs no remark.
    beside = {
        row.defense: (each, row, replace(numbers, no_utility=""))
        for each in reversed(trusted)
        for row, numbers in each.anchors
    }
    own: dict[str, JudgedEntry] = {}
    for each in reversed(trusted):  # an anchor may be submitted twice, and stands beside others' cells too
        if each.label not in beside or _trust(each) <= _trust(beside[each.label][0]):
            own[each.label] = each
    shown_for = {label: each for label, (each, _, _) in beside.items()} | own
    apart = [
        (each, "; ".join(each.verification.reasons) or NO_REASON)
        for each in entries
        if each.verification and each.trust == "rejected"
    ]
    apart += [
        (each, f"the row {each.label} shows the numbers of the entry {shown_for[each.label].entry.manifest.slug}")
        for each in trusted
        if shown_for[each.label] is not each
    ]
    alike = _namesakes([*trusted, *attacks])
    anchors = {label: measured for label, measured in beside.items() if label not in own}
    board_rows = []
    for place, shares, provisional in _places(suite, own.values(), anchors.values()):
        judged = own.get(place.defense)
        if judged is not None:
            numbers = replace(judged.numbers, place=place, tied=shares)
            shown = (*flags(judged, numbers), *_attacked_flags(judged, attacks))
            shown += (alike[slug],) if (slug := judged.entry.manifest.slug) in alike else ()
            board_rows.append(BoardRow(numbers, judged, True, provisional, shown, best_known(judged, attacks)))
        else:
            measured_by, _, numbers = anchors[place.defense]
            board_rows.append(BoardRow(numbers, measured_by, False, False, ()))
    if not too_few(suite.seeds):
        board_rows = _best_of_partial_first(board_rows)
    table = _table(suite, entries, board_rows)
    return SuiteBoard(suite, tuple(board_rows), table, tuple(apart), tuple(attacks), alike)


def partial_order(row: BoardRow) -> tuple[bool, bool, float, int, float, str]:
    """Sorts rows without a place: checked ones first, then those that learn, then by their worst case as it is shown.

    What does not learn does not learn a payload either, so rows whose utility is below the suite's margin are no better
    than others. Of those with the same worst case, those with more seeds come first, then those that prevent more in
    the mean over attacks.
    """
    worst, checked = row.row.place.worst, row.judged.trust in CHECKED
    known = [field.prevented.mean for field in row.row.fields.values() if field.prevented is not None]
    least, mean = (-math.inf, 0.0) if worst is None else (round(worst.summary.mean, 2), round(fmean(known), 2))
    utility, margin = row.row.utility, row.judged.suite.ranking.margin
    learns = utility is not None and utility.mean >= 1 - margin
    return not checked, not learns, -least, -len(row.judged.entry.manifest.seeds), -mean, row.row.defense


def _best_of_partial_first(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """The rows of a suite that ranks, where those that wait for seeds are in the order of what they tell so far."""
    partial = iter(sorted((row for row in rows if row.row.place.status == "unplaced"), key=partial_order))
    return [next(partial) if row.row.place.status == "unplaced" else row for row in rows]


def flags(judged: JudgedEntry, numbers: SuiteRow) -> tuple[RedFlag, ...]:
    """The flags of an entry's row: those of its verification, and those that follow from its own cells."""
    verified_flags = set(judged.verification.flags if judged.verification else ())
    rate = mean_false_rejection(judged.entry)
    if rate is not None and rate > FAIL_ABOVE:
        verified_flags.add("rejects nearly everything")
    shown = [RedFlag(flag, MEANS[flag]) for flag in FLAGS if flag in verified_flags]
    names = dict(zip(titles(judged.suite), short_names([c.attack for c in judged.comparisons]), strict=True))
    pairs = beaten_by_naive(numbers.fields, naive_forms(judged.suite))
    if cases := ", ".join(f"from {names[naive]} than from {names[adaptive]}" for adaptive, naive in pairs):
        shown.append(RedFlag(NAIVE, f"it prevents less harm {cases}: an attacker does better without adapting"))
    if lost := write_lost(numbers, names):
        shown.append(RedFlag(LEARNS_LESS, lost))
    worst, least = numbers.place.worst, judged.suite.ranking.least_harm
    if numbers.place.number is not None and worst is not None and worst.summary.high < least:
        upper = f"the upper limit of its interval is {worst.summary.high:z.2f}, and it is ranked for its utility alone"
        shown.append(RedFlag(NO_BETTER, f"in its worst case it prevents nothing: {upper}"))
    if _never_run(judged):
        shown.append(RedFlag(NEVER_RUN, NEVER_RUN_MEANS))
    return tuple(shown)


def _never_run(judged: JudgedEntry) -> bool:
    """Whether nobody has seen a stranger's defense give the verdicts of its row, nor the maintainers run their own."""
    verification = judged.verification
    if judged.trust != "rescored" or verification is None or judged.maintained:
        return False
    ran = own_seeds(verification.reruns, equal=True)
    whole = bool(verification.judged)  # of an earlier version
    seen = [
        each.code_seen if each.code_seen is not None else whole or bool(ran & {*each.seeds})
        for each in verification.deliveries
    ]
    return not (all(seen) if seen else ran)


def _attacked_flags(judged: JudgedEntry, attacks: Sequence[JudgedAttack]) -> list[RedFlag]:
    """The flags that follow from outsiders' attacks on an entry."""
    found = [RedFlag(f"{BROKEN_BY} {attack.entry.manifest.name}", said) for attack, said in broken_by(judged, attacks)]
    return [*found, *([RedFlag(MASKING, said)] if (said := masking(judged, attacks)) else [])]


def _namesakes(entries: Iterable[JudgedEntry | JudgedAttack]) -> dict[str, RedFlag]:
    """The flags of entries that readers may take for one another, by their names or their folders'.

    All of them get it, whichever was there first.
    """
    manifests = [each.entry.manifest for each in entries]
    called = {each.slug: {seen(each.name), seen(each.slug)} for each in manifests}
    found = {}
    for each in manifests:
        if others := sorted(slug for slug, names in called.items() if slug != each.slug and names & called[each.slug]):
            means = f"it is the entry {each.slug}; by name, it may be taken for {', '.join(others)}, or these for it"
            found[each.slug] = RedFlag(NAMESAKE, means)
    return found


def trust_order(verdict: Verdict) -> int:
    """A verdict's position when sorting by trust: the most trusted first, those that nobody checked last."""
    return CHECKED.index(verdict) if verdict in CHECKED else len(CHECKED)


def _trust(judged: JudgedEntry) -> tuple[bool, bool, int, int]:
    """How far an entry's numbers of an anchor are to be preferred, the most first.

    Completions that were only scored again may be a stranger's invention, so these come after the maintainers' own.
    """
    vouched = judged.trust == "re-executed" or judged.maintained
    return judged.trust not in CHECKED, not vouched, -len(judged.entry.manifest.seeds), trust_order(judged.trust)


def _most_trust_first(judged: JudgedEntry) -> tuple[tuple[bool, bool, int, int], bool, date, date, str]:
    """Sorts entries of the same defense; the maintainers' date decides before the submitter's own."""
    manifest, verification = judged.entry.manifest, judged.verification
    verified = verification.verified if verification else date.max
    return _trust(judged), bool(judged.entry.shared_set), verified, manifest.submitted, manifest.slug


def _places(
    suite: Suite, entries: Collection[JudgedEntry], anchors: Iterable[tuple[JudgedEntry, RankingRow, SuiteRow]]
) -> list[tuple[Placement, bool, bool]]:
    """Every row's placement, whether it shares its place, and whether the place counts self-reported rows."""

    def among(those: Iterable[tuple[RankingRow, SuiteRow]]) -> list[Placement]:
        return placed([(row, numbers.place) for row, numbers in those], titles(suite), suite.seeds)

    checked = among((each.row, each.numbers) for each in entries if each.trust in CHECKED)
    everyone = among(
        [*((each.row, each.numbers) for each in entries), *((row, numbers) for _, row, numbers in anchors)]
    )
    checked_places = {place.defense: place for place in checked}
    places = []
    for place in everyone:
        own = checked_places.get(place.defense)
        shown, others = (own, checked) if own else (place, everyone)
        places.append((shown, tied(shown, others), own is None and place.status == "ranked"))
    return places


def _table(suite: Suite, entries: Sequence[JudgedEntry], rows: Sequence[BoardRow]) -> SuiteTable:
    """A report's table of the rows; its comparisons hold the lines of all, each from its own entry's cells."""
    first = {c.title: c for each in entries for c in each.comparisons}
    merged = []
    for title in titles(suite):
        lines = {
            line.defense: line for row in rows for c in row.judged.comparisons if c.title == title
            for line in c.lines if line.defense == row.row.defense
        }  # fmt: skip
        merged.append(Comparison(first[title].attack, (), tuple(lines.values()), first[title].part, suite.ranking))
    few = too_few(suite.seeds)
    why = f"the suite has {few}" if few else ""
    return SuiteTable(tuple(merged), tuple(row.row for row in rows), tuple(sorted(suite.seeds)), {}, why)
