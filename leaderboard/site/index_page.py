"""The values of the front page's template: every suite's table, with the values that it can be sorted by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from thiefbench import registry
from thiefbench.leaderboard.deliveries import apart_from_published
from thiefbench.leaderboard.published import all_made_with
from thiefbench.leaderboard.site.answers import answers, breaks_first, no_ranks_yet, worst_first
from thiefbench.leaderboard.site.attack_page import shown_result
from thiefbench.leaderboard.site.attacks import ATTACK_FLAGS, JudgedAttack
from thiefbench.leaderboard.site.board import (
    MEANS,
    NAIVE,
    NAMESAKE,
    NEVER_RUN,
    NEVER_RUN_MEANS,
    NO_BETTER,
    BoardRow,
    SuiteBoard,
    trust_order,
)
from thiefbench.suite.report.drawing import embed
from thiefbench.suite.report.suite_files import LEARNS_LESS, shown_table, write_rank
from thiefbench.suite.report.tables import show_summary
from thiefbench.suite.report.tradeoff import draw_tradeoff
from thiefbench.suite.report.unseen_notice import unseen_note

NAMED = 3
"""So many authors are named in a row; the entry's page names all."""

_FIXED = (
    ("rank", "Rank", "number", "up"), ("defense", "Defense", "text", "up"), ("trust", "Trust", "number", "up"),
    ("worst", "Worst case", "number", "down"), ("utility", "Utility", "number", "down"),
    ("rejection", "False rejection", "number", "up"), ("time", "Round time", "number", "up"),
    ("drift", "Drift", "number", "up"),
)  # fmt: skip
"""Key, name, kind and the direction of the first click; drift is left out where no entry says it."""

FLAGS = (
    *MEANS.items(),
    (NAIVE, "it prevents less harm from an attack than from the same attack adapted to it"),
    (
        LEARNS_LESS,
        "under an attack its models keep less of the clean gain than undefended ones, by more than the margin",
    ),
    (
        NO_BETTER,
        "it has a place, as it keeps its utility, but in its worst case it prevents less than 0.1 of the harm, even at "
        "the interval's upper limit",
    ),
    *ATTACK_FLAGS,
    (NEVER_RUN, NEVER_RUN_MEANS),
    (NAMESAKE, "the name of another entry of the suite looks the same; their folders tell them apart"),
)


def page_of(slug: str) -> str:
    """The path of an entry's page in the site."""
    return f"entries/{slug}.html"


def in_words(boards: Iterable[SuiteBoard]) -> dict[str, str]:
    """What every attack does of which a column's name is made, in the order of the columns; of declared attacks."""
    specs = [attack for board in boards for part in board.suite.scenes for attack in part.attacks]
    targets = dict.fromkeys(
        target for spec in specs for kind, target in registry.named_in("attack", spec) if kind == "attack"
    )
    return {target: registry.summary("attack", target).replace("`", "") for target in targets if ":" not in target}


def shown_suite(board: SuiteBoard, number: int) -> dict[str, Any]:
    """The template's values of a suite, the `number`-th on the page."""
    table = shown_table(board.table)
    order = worst_first(board)
    fixed = [
        column for column in _fixed_columns(ranks=table["ranks"]) if column["key"] != "drift" or table["has_drift"]
    ]
    worst = [column["key"] for column in fixed].index("worst") + 1
    attacks = [_attack_column(table["columns"][at], at + 1) for at in order]
    names = {row.judged.label: row.judged.entry.manifest.name for row in board.rows if row.own}
    rows = [_row(row, shown, table, order, names) for row, shown in zip(board.rows, table["rows"], strict=True)]
    firsts = [at for at, row in enumerate(board.rows) if row.row.place.number == 1 and not row.provisional]
    tradeoff = draw_tradeoff(board.table, f"ThiefBench {board.suite.title}", names)
    return {
        "id": board.suite.title,
        "title": board.suite.title,
        "about": board.suite.about,
        "superseded": board.suite.superseded,
        "fingerprint": board.suite.fingerprint(),
        "has_drift": table["has_drift"],
        "fixed": len(fixed) + (not table["ranks"]),  # every row has a sort value for its rank
        "columns": [*fixed[:worst], *attacks, *fixed[worst:]],  # the worst case stands beside those that it is of
        "answers": answers(board, table["names"]),
        "rows": rows,
        "firsts": [rows[at] for at in firsts],
        "broken": breaks_first([board.rows[at] for at in firsts], board.attacks),
        "unclaimed": "" if firsts else _unclaimed(board, table["unranked"]),
        "ranks": table["ranks"],
        "apart": [
            {
                "name": judged.entry.manifest.name,
                "page": page_of(judged.entry.manifest.slug),
                "trust": judged.trust,
                "reason": reason,
            }
            for judged, reason in board.apart
        ],
        "attacks": [_attack(judged, board) for judged in board.attacks],
        "tradeoff": tradeoff and {"svg": Markup(embed(tradeoff, f"suite{number}")), "note": tradeoff.note},
    }


def _unclaimed(board: SuiteBoard, unranked: str) -> str:
    """Why no row whose numbers were checked holds the first place, in one or two sentences."""
    if unranked:
        return f"Nothing is ranked here: {unranked}."
    if any(row.row.place.number is not None and not row.provisional for row in board.rows):
        return "First place is empty: in its worst case, no defense can be told apart from one that prevents nothing."
    return no_ranks_yet(board)


def _attack(judged: JudgedAttack, board: SuiteBoard) -> dict[str, Any]:
    """An outsider's attack, for the list below the table."""
    manifest = judged.entry.manifest
    names = {row.judged.entry.manifest.slug: row.judged.entry.manifest.name for row in board.rows if row.own}
    return {
        "name": manifest.name,
        "page": page_of(manifest.slug),
        "authors": _authors(manifest.authors),
        "trust": judged.trust,
        "flags": [flag] if (flag := board.namesakes.get(manifest.slug)) else [],
        "since": judged.since.isoformat(),
        "threat": "; ".join(manifest.threat.in_words()),
        "results": [shown_result(each) | {"defense": names.get(each.target, each.target)} for each in judged.results],
    }


def _best(row: BoardRow) -> dict[str, Any] | None:
    """The best-known worst case, where it is an outsider's."""
    if row.best is None or row.best.by is None:
        return None
    manifest = row.best.by.entry.manifest
    return {
        "value": show_summary(row.best.summary, "ratio").value,
        "name": manifest.name,
        "page": page_of(manifest.slug),
        "since": row.best.by.since.isoformat(),
    }


def _row(
    row: BoardRow,
    shown: Mapping[str, Any],
    table: Mapping[str, Any],
    order: Sequence[int],
    called: Mapping[str, str],
) -> dict[str, Any]:
    manifest, place = row.judged.entry.manifest, row.row.place
    return {
        **shown,
        "fields": [shown["fields"][at] for at in order],
        "seeds": row.seeds,
        "name": manifest.name if row.own else place.defense,
        "authors": _authors(manifest.authors) if row.own else "",
        "defense": manifest.defense if row.own else "",
        "slug": manifest.slug if row.own else "",
        "page": page_of(manifest.slug) if row.own else "",
        "trust": row.judged.trust,
        "provisional": row.provisional,
        "place": place.number,
        "held": place.worst and place.worst.summary.count and place.worst.summary.count.plain(),
        "rank": rank_of(row),
        "status": "unranked" if place.status == "inconclusive" or row.seeds else place.status,
        "why_unranked": place.reason if place.status == "unranked" else "",
        "flags": row.flags,
        "outside_code": row.own and bool(row.judged.entry.source),
        "best": _best(row),
        "other_processor": bool(apart_from_published(row.judged.entry)),
        "footnotes": _footnotes(row, shown["footnotes"], table["names"], called),
        "sorts": _sorts(row, table["has_drift"], order),
    }


def rank_of(row: BoardRow) -> str:
    """A row's place as text, in brackets if nobody checked its numbers."""
    place = row.row.place
    if place.status in ("unranked", "inconclusive"):
        return place.status
    return f"({write_rank(row.row)})" if row.provisional else write_rank(row.row)


def _footnotes(row: BoardRow, notes: list[str], names: Mapping[str, str], called: Mapping[str, str]) -> list[str]:
    """The notes below a row, with the reason for a shared place, or for having no worst case, and unseen harm.

    Args:
        row: of the board.
        notes: of the same row of a report.
        names: of the attacks, by the comparison's title.
        called: the entries' names by their rows' labels.
    """
    place = row.row.place
    lacking = place.status == "inconclusive" or (place.status == "unplaced" and place.worst is None)
    reason = [place.reason] if place.reason and (place.number is not None or lacking) else []
    if place.leader in called:
        reason = [place.reason.replace(place.leader, f"\u201c{called[place.leader]}\u201d", 1)]
    if (entry := row.judged.entry).shared_set:
        how = all_made_with(entry.published.values())
        reason.append(f"measured against the published cells that were made with {how}")
    unseen = unseen_note(row.judged.comparisons, row.row.defense, names)
    return [*reason, *notes, *([unseen] if unseen else []), *(f"{flag.name}: {flag.meaning}" for flag in row.flags)]


def _sorts(row: BoardRow, has_drift: bool, order: Sequence[int]) -> list[str]:
    """The sort value of every column; empty where there is none."""
    numbers = row.row
    slowdown = numbers.cost.slowdown if numbers.cost else None
    name = row.judged.entry.manifest.name if row.own else numbers.defense
    prevented = [field.prevented for field in numbers.fields.values()]
    values = [
        numbers.place.number, name.casefold(), trust_order(row.judged.trust),
        numbers.place.worst and numbers.place.worst.summary.mean, numbers.utility and numbers.utility.mean,
        numbers.false_rejection and numbers.false_rejection.value, slowdown and slowdown.mean,
        *([numbers.drift and numbers.drift.value] if has_drift else []),
        *(each and each.mean for each in (prevented[at] for at in order)),
    ]  # fmt: skip
    return ["" if value is None else str(value) for value in values]


def _authors(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _fixed_columns(ranks: bool) -> list[dict[str, str]]:
    return [
        {"key": key, "name": name, "kind": kind, "first": first, "attack": "", "note": ""}
        for key, name, kind, first in _FIXED
        if ranks or key != "rank"
    ]


def _attack_column(column: Mapping[str, Any], number: int) -> dict[str, str]:
    return {
        "key": f"attack-{number}", "name": column["heading"], "kind": "number", "first": "down",
        "attack": column["attack"], "note": column["part"],
    }  # fmt: skip
