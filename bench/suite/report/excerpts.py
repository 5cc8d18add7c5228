"""The answers a report shows: a poisoned completion of an honest model beside what other models said there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench import registry
from thiefbench.suite.analysis.comparison import Cell, Comparison
from thiefbench.suite.analysis.untrained_lines import task_of
from thiefbench.suite.report.payload_marks import marks_of, pieces
from thiefbench.suite.store.records import Record
from thiefbench.tasks.base import Split, TaskError

LONGEST = 1500
"""Characters of a completion that are shown."""

_COLUMNS = ["phase", "round", "group", "item_id", "place", "text", "reward", "outcome", "payload", "advantage"]


@dataclass(frozen=True)
class Excerpt:
    """One completion, as data: whoever shows it must escape it.

    Attributes:
        who: the table's name of the line it comes from.
        parts: its text in pieces, each with whether it is the payload.
        reward, outcome: of the completion.
        advantage: what multiplied its gradient; 0 for an evaluation.
        cut: characters left out at the end.
    """

    who: str
    parts: tuple[tuple[str, bool], ...]
    reward: float
    outcome: float | None
    advantage: float
    cut: int


@dataclass(frozen=True)
class Answers:
    """What several models answered to one question, at one seed.

    Attributes:
        seed, round: of the evaluation.
        question: the item's, or empty where the task is not at hand.
        excerpts: the poisoned answer first.
        graded: whether the attack's outcomes are not only 0 and 1, so that the poisoned answer is that with the
            highest.
    """

    seed: int
    round: int
    question: str
    excerpts: tuple[Excerpt, ...]
    graded: bool


@dataclass(frozen=True)
class Submission:
    """A rewarded completion that the attacker sent, with its round and question."""

    round: int
    question: str
    excerpt: Excerpt


def poisoned_answers(comparison: Comparison) -> Answers | None:
    """The first answer with the highest outcome in the undefended cell's last evaluation, a rewarded one if possible.

    Beside it stand the answers of the defended models and of the control to the same item with the same random draw.

    Returns:
        None where no undefended cell is finished or none of its answers is poisoned.
    """
    for cell, record in _undefended(comparison):
        final = _final_evaluation(cell)
        poisoned = final.filter(pc.greater(final["outcome"], 0.0))
        rewarded = poisoned.filter(pc.greater(poisoned["reward"], 0.0))
        order = [("outcome", "descending"), ("reward", "descending"), ("place", "ascending")]
        hit = _first(rewarded if len(rewarded) else poisoned, order)
        if hit is None:
            continue
        shown = [_excerpt("none", hit, record)]
        for other, beside in comparison.finished:
            if other.seed == cell.seed and _stands_beside(other):
                rows = _final_evaluation(other)
                same = rows.filter((pc.field("item_id") == hit["item_id"]) & (pc.field("place") == hit["place"]))
                shown += [_excerpt(other.name, line, beside) for line in same.to_pylist()]
        graded = not set(pc.unique(poisoned["outcome"]).to_pylist()) <= {1.0}
        return Answers(cell.seed, hit["round"], _question(record, "test", hit["item_id"]), tuple(shown), graded)
    return None


def first_submission(comparison: Comparison) -> Submission | None:
    """The first payload completion that earned a reward and taught the undefended models (advantage above 0)."""
    for cell, record in _undefended(comparison):
        rows = cell.directory.read_rows(_COLUMNS)
        sent = rows.filter(pc.field("payload") & (pc.field("reward") > 0) & (pc.field("advantage") > 0))
        hit = _first(sent, [(name, "ascending") for name in ("round", "group", "place")])
        if hit is not None:
            question = _question(record, "train", hit["item_id"])
            return Submission(hit["round"], question, _excerpt("attacker", hit, record))
    return None


def _undefended(comparison: Comparison) -> list[tuple[Cell, Record]]:
    return [(cell, record) for cell, record in comparison.finished if (cell.role, cell.defense) == ("attack", "none")]


def _stands_beside(cell: Cell) -> bool:
    """The control, and every defended cell."""
    return (cell.role == "attack") != (cell.defense == "none") and cell.role != "placebo"


def _final_evaluation(cell: Cell) -> pa.Table:
    rows = cell.directory.read_rows(_COLUMNS)
    probed = rows.filter(pc.equal(rows["phase"], "probe"))
    evaluations = probed if len(probed) else rows.filter(pc.equal(rows["phase"], "eval"))
    return evaluations.filter(pc.equal(evaluations["round"], pc.max(evaluations["round"])))


def _first(rows: pa.Table, order: list[tuple[str, str]]) -> dict[str, Any] | None:
    first_rows: list[dict[str, Any]] = rows.sort_by(order).slice(0, 1).to_pylist()
    return first_rows[0] if first_rows else None


def _excerpt(who: str, line: Mapping[str, Any], record: Record) -> Excerpt:
    payload, _ = marks_of(record).spans(line)
    cut, left = pieces(line["text"], payload, (), LONGEST)
    return Excerpt(
        who, tuple((piece, bool(kind)) for piece, kind in cut), line["reward"], line["outcome"], line["advantage"], left
    )


def _question(record: Record, split: Split, item_id: str) -> str:
    """The item's question; empty for a probe of the attack, or where the task's data is not on this machine."""
    try:
        items = task_of(record.cell["task"]).items(split)
    except (registry.SpecStringError, TaskError):
        return ""
    return next((str(row["question"]) for row in items if row["id"] == item_id), "")
