"""The scores of an attack's entry, scores.json: one record per cell, and a few completions for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from thiefbench import registry
from thiefbench.leaderboard.cell_scores import CellScores, rounded, trimmed
from thiefbench.leaderboard.made_with import COST
from thiefbench.leaderboard.manifest import EntryModel
from thiefbench.suite.analysis.untrained_lines import task_of
from thiefbench.suite.report.excerpts import LONGEST
from thiefbench.suite.store.records import Record, Store
from thiefbench.tasks.base import Split, TaskError
from thiefbench.tasks.text import printable

_COLUMNS = ["phase", "round", "group", "item_id", "place", "text", "reward", "outcome", "payload"]
_MOST_WORDS = 500
"""Characters of a payload's words, and of a question, that an example keeps."""

_COSTS = {
    "rounds": ("round with a payload", "rounds with a payload"),
    "sent": ("payload sent", "payloads sent"),
    "queries": ("query", "queries"),
    "samples": ("sample", "samples"),
    "scored": ("completion measured", "completions measured"),
    "steps": ("step of teaching", "steps of teaching"),
}
"""What an attack used: singular and plural of each, in the order in which it is said."""

Count = Annotated[int, Field(ge=0, le=1 << 53)]  # more than that is no longer told apart as a float
Words = Annotated[str, Field(max_length=_MOST_WORDS)]


class AttackCost(EntryModel):
    """What an attack used in one cell.

    Attributes:
        rounds: in which it sent a payload; exchanges, where nodes exchange weights.
        sent: submissions with a payload; see `thiefbench.leaderboard.isolation.attack_services.Cost`.
        queries: submissions about which it asked the defense.
        samples: completions that it drew from its copy of the policy.
        scored: completions whose tokens it measured with its copy.
        steps: of teaching copies.
    """

    rounds: Count = 0
    sent: Count = 0
    queries: Count = 0
    samples: Count = 0
    scored: Count = 0
    steps: Count = 0


def cost_in_words(cost: Mapping[str, float]) -> str:
    """What an attack used, such as "1 round with a payload, 96 payloads sent"; empty if it used nothing."""
    return ", ".join(_used(cost[name], *words) for name, words in _COSTS.items() if cost.get(name))


def _used(number: float, thing: str, things: str) -> str:
    """A rounded number of things."""
    written = f"{number:,.0f}"
    return f"{written} {thing if written == '1' else things}"


class AttackCell(CellScores):
    """A cell's record, trimmed; of every cell the curve of the outcome is kept.

    Attributes:
        target: the folder of the defense's entry; empty where there is no defense.
        cost: what the attack used in it.
    """

    target: Annotated[str, Field(max_length=48)] = ""
    cost: AttackCost = AttackCost()


class Example(EntryModel):
    """A completion for the attack's page.

    Attributes:
        kind: "sent" by the attacker in the undefended cell, or "learned", an honest model's answer.
        part, target, seed, round: where it stands.
        question: the item's; empty for a probe.
        text: of the completion, from its beginning.
        reward, outcome: of it.
        payload: what was drawn, in words, which the page marks.
    """

    kind: Literal["sent", "learned"]
    part: Annotated[str, Field(max_length=200)]
    target: Annotated[str, Field(max_length=48)]
    seed: int
    round: Count
    question: Words
    text: Annotated[str, Field(max_length=LONGEST)]
    reward: Annotated[float, Field(ge=0, le=1)]
    outcome: Annotated[float, Field(ge=0, le=1)] | None
    payload: dict[Words, Words]


class AttackScores(EntryModel):
    """The content of scores.json: the cells in the order of `cells.wanted`, and the examples of their first seed."""

    cells: tuple[AttackCell, ...] = Field(max_length=5000)
    examples: tuple[Example, ...] = Field(default=(), max_length=200)


def attack_cell(record: Record, part: str, target: str, record_sha256: str) -> AttackCell:
    """A record, trimmed for an attack's entry.

    Raises:
        ValidationError: pydantic's, for a record of a stranger.
    """
    cell = trimmed(record, part, record.cell["role"] == "attack", record_sha256)
    curve = {"eval_asr": tuple((p.round, rounded(p.value)) for p in record.curves.get("eval_asr", []))}
    cost = AttackCost.model_validate(record.provenance.get(COST, {}))
    curves = {**cell.curves, **curve} if record.status == "ok" else {}
    return AttackCell(**cell.model_dump() | {"curves": curves, "target": target, "cost": cost})


def examples(cells: Sequence[AttackCell], records: Mapping[str, Record], store: Store) -> tuple[Example, ...]:
    """What the attacker sent and what honest models learned, from the finished attacked cells of the first seed.

    Args:
        cells: of the entry.
        records: by cell id, in full.
        store: of their completions.
    """
    found: list[Example] = []
    for cell in cells:
        if (cell.role, cell.seed, cell.status) != ("attack", cells[0].seed, "ok"):
            continue
        rows, record = store.cell(cell.cell_id).read_rows(_COLUMNS), records[cell.cell_id]
        if cell.defense == "none":
            sent = rows.filter(pc.field("payload") & (pc.field("reward") > 0))
            found += _example("sent", cell, record, "train", sent, [("round", "ascending")])
        learned = rows.filter(pc.field("outcome") > 0)
        probed = learned.filter(pc.equal(learned["phase"], "probe"))
        learned = probed if len(probed) else learned.filter(pc.equal(learned["phase"], "eval"))
        order = [("outcome", "descending"), ("reward", "descending"), ("round", "descending")]
        found += _example("learned", cell, record, "test", learned, order)
    return tuple(found)


def _example(
    kind: Literal["sent", "learned"], cell: AttackCell, record: Record, split: Split, rows: pa.Table, order: Any
) -> list[Example]:
    lines = rows.sort_by([*order, ("group", "ascending"), ("place", "ascending")]).slice(0, 1).to_pylist()
    return [
        Example(
            kind=kind,
            part=cell.part,
            target=cell.target,
            seed=cell.seed,
            round=line["round"],
            question=_question(record, split, line["item_id"])[:_MOST_WORDS],
            text=printable(line["text"])[:LONGEST],
            reward=line["reward"],
            outcome=line["outcome"],
            payload={name[:_MOST_WORDS]: words[:_MOST_WORDS] for name, words in record.payload.items()},
        )
        for line in lines
    ]


def _question(record: Record, split: Split, item_id: str) -> str:
    try:
        items = task_of(record.cell["task"]).items(split)
    except (registry.SpecStringError, TaskError):
        return ""
    return next((printable(str(row["question"])) for row in items if row["id"] == item_id), "")
