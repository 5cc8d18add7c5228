"""The suite's table in writing: for the page, as a CSV file and as a LaTeX table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.line_scores import label_notes
from thiefbench.suite.analysis.measures import Unit
from thiefbench.suite.analysis.statistics import Summary
from thiefbench.suite.report.overview import Field, HighestRate, SuiteRow, SuiteTable
from thiefbench.suite.report.shades import shade
from thiefbench.suite.report.tables import (
    NBSP,
    Shown,
    minus,
    short_names,
    show_summary,
    tex,
    tex_shown,
    tex_table,
    write_value,
)
from thiefbench.suite.report.timings import Cost
from thiefbench.tasks.text import printable
from thiefbench.wording import counted

LEARNS_LESS = "learns less than undefended when attacked"
"""What a row is marked with whose models learn less under an attack than undefended ones."""

Numbers = tuple[float | None, float | None, float | None]


def shown_table(table: SuiteTable) -> dict[str, Any]:
    """What the page shows of a suite's table."""
    names = _names(table)
    shown = [_shown_row(row, table, names) for row in table.rows]
    scored = [
        (row.place.worst.summary.mean, number)
        for number, row in enumerate(table.rows)
        if row.place.worst and row.place.status != "anchor"
    ]
    return {
        "columns": [
            {"heading": names[c.title], "attack": c.attack, "part": c.part, "doubt": table.doubts.get(c.title, "")}
            for c in table.comparisons
        ],
        "rows": shown,
        "best": shown[max(scored)[1]] if scored else None,
        "least": shown[min(scored)[1]] if scored else None,
        "seeds": len(table.seeds),
        "unranked": table.why_no_places,
        "ranks": any(row.place.status not in ("anchor", "unplaced") for row in table.rows),
        "firsts": [row for row in table.rows if row.place.number == 1],
        "names": names,
        "has_utility": any(row.utility for row in table.rows),
        "has_drift": any(row.drift for row in table.rows),
    }


def _shown_row(row: SuiteRow, table: SuiteTable, names: Mapping[str, str]) -> dict[str, Any]:
    worst = row.place.worst
    return {
        "defense": row.defense,
        "anchor": row.place.status == "anchor",
        "untrained": row.untrained,
        "notes": label_notes(row.defense),
        "rank": write_rank(row),
        "worst": worst and show_summary(worst.summary, "ratio"),
        "worst_attack": names[worst.attack] if worst and len(names) > 1 else "",
        "utility": row.utility and show_summary(row.utility, "ratio"),
        "false_rejection": row.false_rejection and _shown_rate(row.false_rejection, names),
        "drift": row.drift and _shown_rate(row.drift, names),
        "cost": row.cost and shown_cost(row.cost),
        "fields": [_shown_field(row.fields[c.title], c.title in table.doubts) for c in table.comparisons],
        "footnotes": [*([row.reason] if row.reason else []), *row.problems],
        "lost": f"{LEARNS_LESS}: {lost}" if (lost := write_lost(row, names)) else "",
    }


def write_lost(row: SuiteRow, names: Mapping[str, str]) -> str:
    """Under which attacks a row's models learn less than undefended ones, in one clause; empty where under none.

    Args:
        row: of the table.
        names: of the attacks, by the comparison's title; one attack alone is not named.
    """
    if not row.lost:
        return ""
    most = min(row.lost, key=lambda each: each.defended.mean - each.undefended.mean)
    kept, undefended = (write_value(each.mean, "ratio") for each in (most.defended, most.undefended))
    under = f"under {names[most.title]} " if len(names) > 1 else ""
    others = ", ".join(names[each.title] for each in row.lost if each is not most)
    more = f"; likewise under {others}" if others else ""
    return f"{under}its models keep {kept} of the clean gain, and undefended ones {undefended}{more}"


def _shown_rate(rate: HighestRate, names: Mapping[str, str]) -> Shown:
    """The largest rate of several cells, and where it is."""
    return Shown(write_value(rate.value, "rate"), f"{names.get(rate.where, 'no attack')}, seed {rate.seed}")


def _shown_field(field: Field, doubtful: bool) -> dict[str, Any] | None:
    """A field in writing, coloured unless its attack is in doubt; None without a number."""
    if field.prevented is None:
        return None
    style = "" if doubtful else shade(min(max(field.prevented.mean, 0.0), 1.0))
    chosen = printable(", ".join(field.chosen))
    return {
        "shown": show_summary(field.prevented, "ratio"),
        "outcomes": _outcomes(field),
        "chosen": chosen,
        "style": style,
    }


def _outcomes(field: Field) -> str:
    """The attack's outcome without the defense and with it."""
    both = [value for value in (field.undefended, field.defended) if value is not None]
    return " \u2192 ".join(write_value(value, "rate", max(both) <= 1) for value in both)


def shown_cost(cost: Cost) -> Shown | None:
    """How much longer a round takes than undefended; None if the inspection does not explain it."""
    if cost.slowdown is None or cost.added is None:
        return None
    added = minus(f"{cost.added.mean:+z.0f}")
    return Shown(f"\u00d7{NBSP}{write_value(cost.slowdown.mean, 'ratio')}", f"{added}{NBSP}ms")


def shown_costs(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """The costs of defenses as the page shows them; nothing where no cell was timed."""

    def shown(cost: Cost) -> list[Shown | None]:
        numbers: list[tuple[Summary | None, Unit]] = [
            (cost.seconds, "seconds"),
            (cost.slowdown, "ratio"),
            (None if cost.slowdown is None else cost.added, "milliseconds"),
            (cost.inspect, "seconds"),
        ]
        return [None if summary is None else show_summary(summary, unit) for summary, unit in numbers]

    return [
        {
            "defense": c.defense, "comparison": c.comparison, "elsewhere": c.elsewhere, "shown": shown(c),
            "withheld": c.withheld,
        }
        for c in costs
        if c.seconds
    ]  # fmt: skip


def write_rank(row: SuiteRow) -> str:
    """A place, with a sign where it is shared; for what has none, a dash or the word for it."""
    if row.place.number is not None:
        return f"{row.place.number}{'=' if row.tied else ''}"
    return "unranked" if row.place.status == "unranked" and row.place.reason else "\u2013"


def suite_csv(run: Mapping[str, Any], table: SuiteTable) -> str:
    """One line per defense, unrounded; limits of five and more seeds are 95 % intervals, of fewer their range.

    Where all seeds are equal there are none. `good_seeds` is at how many of them a value is good enough.
    """
    head = ["suite", "defense", "status", "place", "tied", "reason", "worst_attack"]
    measures = ["worst_case", "utility"]
    cells = ["false_rejection", "false_rejection_where", "drift", "drift_where"]
    cells += ["round_ratio", "round_added_ms", "round_ratio_where"]
    per_attack = ("harm_prevented", "harm_prevented_low", "harm_prevented_high", "undefended", "defended", "problem")
    heads = [
        *head, *(f"{m}{end}" for m in measures for end in ("", "_low", "_high")), *cells, "limits", "seeds",
        "good_seeds", "least_share_of_good_seeds",
        *(f"{c.title}: {name}" for c in table.comparisons for name in per_attack),
    ]  # fmt: skip
    lines: list[list[object]] = [[*heads]]
    for row in table.rows:
        worst = row.place.worst
        summaries = [
            s for s in (worst and worst.summary, row.utility, *(f.prevented for f in row.fields.values())) if s
        ]
        line: list[object] = [run["title"], row.defense, row.place.status, row.place.number, row.tied]
        line += [row.place.reason or table.why_no_places, worst.attack if worst else None]
        line += [*_numbers(worst.summary if worst else None), *_numbers(row.utility)]
        for rate in (row.false_rejection, row.drift):
            line += [rate.value, f"{rate.where}, seed {rate.seed}"] if rate else [None, None]
        line += [*_ratio(row.cost), summaries[0].kind if summaries else None, len(table.seeds)]
        count = worst.summary.count if worst else None
        line += [count.good, count.least_share] if count else [None, None]
        for comparison in table.comparisons:
            field = row.fields[comparison.title]
            line += [*_numbers(field.prevented), field.undefended, field.defended, field.problem]
        lines.append(line)
    return csv_of(lines)


def _numbers(summary: Summary | None) -> Numbers:
    if summary is None:
        return None, None, None
    return (summary.mean, None, None) if summary.kind == "equal" else (summary.mean, summary.low, summary.high)


def _ratio(cost: Cost | None) -> tuple[float | None, float | None, str | None]:
    if cost is None or cost.slowdown is None or cost.added is None:
        return None, None, None
    return cost.slowdown.mean, cost.added.mean, cost.comparison


def suite_tex(run: Mapping[str, Any], table: SuiteTable) -> str:
    r"""The suite's table for a paper, worst case first; it needs \usepackage{booktabs}."""
    names = list(_names(table).values())
    parts = [comparison.part for comparison in table.comparisons]
    ranks = any(row.place.status not in ("anchor", "unplaced") for row in table.rows)
    width = 3 + ranks + len(names)
    grouped = []
    if any(parts):
        at = width - len(names) + 1
        for part, same in groupby(parts):
            count = len(list(same))
            grouped.append(
                (rf"\multicolumn{{{count}}}{{c}}{{{tex(part)}}}", rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            )
            at += count
    above = [
        rf"{'& ' * (width - len(names))}{' & '.join(head for head, _ in grouped)} \\",
        "".join(rule for _, rule in grouped),
    ]
    heads = ["Defense", "Worst case", *(["Rank"] if ranks else []), "Utility", *(tex(name) for name in names)]
    body = [r"\midrule", *(rf"{' & '.join(_tex_cells(row, table, ranks))} \\" for row in table.rows)]
    interval = any(row.place.worst.summary.kind == "interval" for row in table.rows if row.place.worst)
    over = "95 % intervals, and k of n seeds with the exact one-sided 95 % bound" if interval else "range"
    anchors = "" if not any(row.place.status == "anchor" for row in table.rows) else " * anchor."
    why = f" Not ranked: {table.why_no_places}." if table.why_no_places else ""
    notes = (
        f"{run['title']}; harm prevented, mean over {counted(len(table.seeds), 'seed')}, "
        f"in small type {over}; utility without an attack.{anchors}{why}"
    )
    return tex_table(heads, body, notes, above if grouped else ())


def _tex_cells(row: SuiteRow, table: SuiteTable, ranks: bool) -> list[str]:
    star = r"$^{*}$" if row.place.status == "anchor" else ""
    rank = write_rank(row).replace("\u2013", "---")
    worst = row.place.worst.summary if row.place.worst else None
    numbers = [None if s is None else show_summary(s, "ratio") for s in (worst, row.utility)]
    fields = [row.fields[c.title].prevented for c in table.comparisons]
    shown = [None if summary is None else show_summary(summary, "ratio") for summary in fields]
    first, second, *rest = ("---" if each is None else tex_shown(each) for each in (*numbers, *shown))
    return [tex(row.defense) + star, first, *([rank] if ranks else []), second, *rest]


def _names(table: SuiteTable) -> dict[str, str]:
    """A short name for every column, by the comparison's title."""
    titles = [comparison.title for comparison in table.comparisons]
    return dict(zip(titles, short_names([c.attack for c in table.comparisons]), strict=True))
