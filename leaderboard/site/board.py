"""The board as plain data: every entry read, judged on its own cells, and ranked with the others of its suite.

**Places.** `judging` says which rows may be ranked; those that may are placed together as `thiefbench.suite.ranking`
places the rows of a report, by their own harm prevented, paired by seed. A place is given among rows whose numbers were
checked (rescored or re-executed). A self-reported row takes none from them: in brackets stands the place that it has
where self-reported rows count as well.

**Anchors** stand once, as the entry with the most trust measured them, the earliest of several.

**Apart** stand, with the reason, entries whose verification rejected them and entries that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.site.judging import Judged, beaten_by_naive, naive_forms, read, titles
from thiefbench.leaderboard.verification import FLAGS, Flag, Verdict
from thiefbench.suite.ranking import Place, Row, placed
from thiefbench.suite.report.lines import Comparison
from thiefbench.suite.report.overview import SuiteRow, SuiteTable, suite_row, tied
from thiefbench.suite.report.tables import short_names
from thiefbench.suite.scenario import Suite

CHECKED: tuple[Verdict, ...] = ("re-executed", "rescored")
"""Trust that gives a row a place, most first."""

NAIVE = "naive beats adaptive"
NO_REASON = "its verification gives no reason"


@dataclass(frozen=True)
class RedFlag:
    """What a reader should know of a row: a word or two, and in a clause what it means."""

    name: str
    said: str


MEANS: dict[Flag, str] = {
    "depends on order": "its verdicts change with the order of the pool, which tells nothing",
    "non-deterministic": "it judges the same pool differently when asked again",
    "rejects nearly everything": "it rejects nearly every completion, honest ones as well",
    "does not generalise": "at seeds drawn after the submission it does worse than at the public ones",
}


@dataclass(frozen=True)
class BoardRow:
    """A row of a suite's table.

    Attributes:
        row: its numbers and where it stands; its number counts self-reported rows where it is `provisional`.
        judged: the entry whose cells it is made of.
        own: whether it is that entry's own row, and not one of the anchors it was measured beside.
        provisional: nobody checked its numbers, so its place is in brackets.
        flags: what a reader should know.
    """

    row: SuiteRow
    judged: Judged
    own: bool
    provisional: bool
    flags: tuple[RedFlag, ...]


@dataclass(frozen=True)
class SuiteBoard:
    """A suite and its table.

    Attributes:
        suite: which.
        rows: best first, then anchors, then what is not ranked.
        table: the same rows as a report's table.
        apart: entries that have no row, with the reasons.
    """

    suite: Suite
    rows: tuple[BoardRow, ...]
    table: SuiteTable
    apart: tuple[tuple[Judged, str], ...]


@dataclass(frozen=True)
class Board:
    """All of it.

    Attributes:
        suites: by name.
        broken: folders that are no entry that can be shown, each with one sentence.
    """

    suites: tuple[SuiteBoard, ...]
    broken: tuple[tuple[str, str], ...]


def board(entries: Path, verified: Path) -> Board:
    """Read a folder of entries and what was verified of them.

    Raises:
        EntryError: there is no such folder.
    """
    if not entries.is_dir():
        raise EntryError(f"there is no folder {entries}; name the folder of entries with --entries DIR")
    found: list[Judged] = []
    broken: list[tuple[str, str]] = []
    for folder in sorted(path for path in entries.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))):
        try:
            found.append(read(folder, verified))
        except EntryError as error:
            broken.append((folder.name, str(error)))
        except Exception as error:  # a stranger's numbers may break any rule, and the others' rows must stand
            broken.append((folder.name, f"{folder} cannot be judged: {type(error).__name__}: {error}"[:500]))
    suites = {judged.suite.title: judged.suite for judged in found}
    made = [
        suite_board(suite, [each for each in found if each.suite.title == title])
        for title, suite in sorted(suites.items())
    ]
    return Board(tuple(made), tuple(broken))


def suite_board(suite: Suite, found: Sequence[Judged]) -> SuiteBoard:
    """The table of one suite; see the module."""
    trusted = sorted((each for each in found if each.trust != "rejected"), key=_most_trust_first)
    own = {each.label: each for each in reversed(trusted)}  # an anchor may be submitted twice
    apart = [(each, f"{each.label} is shown as {own[each.label].entry.manifest.slug} has it") for each in trusted
             if own[each.label] is not each]  # fmt: skip
    beside = {row.defense: (each, row, place) for each in reversed(trusted) for row, place in each.anchors}
    shared = [beside[label] for label in beside if label not in own]
    rejected = [(each, "; ".join(each.verification.reasons) or NO_REASON) for each in found
                if each.verification and each.trust == "rejected"]  # fmt: skip
    made = []
    for place, shares, provisional in _places(suite, list(own.values()), [(row, place) for _, row, place in shared]):
        judged, row = (
            (own[place.defense], own[place.defense].row) if place.defense in own else beside[place.defense][:2]
        )
        numbers = suite_row(place, shares, row, judged.comparisons, suite.utility)
        if place.defense in own:
            made.append(BoardRow(numbers, judged, True, provisional, flags(judged, numbers)))
        else:  # an entry holds an oracle's cells under attack alone: that others have no score is no news
            made.append(BoardRow(replace(numbers, no_utility=""), judged, False, False, ()))
    return SuiteBoard(suite, tuple(made), _table(suite, made), (*rejected, *apart))


def flags(judged: Judged, numbers: SuiteRow) -> tuple[RedFlag, ...]:
    """What a reader should know of an entry's row: what its verification found, and what its own cells show."""
    known = judged.verification.flags if judged.verification else ()
    made = [RedFlag(flag, MEANS[flag]) for flag in FLAGS if flag in known]
    names = dict(zip(titles(judged.suite), short_names([c.attack for c in judged.comparisons]), strict=True))
    pairs = beaten_by_naive(numbers.fields, naive_forms(judged.suite))
    if said := ", ".join(f"of {names[naive]} than of {names[adaptive]}" for adaptive, naive in pairs):
        made.append(RedFlag(NAIVE, f"it prevents less harm {said}, so whoever adapts to it need only leave that"))
    return tuple(made)


def _most_trust_first(judged: Judged) -> tuple[int, date, str]:
    trust = CHECKED.index(judged.trust) if judged.trust in CHECKED else len(CHECKED)
    return trust, judged.entry.manifest.submitted, judged.entry.manifest.slug


def _places(
    suite: Suite, found: Sequence[Judged], anchors: Sequence[tuple[Row, Place]]
) -> list[tuple[Place, bool, bool]]:
    """Every row's place, whether it shares its number, and whether the number counts self-reported rows."""
    attacks = titles(suite)
    checked = placed([(each.row, each.place) for each in found if each.trust in CHECKED], attacks, suite.seeds)
    everyone = placed([*((each.row, each.place) for each in found), *anchors], attacks, suite.seeds)
    known = {place.defense: place for place in checked}
    made = []
    for place in everyone:
        own = known.get(place.defense)
        shown, among = (own, checked) if own else (place, everyone)
        made.append((shown, tied(shown, among), own is None and place.standing == "ranked"))
    return made


def _table(suite: Suite, rows: Sequence[BoardRow]) -> SuiteTable:
    """A report's table of the rows; its comparisons hold the lines of all, each measured beside its own cells."""
    first = {c.title: c for row in rows for c in row.judged.comparisons}
    merged = []
    for title in titles(suite):
        lines = {
            line.defense: line for row in rows for c in row.judged.comparisons if c.title == title
            for line in c.lines if line.defense == row.row.defense
        }  # fmt: skip
        merged.append(Comparison(first[title].attack, (), tuple(lines.values()), first[title].part))
    return SuiteTable(tuple(merged), tuple(row.row for row in rows), tuple(sorted(suite.seeds)), {}, "")
