"""Writes the site to a folder: pages that work from the file system, and the data files beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thiefbench import __version__
from thiefbench.leaderboard.published import SHARED
from thiefbench.leaderboard.site.attack_page import shown_attack, shown_result
from thiefbench.leaderboard.site.attacks import JudgedAttack, broken_by, holds_back, verdict_on
from thiefbench.leaderboard.site.board import (
    Board,
    BoardRow,
    SuiteBoard,
    board_of,
    each_alone,
    folders_of,
    read_all,
    read_attacks,
)
from thiefbench.leaderboard.site.entry_page import shown_entry
from thiefbench.leaderboard.site.files import board_csv, board_data, board_json
from thiefbench.leaderboard.site.index_page import FLAGS, in_words, page_of, rank_of, shown_suite
from thiefbench.leaderboard.site.judging import JudgedEntry
from thiefbench.leaderboard.site.markdown import board_markdown
from thiefbench.leaderboard.site.rendering import render
from thiefbench.suite.report.shades import legend
from thiefbench.suite.report.tables import show_summary
from thiefbench.suite.store.records import write_atomically


def write_site(
    folder: Path,
    entries: Path,
    verified: Path,
    shared: Path = SHARED,
    progress: Callable[[int, int], None] = lambda done, total: None,
    readme: Path | None = None,
) -> Board:
    """Write index.html, a page for each entry, board.json and board.csv.

    Equal entries and verifications give equal bytes. Pages of entries that are gone are removed.

    Args:
        folder: of the site; made where it is not there.
        entries: folder of entries.
        verified: folder of verifications.
        shared: folder of the published cells that entries may refer to.
        progress: called with (done, total) steps; each entry is read and then shown.
        readme: a file for the tables as Markdown, in the folder that holds the folder of entries.

    Returns:
        The board that was written; entries that could not be shown are its `broken`.

    Raises:
        EntryError: there is no folder of entries.
    """
    done, total = itertools.count(1), 2 * len(folders_of(entries))

    def count() -> None:
        progress(next(done), total)

    judged_entries, unread = read_all(entries, verified, shared, count)
    judged_attacks, attacks_unread = read_attacks(entries, verified, count)
    shown, unshown = each_alone(judged_entries, shown_entry, count)
    attacks, attacks_unshown = each_alone(judged_attacks, shown_attack, count)
    board = board_of(
        [judged_entries[name] for name in shown],
        sorted([*unread, *unshown, *attacks_unread, *attacks_unshown]),
        [judged_attacks[name] for name in attacks],
    )
    data = board_data(board)
    pages = {
        page_of(slug := each.entry.manifest.slug): _entry(suite, each, shown[slug])
        for suite in board.suites
        for each in _shown(suite)
    }
    pages |= {
        page_of(slug := each.entry.manifest.slug): _attack(suite, each, attacks[slug])
        for suite in board.suites
        for each in suite.attacks
    }
    suites = [shown_suite(suite, number) for number, suite in enumerate(board.suites, 1)]
    pages["index.html"] = render(
        "index.html.jinja", ("theme.js", "table.js") if board.suites else ("theme.js",), suites=suites,
        broken=board.broken, attacks=in_words(board.suites), scale=legend(), flags=FLAGS, version=__version__,
    )  # fmt: skip
    pages |= {"board.json": board_json(data), "board.csv": board_csv(data).encode("utf-8", "backslashreplace")}
    for stale in (folder / "entries").glob("*.html"):
        if page_of(stale.stem) not in pages:
            stale.unlink()
    for name, content in pages.items():
        write_atomically(folder / name, content)
    if readme is not None:
        write_atomically(readme, board_markdown(suites, entries.resolve().name).encode("utf-8", "backslashreplace"))
    return board


def _shown(suite: SuiteBoard) -> list[JudgedEntry]:
    """Every entry of a suite that has a page, those without a row as well."""
    return [*(row.judged for row in suite.rows if row.own), *(judged for judged, _ in suite.apart)]


def _entry(suite: SuiteBoard, judged: JudgedEntry, shown: Mapping[str, Any]) -> bytes:
    row = next((row for row in suite.rows if row.own and row.judged is judged), None)
    apart = next((reason for each, reason in suite.apart if each is judged), "")
    claim = _claim(row, suite) if row else f"It has no row on the board: {apart}."
    flags = row.flags if row else ()
    return render(
        "entry.html.jinja", ("theme.js",), **shown, claim=claim, flags=flags, scale=legend(), version=__version__
    )


def _attack(suite: SuiteBoard, judged: JudgedAttack, shown: Mapping[str, Any]) -> bytes:
    rows = {row.judged.entry.manifest.slug: row for row in suite.rows if row.own}
    results, beaten = [], []
    for result in judged.results:
        row = rows.get(result.target)
        broke = row is not None and any(each is judged for each, _ in broken_by(row.judged, suite.attacks))
        worst = row.row.place.worst if row else None
        if broke and row is not None:
            beaten.append(row.judged.entry.manifest.name)
        held_back = row is not None and holds_back(row.judged, result)
        verdict = verdict_on(result, None if worst is None else worst.summary.mean, held_back, suite.suite.ranking.good)
        page = page_of(result.target) if row else ""
        results.append(
            shown_result(result)
            | {"defense": row.judged.entry.manifest.name if row else result.target, "page": page, "verdict": verdict,
               "worst": worst and show_summary(worst.summary, "ratio")}
        )  # fmt: skip
    claim = f"It breaks {', '.join(dict.fromkeys(beaten))}." if beaten else "It breaks no listed defense."
    if not judged.counts:
        checked = judged.trust == "rescored"
        why = "Its cells were not run again" if checked else "Its numbers were not checked"
        claim = f"{why}, so it counts against no defense."
    return render("attack.html.jinja", ("theme.js",), **shown, claim=claim, results=results, version=__version__)


def _claim(row: BoardRow, suite: SuiteBoard) -> str:
    """An entry's result, in one sentence."""
    place, worst = row.row.place, ""
    if place.worst:
        prevented = show_summary(place.worst.summary, "ratio").value
        worst = f"in its worst case, the attack {place.worst.attack}, it prevents {prevented} of the harm"
        if place.worst.summary.kind != "range" and place.worst.summary.count:
            worst += f", and it held against every attack of the suite at {place.worst.summary.count.text()}"
    if place.number is not None:
        ranked = sum(each.row.place.number is not None and each.provisional <= row.provisional for each in suite.rows)
        counted = ", counting self-reported rows" if row.provisional else ""
        return f"Place {rank_of(row)} of {ranked}{counted}: {worst}."
    anchor = "it is an anchor, a row for comparison" if place.status == "anchor" else ""
    why = place.reason or anchor or suite.table.why_no_places
    return f"Not ranked: {'; '.join(filter(None, (why, worst)))}."
