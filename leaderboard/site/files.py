"""The board as data: board.json, and board.csv with the same numbers in one line per row."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from thiefbench.leaderboard.site.attacks import JudgedAttack
from thiefbench.leaderboard.site.board import Board, BoardRow, SuiteBoard
from thiefbench.leaderboard.site.judging import JudgedEntry
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.statistics import Summary
from thiefbench.suite.report.tables import short_names

BOARD_SCHEMA = 2


def board_data(board: Board) -> dict[str, Any]:
    """The board as plain data, numbers unrounded; a missing one is None.

    Limits are 95 % intervals ("interval"), the range of fewer seeds ("range"), or None where all seeds are equal
    ("equal").
    """
    return {
        "schema_version": BOARD_SCHEMA,
        "suites": [_suite(each) for each in board.suites],
        "broken": [{"folder": folder, "reason": reason} for folder, reason in board.broken],
    }


def board_json(data: dict[str, Any]) -> bytes:
    """`board_data` as JSON."""
    return (json.dumps(data, indent=1) + "\n").encode()


def board_csv(data: dict[str, Any]) -> str:
    """`board_data` as CSV: a line for every row of every suite, then those for entries without a row."""
    titles = list(dict.fromkeys(each["title"] for suite in data["suites"] for each in suite["attacks"]))
    lines: list[dict[str, Any]] = []
    for suite in data["suites"]:
        lines += [_line(suite["suite"], row) for row in suite["rows"]]
        lines += [{"suite": suite["suite"], **apart, "status": "apart"} for apart in suite["apart"]]
    lines += [{"slug": each["folder"], "status": "apart", "reason": each["reason"]} for each in data["broken"]]
    head = [*_HEAD, *(f"{title}: {name}" for title in titles for name in _FIELD)]
    return csv_of([head, *([line.get(name) for name in head] for line in lines)])


def _suite(board: SuiteBoard) -> dict[str, Any]:
    names = short_names([comparison.attack for comparison in board.table.comparisons])
    return {
        "suite": board.suite.title,
        "fingerprint": board.suite.fingerprint(),
        "seeds": list(board.table.seeds),
        "not_ranked": board.table.why_no_places,
        "ranking": asdict(board.suite.ranking),
        "attacks": [
            {"title": c.title, "part": c.part, "attack": c.attack, "heading": name}
            for c, name in zip(board.table.comparisons, names, strict=True)
        ],
        "rows": [_row(row) for row in board.rows],
        "attacks_by_outsiders": [_attack(judged) for judged in board.attacks],
        "apart": [
            {"slug": of.entry.manifest.slug, "name": of.entry.manifest.name, "trust": of.trust, "reason": why}
            for of, why in board.apart
        ],
    }  # fmt: skip


def _attack(judged: JudgedAttack) -> dict[str, Any]:
    manifest = judged.entry.manifest
    return {
        **{name: getattr(manifest, name) for name in ("slug", "name", "paper", "attack")},
        "authors": list(manifest.authors),
        "threat": manifest.threat.model_dump(mode="json"),
        "trust": judged.trust,
        "since": judged.since.isoformat(),
        "results": [
            asdict(each) | {"prevented": _summary(each.prevented), "cost": dict(each.cost)} for each in judged.results
        ],
    }


def _row(row: BoardRow) -> dict[str, Any]:
    manifest, numbers, place = row.judged.entry.manifest, row.row, row.row.place
    verified = row.judged.verification.verified.isoformat() if row.judged.verification else None
    entrant: dict[str, Any] = {
        "slug": None,
        "name": place.defense,
        "authors": [],
        "paper": "",
        "defense": place.defense,
    }
    if row.own:
        entrant = {name: getattr(manifest, name) for name in ("slug", "name", "paper", "defense")}
        entrant["authors"] = list(manifest.authors)
    slower = numbers.cost if numbers.cost and numbers.cost.slowdown else None
    return {
        **entrant,
        "measured_by": manifest.slug,
        "trust": row.judged.trust,
        "verified": verified,
        "flags": [{"name": flag.name, "said": flag.meaning} for flag in row.flags],
        "status": "provisional" if row.provisional else place.status,
        "place": place.number,
        "tied": numbers.tied,
        "reason": place.reason,
        "worst_case": _summary(place.worst.summary if place.worst else None),
        "worst_attack": place.worst and place.worst.attack,
        "best_known": _summary(row.best.summary if row.best else None),
        "best_known_attack": row.best and row.best.attack,
        "best_known_by": row.best and row.best.by and row.best.by.entry.manifest.slug,
        "utility": _summary(numbers.utility),
        "false_rejection": numbers.false_rejection and numbers.false_rejection.value,
        "false_rejection_where": numbers.false_rejection
        and f"{numbers.false_rejection.where}, seed {numbers.false_rejection.seed}",
        "drift": numbers.drift and numbers.drift.value,
        "drift_where": numbers.drift and f"{numbers.drift.where}, seed {numbers.drift.seed}",
        "round_ratio": slower and slower.slowdown and slower.slowdown.mean,
        "round_added_ms": slower and slower.added and slower.added.mean,
        "round_where": slower and slower.comparison,
        "attacks": {
            title: {
                "harm_prevented": _summary(field.prevented),
                "undefended": field.undefended,
                "defended": field.defended,
                "chosen": list(field.chosen),
                "problem": field.problem,
            }
            for title, field in numbers.fields.items()
        },
        "submitted": manifest.submitted.isoformat() if row.own else None,
        "entry_sha256": row.judged.entry.sha256 if row.own else None,
        "archive_sha256": manifest.archive.sha256 if row.own else None,
        "seeds": list(manifest.seeds),
        "all_seeds": not row.judged.partial,
        "deliveries": _deliveries(row.judged) if row.own else [],
    }


def _deliveries(judged: JudgedEntry) -> list[dict[str, Any]]:
    """Which seeds were brought when, and how far they were verified."""
    return [
        {
            "seeds": list(each.seeds),
            "submitted": each.submitted.isoformat(),
            "archive_sha256": each.archive.sha256,
            "trust": trust,
            "verified": verified and verified.isoformat(),
        }
        for each, trust, verified in judged.deliveries
    ]


def _summary(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    equal = summary.kind == "equal"
    return {
        "mean": summary.mean,
        "low": None if equal else summary.low,
        "high": None if equal else summary.high,
        "limits": summary.kind,
        "good_seeds": summary.count and summary.count.good,
        "counted_seeds": summary.count and summary.count.seeds,
        "least_share_of_good_seeds": summary.count and summary.count.least_share,
        "by_seed": {str(seed): value for seed, value in summary.points},
    }


_PLAIN = (
    "slug", "name", "paper", "defense", "measured_by", "trust", "verified", "status", "place", "tied", "reason",
    "worst_attack", "false_rejection", "false_rejection_where", "drift", "drift_where", "round_ratio", "round_added_ms",
    "round_where", "submitted", "entry_sha256", "archive_sha256",
)  # fmt: skip
_LISTED = ("authors", "flags")
_SEEDS = ("seeds", "all_seeds")
_SUMMARISED = ("worst_case", "utility")
_ENDS = {
    "": "mean", "_low": "low", "_high": "high", "_good_seeds": "good_seeds", "_counted_seeds": "counted_seeds",
    "_least_share_of_good_seeds": "least_share_of_good_seeds",
}  # fmt: skip
_HEAD = ("suite", *_PLAIN, *_LISTED, *(f"{name}{end}" for name in _SUMMARISED for end in _ENDS), *_SEEDS)
_FIELD = (*(f"harm_prevented{end}" for end in _ENDS), "undefended", "defended", "problem", "chosen")


def _line(suite: str, row: dict[str, Any]) -> dict[str, Any]:
    line = {"suite": suite} | {name: row[name] for name in _PLAIN}
    line |= {"seeds": "; ".join(map(str, row["seeds"])), "all_seeds": row["all_seeds"]}
    line |= {"authors": "; ".join(row["authors"]), "flags": "; ".join(flag["name"] for flag in row["flags"])}
    for name in _SUMMARISED:
        line |= _numbers(name, row[name])
    for title, field in row["attacks"].items():
        line |= _numbers(f"{title}: harm_prevented", field["harm_prevented"])
        line |= {f"{title}: {name}": field[name] for name in ("undefended", "defended", "problem")}
        line[f"{title}: chosen"] = "; ".join(field["chosen"])
    return line


def _numbers(name: str, summary: dict[str, Any] | None) -> dict[str, Any]:
    return {f"{name}{end}": summary and summary[part] for end, part in _ENDS.items()}
