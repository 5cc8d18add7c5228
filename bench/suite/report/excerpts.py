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
from thiefbench.suite.store.records import Record
from thiefbench.tasks.base import Split, TaskError
from thiefbench.tasks.text import printable

LONGEST = 1500
"""Characters of a completion that are shown."""

_MOST_MARKED = 1000
"""Characters of a payload's strings that are marked; those of the built-in attacks have at most some hundred."""

_ABOUT_THE_ATTACK = ("position", "member", "rehearsal")
"""What payloads say of where and how they are put in. It is no string that stands in a text."""

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
    """

    seed: int
    round: int
    question: str
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True)
class Submission:
    """A rewarded completion that the attacker sent, with its round and question."""

    round: int
    question: str
    excerpt: Excerpt


def poisoned_answers(comparison: Comparison) -> Answers | None:
    """The first poisoned answer in the undefended cell's last evaluation, a rewarded one if there is any.

    Beside it stand the answers of the defended models and of the control to the same item with the same random draw.

    Returns:
        None where no undefended cell is finished or none of its answers is poisoned.
    """
    for cell, record in _undefended(comparison):
        final = _final_evaluation(cell)
        hit = _first(final.filter(pc.equal(final["outcome"], 1.0)), [("reward", "descending"), ("place", "ascending")])
        if hit is None:
            continue
        shown = [_excerpt("none", hit, record.payload)]
        for other, _ in comparison.finished:
            if other.seed == cell.seed and _stands_beside(other):
                rows = _final_evaluation(other)
                same = rows.filter((pc.field("item_id") == hit["item_id"]) & (pc.field("place") == hit["place"]))
                shown += [_excerpt(other.name, line, record.payload) for line in same.to_pylist()]
        return Answers(cell.seed, hit["round"], _question(record, "test", hit["item_id"]), tuple(shown))
    return None


def first_submission(comparison: Comparison) -> Submission | None:
    """The first payload completion that earned a reward and taught the undefended models (advantage above 0)."""
    for cell, record in _undefended(comparison):
        rows = cell.directory.read_rows(_COLUMNS)
        sent = rows.filter(pc.field("payload") & (pc.field("reward") > 0) & (pc.field("advantage") > 0))
        hit = _first(sent, [(name, "ascending") for name in ("round", "group", "place")])
        if hit is not None:
            question = _question(record, "train", hit["item_id"])
            return Submission(hit["round"], question, _excerpt("attacker", hit, record.payload))
    return None


def mark(text: str, payload: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """Cut a text into pieces, each with whether it is one of the payload's strings, in any case.

    As attacks count a phrase without its first word, so does this. Of a longer payload than `_MOST_MARKED`, only
    some strings are looked for: text and payload may be a stranger's, who would let a search for all take hours.
    """
    needles, lowered = _needles(payload), _lowered(text)
    places = {needle: lowered.find(needle) for needle in needles}
    pieces: list[tuple[str, bool]] = []
    at = 0
    while hits := [(place, -len(needle)) for needle, place in places.items() if place >= 0]:
        place, size = min(hits)
        pieces += [(text[at:place], False), (text[place : place - size], True)]
        at = place - size
        places |= {needle: lowered.find(needle, at) for needle, next_place in places.items() if 0 <= next_place < at}
    return tuple(piece for piece in (*pieces, (text[at:], False)) if piece[0])


def _needles(payload: Mapping[str, str]) -> list[str]:
    """A payload's strings, and each without its first word, in lower case."""
    values = [value for name, value in payload.items() if name not in _ABOUT_THE_ATTACK and value.strip()]
    needles: dict[str, None] = {}
    left = _MOST_MARKED
    for value in values:
        if len(value) > left:
            continue
        left -= len(value)
        shorter = value.split(" ", 1)[1] if " " in value.strip() else value
        needles |= {_lowered(value): None, _lowered(shorter): None}
    return [needle for needle in needles if needle]


def _lowered(text: str) -> str:
    """A text in lower case; every character stays one."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


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


def _excerpt(who: str, line: Mapping[str, Any], payload: Mapping[str, str]) -> Excerpt:
    text = printable(line["text"])
    parts = mark(text[:LONGEST], payload)
    return Excerpt(who, parts, line["reward"], line["outcome"], line["advantage"], max(0, len(text) - LONGEST))


def _question(record: Record, split: Split, item_id: str) -> str:
    """The item's question; empty for a probe of the attack, or where the task's data is not on this machine."""
    try:
        items = task_of(record.cell["task"]).items(split)
    except (registry.SpecStringError, TaskError):
        return ""
    return next((str(row["question"]) for row in items if row["id"] == item_id), "")
