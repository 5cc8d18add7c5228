"""The results of a store's last run for a terminal of 80 columns, and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from rich.console import Console
from rich.table import Table

from thiefbench import registry
from thiefbench.console import escaped
from thiefbench.engine.spec import Role
from thiefbench.suite.analysis.cell_drift import drift_scores
from thiefbench.suite.analysis.comparison import Cell, Comparison, Line, Result
from thiefbench.suite.analysis.line_scores import inspected_scores
from thiefbench.suite.analysis.run_comparisons import cells_of_run, last_run
from thiefbench.suite.report.line_names import ATTACKED, UNDEFENDED
from thiefbench.suite.report.plain_table import plain_table
from thiefbench.suite.report.reading_notes import CLUSTERED, doubt_note, honest_drift_note
from thiefbench.suite.report.unseen_notice import unseen_sentences
from thiefbench.suite.scenario import RankingRules
from thiefbench.suite.store.records import NOTHING, Score, Store
from thiefbench.trust import reads_strangers

MEASURES = {
    "asr": "ASR", "drift": "drift", "stop_rate": "stop\nrate", "false_rejection_rate": "false\nrejection",
    "clean_reward": "clean\nreward",
}  # fmt: skip
"""The columns shown for a cell, with headings of two lines."""
_OTHERS = {
    "vector_stop_rate": "vectors\nstopped", "vector_false_rejection_rate": "honest\nrejected",
    "caught_round": "caught\nin round", "stage_false_rejection_rate": "honest\nrejected",
}  # fmt: skip
"""Shown in place of `_REJECTIONS` where the defense judges vectors, or the stages of a pipeline."""

NAME_WIDTH = 18
"""Longer spec strings get a short name, so that 80 columns have room for "no attack, " before it, for row numbers of
three digits and for the numbers."""

_REJECTIONS = ("stop_rate", "false_rejection_rate")
"""The measures whose intervals are clustered."""


@dataclass(frozen=True)
class RunRow:
    """A cell of a run with its scores, including drift; without scores if it has a problem."""

    cell: Cell
    scores: Mapping[str, Score]


@reads_strangers
def rows_of_run(store: Store) -> list[RunRow]:
    """The cells of a store's last run, in its order.

    Raises:
        ReportError: the store has no run.
    """
    cells = cells_of_run(store, last_run(store))
    drifts = drift_scores(cells)
    return [
        RunRow(
            cell,
            {} if cell.problem or cell.record is None else inspected_scores(cell.record) | drifts.get(cell.cell_id, {}),
        )
        for cell in cells
    ]


def print_results(out: Console, store: Store, rows: Sequence[RunRow]) -> None:
    """One table of numbers per attack, with its intervals below it, and at the end notes and the short names' meanings.

    Where an ASR is low and the drift high, a sentence says so first. Where an attack does not work without a defense,
    one says so above its table. A control's drift is marked, as it cannot be measured like that of the other swarms.

    Args:
        out: to print to.
        store: of the last run.
        rows: `rows_of_run` of the store.
    """
    comparisons = {(each.part, each.attack): each for each in _compared(rows, _rules(store))}
    for sentence in unseen_sentences(list(comparisons.values())):
        out.print(f"[bold yellow]{escaped(sentence)}[/bold yellow]")
    names = short_names("defense", (row.cell.defense for row in rows))
    headings = short_names("attack", (row.cell.attack for row in rows))
    notes: dict[str, None] = {}  # in order, each once
    for (part, attack), comparison in comparisons.items():
        own = [row for row in rows if (row.cell.part, row.cell.attack) == (part, attack)]
        where = f"{escaped(part)}, " if part else ""
        out.print(f"{where}{_called('attack', headings[attack])}")
        if doubt := comparison.why_inconclusive:
            out.print(f"[bold yellow]Inconclusive:[/bold yellow] {escaped(doubt_note(doubt))}")
        measures = _measures(own)
        numbers = plain_table("", "swarm", "seed", *measures.values(), pad_edge=False)
        limits = plain_table("", *measures.values(), pad_edge=False)
        problems = []
        for number, row in enumerate(own, 1):
            who = (str(number), escaped(_swarm(row.cell, names)), str(row.cell.seed))
            if row.cell.problem:
                numbers.add_row(*who, *["-"] * len(measures))
                problems.append(f"{number}: [red]{escaped(row.cell.problem)}[/red]")
                continue
            scores = [row.scores.get(name, NOTHING) for name in measures]
            written = {
                name: "-" if s.value is None else f"{s.value:.{0 if name == 'caught_round' else 3}f}"
                for name, s in zip(measures, scores, strict=True)
            }
            if row.cell.is_control and written["drift"] != "-":
                written["drift"] += "*"
                notes[f"* {honest_drift_note(comparison.controls)}"] = None
            if any(row.scores.get(name, NOTHING).value is not None for name in _REJECTIONS):
                notes[CLUSTERED] = None
            numbers.add_row(*who, *written.values())
            limits.add_row(str(number), *map(_limits, scores))
        print_whole(out, numbers)
        for problem in problems:
            out.print(problem)
        if limits.row_count:
            out.print("95 % intervals over each cell's completions, for the rows numbered above")
            print_whole(out, limits)
    for note in notes:
        out.print(escaped(note))
    for kind, shown in (("attack", headings), ("defense", names)):
        for spec, name in shown.items():
            if name != spec:
                out.print(f"{_called(kind, name)}: {escaped(spec)}", soft_wrap=True)  # to be copied


def _measures(rows: Sequence[RunRow]) -> dict[str, str]:
    """The columns for the cells of one attack."""
    if others := {name: title for name, title in _OTHERS.items() if any(name in row.scores for row in rows)}:
        kept = [(name, title) for name, title in MEASURES.items() if name not in _REJECTIONS]
        return dict([*kept[:2], *others.items(), *kept[2:]])
    return MEASURES


def results_as_data(store: Store, rows: Sequence[RunRow]) -> dict[str, Any]:
    """The results as plain data; numbers that are not finite are None."""
    run = last_run(store)
    return {
        "suite": run["title"],
        "fingerprint": run["fingerprint"],
        "store": str(store.root),
        "cells": [_as_data(row) for row in rows],
    }


def _rules(store: Store) -> RankingRules:
    """Of the suite of a store's last run."""
    return RankingRules(**last_run(store)["suite"].get("ranking", {}))


def _compared(rows: Sequence[RunRow], rules: RankingRules) -> list[Comparison]:
    """The rows as the lines of comparisons, one for each attack."""
    comparisons = []
    for part, attack in dict.fromkeys((row.cell.part, row.cell.attack) for row in rows):
        own = [row for row in rows if (row.cell.part, row.cell.attack) == (part, attack)]
        results: dict[tuple[str, Role, str], list[Result]] = {}
        for row in own:
            line = (row.cell.name, row.cell.role, row.cell.defense)
            result = Result(row.cell.seed, row.cell.cell_id, row.scores, row.cell.problem)
            results.setdefault(line, []).append(result)
        lines = tuple(
            Line(name, "trained", role, defense, tuple(each)) for (name, role, defense), each in results.items()
        )
        comparisons.append(Comparison(attack, tuple(row.cell for row in own), lines, part, rules))
    return comparisons


def _as_data(row: RunRow) -> dict[str, Any]:
    names = ("cell_id", "part", "role", "attack", "defense", "seed", "problem")
    scores = {name: {key: finite(value) for key, value in score} for name, score in sorted(row.scores.items())}
    return {name: getattr(row.cell, name) for name in names} | {"scores": scores}


def finite(value: Any) -> Any:
    """A number as JSON can write it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short_names(kind: registry.Kind, specs: Iterable[str]) -> dict[str, str]:
    """A name for each spec string: itself if it is short, else its targets, numbered if several are equal."""
    every = list(dict.fromkeys(specs))
    names = {spec: spec for spec in every if len(spec) <= NAME_WIDTH}
    for spec in every:
        if spec in names:
            continue
        name = "+".join(registry.parse(kind, part).target.rpartition(":")[2] for part in registry.parts(kind, spec))
        taken = set(names.values())
        if len(name) <= NAME_WIDTH - (0 if name not in taken else len(" 10")):
            choices = (name if number == 1 else f"{name} {number}" for number in count(1))
        else:
            choices = (f"{kind} {number}" for number in count(1))
        names[spec] = next(each for each in choices if each not in taken)
    return {spec: names[spec] for spec in every}


def print_whole(out: Console, table: Table) -> None:
    """Print a table at its full width, so that nothing is cut, however narrow the terminal is."""
    width = Console(width=10_000).measure(table).maximum
    terminal = {"force_terminal": True, "color_system": out.color_system} if out.is_terminal else {}
    wide = Console(file=out.file, width=max(width, 1), highlight=False, emoji=False, **terminal)  # type: ignore[arg-type]
    wide.print(table)


def _swarm(cell: Cell, names: Mapping[str, str]) -> str:
    """Which swarm a cell is, in few words."""
    if (cell.role, cell.defense) == ("attack", "none"):
        return UNDEFENDED
    before = {"attack": ATTACKED, "control": "no attack", "placebo": "placebo"}[cell.role]
    return before if cell.defense == "none" else f"{before}, {names[cell.defense]}"


def _called(kind: str, name: str) -> str:
    """A kind and a name of it, such as one of `short_names`, which may begin with the kind."""
    return f"{kind} [bold]{escaped(name.removeprefix(f'{kind} '))}[/bold]"


def _limits(score: Score) -> str:
    return "-" if score.low is None or score.high is None else f"{score.low:.3f}, {score.high:.3f}"
