"""A matrix as one self-contained page with a heat map of stop rates, as a CSV file and as a parquet file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from thiefbench.provenance import now, provenance
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.line_scores import label_notes
from thiefbench.suite.analysis.matrix import MEASURES, TOLERATED, Column, DefenseRow, Matrix
from thiefbench.suite.report.rendering import render
from thiefbench.suite.report.shades import legend, shade
from thiefbench.suite.report.swarm_facts import facts
from thiefbench.suite.report.tables import Shown, headings, show, write_milliseconds, write_value
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import Record, Store, write_atomically, write_table

STOPS = 0.9
"""The headline counts tolerable defenses that reject at least this share of every attack's rewarded poison."""


NAMED = 3
"""Of defenses that stop equally much, the headline names so many."""
_PERCENT = f"{TOLERATED:.0%}".replace("%", "\u00a0%")
_GROUPS: dict[str, Callable[[DefenseRow], bool]] = {
    f"Reject at most {_PERCENT} of rewarded honest work": lambda row: (
        row.worst is not None and row.tolerable and not row.anchor
    ),
    f"Reject more than {_PERCENT} of rewarded honest work": lambda row: (
        row.worst is not None and not (row.tolerable or row.anchor)
    ),
    "Anchors, to compare with": lambda row: row.worst is not None and row.anchor,
    "Without a stop rate": lambda row: row.worst is None,
}


def write_matrix(store: Store, matrix: Matrix, suites: Sequence[Suite]) -> Path:
    """Write a matrix into the folder `matrix` of a store.

    Args:
        store: where it goes.
        matrix: what is shown.
        suites: what the pools came from.

    Returns:
        The page, index.html. Beside it: matrix.csv and matrix.parquet.
    """
    folder, named = store.output_folder("matrix"), headings(matrix.columns)
    html = render(
        "matrix.html.jinja",
        suites=suites,
        columns=[_column(matrix, column, heading) for column, heading in named.items()],
        groups=[
            {"title": title, "rows": [_row(row, named) for row in matrix.rows if belongs(row)]}
            for title, belongs in _GROUPS.items()
        ],
        choice=_choice(matrix, named),
        count=_count(matrix),
        shared=_shared_facts(matrix),
        tolerated=_PERCENT,
        several_seeds=len({pools.seed for pools in matrix.pools}) > 1,
        scale=legend(),
        making=_making(matrix, suites),
    )
    lines = table(matrix)
    text = csv_of([lines.column_names, *zip(*lines.to_pydict().values(), strict=True)])
    write_atomically(folder / "matrix.csv", text.encode("utf-8", "replace"))
    write_table(folder / "matrix.parquet", lines)
    write_atomically(folder / "index.html", html.encode("utf-8", "replace"))
    return folder / "index.html"


def table(matrix: Matrix) -> pa.Table:
    """One line per defense, attack and seed, unrounded; missing numbers are null."""
    lines: list[dict[str, Any]] = []
    for entry in matrix.entries:
        line: dict[str, Any] = {name: getattr(entry, name) for name in ("suite", "attack", "seed", "defense")}
        for measure in MEASURES:
            score = entry.score(measure)
            line |= {measure: score.value, f"{measure}_low": score.low, f"{measure}_high": score.high}
            line[f"{measure}_count"] = score.count
        line["milliseconds_per_completion"] = entry.milliseconds
        line |= {"rounds": " ".join(map(str, entry.rounds)), "problem": entry.problem}
        lines.append(line)
    return pa.table({name: pa.array([line[name] for line in lines], _kind(name)) for name in lines[0]})


def _column(matrix: Matrix, column: Column, heading: str) -> dict[str, Any]:
    """What the page says of an attack."""
    pools = [each for each in matrix.pools if (each.suite, each.attack) == (column.suite, column.attack)]
    records = [each.attacked for each in pools if each.attacked is not None and each.attacked.status == "ok"]
    failed = [(each.seed, each.attacked.error) for each in pools if each.attacked and each.attacked.status == "error"]
    return {
        "heading": heading,
        "attack": column.attack,
        "suite": column.suite,
        "payloads": list(dict.fromkeys(tuple(record.payload.items()) for record in records if record.payload)),
        "facts": [fact for fact in _facts(records) if fact not in _shared_facts(matrix)],
        "seeds": [each.seed for each in pools],
        "failed": failed,
    }


def _facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the swarms of an attack were like."""
    return facts(records[0].cell) if records else []


def _shared_facts(matrix: Matrix) -> list[tuple[str, str]]:
    """What all attacks' swarms have in common; nothing where there is one attack."""
    records: dict[Column, list[Record]] = {}
    for each in matrix.pools:
        if each.attacked is not None and each.attacked.status == "ok":
            records.setdefault(Column(each.suite, each.attack), []).append(each.attacked)
    every = [_facts(of_column) for of_column in records.values()]
    return [fact for fact in every[0] if all(fact in other for other in every)] if len(every) > 1 else []


def _row(row: DefenseRow, named: dict[Column, str]) -> dict[str, Any]:
    """A defense as the table shows it."""
    rates = row.stop_rates
    fields = [
        {"heading": heading, "shown": show(row.scores("stop_rate", column), "rate"), "style": shade(rates[column])}
        if column in rates
        else {"heading": heading, "shown": None, "style": ""}
        for column, heading in named.items()
    ]
    judged = dict.fromkeys(entry.rounds for entry in row.entries if entry.rounds)
    return {
        "defense": row.defense,
        "notes": label_notes(row.defense),
        "rounds": "; ".join(_rounds(each) for each in judged),
        "fields": fields,
        "worst": _worst(row, named),
        "false_rejection": show(row.scores("false_rejection_rate"), "rate"),
        "rejects_much": not row.tolerable,
        "placebo_rejection": show(row.scores("placebo_rejection_rate"), "rate"),
        "milliseconds": write_milliseconds(row.milliseconds),
        "problems": row.problems,
    }


def _worst(row: DefenseRow, named: dict[Column, str]) -> Shown | None:
    """The lowest stop rate, and where."""
    if row.worst is None:
        return None
    shown = show(row.scores("stop_rate", row.worst), "rate")
    return shown and Shown(shown.value, named[row.worst] if len(named) > 1 else "")


def _rounds(numbers: tuple[int, ...]) -> str:
    """Consecutive rounds as a range, others one by one."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"rounds {numbers[0]} to {numbers[-1]}"
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _choice(matrix: Matrix, named: dict[Column, str]) -> dict[str, Any] | None:
    """The defenses that a user would choose, equal ones together; None where none stops anything at its price."""
    rows = [row for row in matrix.rows if row.tolerable and not row.anchor and row.worst is not None and row.lowest > 0]
    if not rows:
        return None
    best = rows[0]
    lowest = write_value(best.lowest, "rate")
    whole = len(best.stop_rates)
    equal = [row for row in rows if len(row.stop_rates) == whole and write_value(row.lowest, "rate") == lowest]
    alone = len(equal) == 1 and best.worst is not None and len(set(best.stop_rates.values())) > 1
    return {
        "defenses": [(row.defense, write_value(row.wrongly_rejected[0], "rate")) for row in equal[:NAMED]],
        "more": len(equal) - len(equal[:NAMED]),
        "lowest": lowest,
        "worst": named[best.worst] if alone and best.worst is not None else "",
        "several": len(named) > 1,
    }


def _count(matrix: Matrix) -> str:
    """How many defenses stop every attack; empty where only anchors are shown."""
    rows = [row for row in matrix.rows if not row.anchor]
    if not rows:
        return ""
    columns = matrix.measured
    whole = [row for row in rows if columns and len(row.stop_rates) == len(columns) and row.lowest >= STOPS]
    count = sum(row.tolerable for row in whole)
    poison = f"{'every' if len(columns) > 1 else 'the'} attack's rewarded poison"
    rule = f"Defenses that reject at least {STOPS:.0%} of {poison} and at most {TOLERATED:.0%} of rewarded honest work"
    return f"{rule}: {count} of {len(rows)}".replace("%", "\u00a0%")


def _making(matrix: Matrix, suites: Sequence[Suite]) -> list[tuple[str, str]]:
    """Where the pools came from, and what the defenses ran on."""
    records = [each.attacked for each in matrix.pools if each.attacked is not None]
    revisions = dict.fromkeys(str(record.identity.get("engine_revision", "unknown")) for record in records)
    device = records[0].cell["device"] if records else "cpu"
    here = provenance(device, records[0].cell["threads"] if records else 1)
    machine = f"{here['processor']}, {here['cores']} cores, {here['threads']} threads"
    return [
        *((f"Fingerprint of {suite.title}", suite.fingerprint()) for suite in suites),
        ("Engine revision", "; ".join(revisions)),
        ("Judged on", machine if device == "cpu" else f"{machine} and {here['device_name']}"),
        ("Libraries", ", ".join(f"{name} {here[name]}" for name in ("thiefbench", "torch", "transformers", "numpy"))),
        ("Judged", now()),
    ]


def _kind(column: str) -> pa.DataType:
    if column in ("suite", "attack", "defense", "rounds", "problem"):
        return pa.string()
    return pa.int64() if column == "seed" or column.endswith("_count") else pa.float64()
