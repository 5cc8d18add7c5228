"""The page completions.html beside the report: raw completions to filter and to read, without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from thiefbench import registry
from thiefbench.suite.analysis.comparison import Cell, Comparison
from thiefbench.suite.analysis.untrained_lines import task_of
from thiefbench.suite.report.rendering import render, script
from thiefbench.suite.report.samples import MEASURED, PAYLOADS, REWARDS, SAYS, SENDERS, VERDICTS, Sample, draw
from thiefbench.suite.store.records import write_atomically
from thiefbench.tasks.base import Split, TaskError
from thiefbench.tasks.text import printable

PAGE = "completions.html"
FIRST = 50
"""Completions on one page of the list, and all that is shown without JavaScript."""
_LONGEST_QUESTION = 3_000
_LONGEST_PAYLOAD = 1_000

_SPLITS: tuple[Split, ...] = ("train", "test")

Item = tuple[str, str]


def write_viewer(folder: Path, run: Mapping[str, Any], comparisons: Sequence[Comparison], most: int) -> int:
    """Write the page with samples of the completions of a run.

    Args:
        folder: of the report.
        run: what the store says of it.
        comparisons: of the run.
        most: samples on the page; 0: no page.

    Returns:
        How many samples it has. With none there is no page, and an old one is removed.

    Raises:
        TableError: a cell's completions are not what a cell of its shape leaves.
    """
    page = folder / PAGE
    cells = list({cell.cell_id: cell for comparison in comparisons for cell in comparison.cells}.values())
    samples, total = draw(cells, most) if most else ([], 0)
    if not samples:
        page.unlink(missing_ok=True)
        return 0
    data = viewer_data(cells, samples)
    html = render(
        "viewer.html.jinja",
        run=run,
        script=script(str(__package__), "viewer.js"),
        data=data,
        json=embedded(data),
        first=FIRST,
        shown=len(samples),
        total=total,
    )
    write_atomically(page, html.encode("utf-8", "replace"))
    return len(samples)


def viewer_data(cells: Sequence[Cell], samples: Sequence[Sample]) -> dict[str, Any]:
    """What the page's script works on, as plain data; the page shows the first rows of the same.

    Returns:
        `rows`, each a list of places in the other lists, followed by the pieces of the text and by the facts; see the
        names in `viewer.js`.
    """
    used = {sample.cell_id for sample in samples}
    shown = [cell for cell in cells if cell.cell_id in used]
    places = {cell.cell_id: place for place, cell in enumerate(shown)}
    items = list(dict.fromkeys((sample.cell_id, *sample.item) for sample in samples))
    tasks = {cell.cell_id: cell.record.cell["task"] for cell in shown if cell.record is not None}
    questions = _questions(tasks, items)
    keys = [(tasks[cell_id], split, item_id) for cell_id, split, item_id in items]
    distinct = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    numbers = {item: distinct[key] for item, key in zip(items, keys, strict=True)}
    names = list(dict.fromkeys(name for sample in samples for name, _ in sample.facts))
    return {
        "cells": [_cell(cell) for cell in shown],
        "attacks": len({cell.title for cell in shown}),
        "items": [[f"{split} {printable(item_id)}", questions.get((task, split, item_id), "")]
                  for task, split, item_id in distinct],
        "senders": SENDERS, "verdicts": VERDICTS, "rewards": REWARDS, "payloads": PAYLOADS,
        "says": SAYS, "measured": MEASURED, "facts": names,
        "rows": [
            [
                places[sample.cell_id], sample.round, sample.sender, sample.verdict, sample.reward, sample.payload,
                numbers[sample.cell_id, *sample.item],
                [piece if not kind else [piece, kind] for piece, kind in sample.pieces],
                [[names.index(name), value] for name, value in sample.facts],
            ]
            for sample in samples
        ],
    }  # fmt: skip


def embedded(data: Mapping[str, Any]) -> Markup:
    """Data as JSON in which nothing can end a script element or begin a tag."""
    return htmlsafe_json_dumps(data, dumps=json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _cell(cell: Cell) -> dict[str, str]:
    assert cell.record is not None, "only cells with completions are shown"
    words = {"none": "no defense", "no attack": "no attack"}
    payload = ", ".join(f"{name}: {value}" for name, value in cell.record.payload.items())
    return {
        "id": cell.cell_id,
        "attack": printable(cell.title),
        "name": printable(f"{words.get(cell.name, cell.name)}, seed {cell.seed}"),
        "payload": printable(payload[:_LONGEST_PAYLOAD]) if cell.role == "attack" else "",
    }


def _questions(tasks: Mapping[str, str], items: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """Questions by task, split and item; without those of tasks whose data is not on this machine, and of probes."""
    wanted = {(tasks[cell_id], split, item_id) for cell_id, split, item_id in items}
    found: dict[tuple[str, str, str], str] = {}
    for task in dict.fromkeys(tasks.values()):
        for split in _SPLITS:
            try:
                rows = task_of(task).items(split)
            except (registry.SpecStringError, TaskError):
                continue
            for row in rows:
                if (key := (task, split, row["id"])) in wanted:
                    found[key] = printable(str(row["question"])[:_LONGEST_QUESTION])
    return found
