"""Scores, curves and the stored table of a cell whose node is a pipeline, as pure functions of its stage rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from thiefbench.pipeline.report import StageRow
from thiefbench.suite.store.records import CellDir, Point, Score
from thiefbench.suite.store.tables import TableError, TableLimit, read_limited

_WORD = pa.dictionary(pa.int32(), pa.string())
STAGES = pa.schema(
    [
        ("round", pa.int32()), ("stage", pa.int32()), ("malicious", pa.bool_()), ("lost", pa.bool_()),
        ("altered", pa.bool_()), ("passes", pa.int32()), ("skipped", pa.int32()), ("refused", pa.int32()),
        ("refusal", _WORD), ("action", _WORD), ("score", pa.float64()), ("reason", _WORD), ("recomputed", pa.bool_()),
        ("moved", pa.float64()), ("bytes", pa.int64()),
    ]
)  # fmt: skip
"""The columns of stages.parquet."""
_ALWAYS = tuple(name for name in STAGES.names if name != "score")
"""Those in which every row has a value."""


def stages_table(rows: Sequence[StageRow]) -> pa.Table:
    """Rows as a table with the stored schema."""
    return pa.table({name: [getattr(row, name) for row in rows] for name in STAGES.names}, schema=STAGES)


def stored_stages(directory: CellDir, limit: TableLimit) -> list[StageRow]:
    """What became of a cell's stages, from its file; `limit` is what it may hold.

    Raises:
        TableError: it is missing or damaged, or has other columns.
    """
    table = read_limited(directory.stages_path, limit, schemas=(STAGES,))
    if name := next((name for name in _ALWAYS if table[name].null_count), ""):
        raise TableError(directory.stages_path, f"is incomplete: a stage has no {name}")
    return [StageRow.from_data(row) for row in table.to_pylist()]


def stage_scores(rows: Sequence[StageRow], asr: Sequence[Point]) -> dict[str, Score]:
    """What became of the stages in a cell; values are None if there was nothing to judge.

    Args:
        rows: of all rounds.
        asr: the ASR of every evaluation, by round.

    Returns:
        altered_rounds: in how many rounds the malicious stage changed its weights beyond the update, and kept them;
        altered_asr: the ASR of the first evaluation after the last of these rounds;
        clean_rounds: how many rounds were played after it;
        caught_round: the round in which the malicious stage was rejected;
        stage_false_rejection_rate: share of verdicts on honest stages that reject;
        recomputed_share: share of the stages' rounds that another participant repeated;
        refused_passes: forward passes whose activations were refused;
        skipped_share: share of the stages' passes that went past them as scheduled;
        lost_stages: how often a stage was lost and recovered;
        activation_bytes: bytes of activations that a stage sent per round.

    None has an interval: what happens in a run depends on what happened before, so only seeds tell how certain it is.
    """
    rounds = max((row.round for row in rows), default=0)
    kept = [row.round for row in rows if row.altered and row.action == "accept"]
    caught = [row.round for row in rows if row.malicious and row.action == "reject"]
    later = [point for point in asr if kept and point.round >= max(kept)]
    honest = [row.action == "reject" for row in rows if not row.malicious]
    reached, skipped = sum(row.passes for row in rows), sum(row.skipped for row in rows)
    return {
        "altered_rounds": _count(len(kept), rounds),
        "altered_asr": _point(later),
        "clean_rounds": _count(rounds - max(kept) if kept else rounds, rounds),
        "caught_round": Score(value=caught[0] if caught else None, low=None, high=None, count=len(caught)),
        "stage_false_rejection_rate": _share(sum(honest), len(honest)),
        "recomputed_share": _share(sum(row.recomputed for row in rows), len(rows)),
        "refused_passes": _count(sum(row.refused for row in rows), reached),
        "skipped_share": _share(skipped, reached + skipped),
        "lost_stages": _count(sum(row.lost for row in rows), len(rows)),
        "activation_bytes": Score(
            value=sum(row.bytes for row in rows) / len(rows) if rows else None, low=None, high=None, count=len(rows)
        ),
    }


def stage_curves(rows: Sequence[StageRow]) -> dict[str, list[Point]]:
    """By round: how far the weights of the malicious stage moved, and those of the others (their mean)."""
    curves: dict[str, list[Point]] = {}
    for name, chosen in (("malicious_moved", True), ("honest_moved", False)):
        by_round: dict[int, list[float]] = {}
        for row in rows:
            if row.malicious == chosen:
                by_round.setdefault(row.round, []).append(row.moved)
        points = [Point(round=number, value=sum(each) / len(each)) for number, each in sorted(by_round.items())]
        if points:
            curves[name] = points
    return curves


def _count(value: int, of: int) -> Score:
    return Score(value=value, low=None, high=None, count=of)


def _share(hits: int, of: int) -> Score:
    return Score(value=hits / of if of else None, low=None, high=None, count=of)


def _point(points: Sequence[Point]) -> Score:
    first = points[0] if points else Point(round=0, value=None)
    return Score(value=first.value, low=first.low, high=first.high, count=len(points[:1]))
