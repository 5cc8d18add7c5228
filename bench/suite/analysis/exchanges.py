"""Scores, curves and the stored table of a cell whose nodes exchange weights, as pure functions of its exchanges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import pyarrow as pa

from thiefbench.averaging.exchange import REFUSED, ExchangeRow
from thiefbench.suite.store.records import CellDir, Point, Score
from thiefbench.suite.store.tables import TableError, TableLimit, read_limited

_WORD = pa.dictionary(pa.int32(), pa.string())
EXCHANGES = pa.schema(
    [
        ("exchange", pa.int32()), ("round", pa.int32()), ("receiver", pa.int32()), ("sender", pa.int32()),
        ("malicious", pa.bool_()), ("action", _WORD), ("score", pa.float64()), ("reason", _WORD),
        ("length", pa.float64()), ("own_length", pa.float64()), ("bytes", pa.int64()),
    ]
)  # fmt: skip
"""The columns of exchanges.parquet."""
_ALWAYS = tuple(name for name in EXCHANGES.names if name not in ("score", "length"))
"""Those in which every row has a value."""


def exchanges_table(rows: Sequence[ExchangeRow]) -> pa.Table:
    """Rows as a table with the stored schema."""
    return pa.table({name: [getattr(row, name) for row in rows] for name in EXCHANGES.names}, schema=EXCHANGES)


def stored_exchanges(directory: CellDir, limit: TableLimit) -> list[ExchangeRow]:
    """The exchanges of a cell, from its file; `limit` is what it may hold.

    Raises:
        TableError: it is missing or damaged, or has other columns.
    """
    table = read_limited(directory.exchanges_path, limit, schemas=(EXCHANGES,))
    if name := next((name for name in _ALWAYS if table[name].null_count), ""):
        raise TableError(directory.exchanges_path, f"is incomplete: a vector has no {name}")
    return [ExchangeRow.from_data(row) for row in table.to_pylist()]


def exchange_scores(rows: Sequence[ExchangeRow]) -> dict[str, Score]:
    """Rates and means over all exchanges of a cell; values are None if there was nothing to judge.

    Returns:
        vector_stop_rate: share of malicious nodes' vectors that were rejected or refused;
        vector_clip_rate: share of them that counted with a changed length;
        vector_false_rejection_rate: share of honest nodes' vectors that were rejected or refused;
        vector_false_clip_rate: share of them that counted with a changed length;
        refused_vectors: how many vectors were refused;
        exchange_bytes: bytes that an honest node received per exchange.

    The rates have no interval: the vectors of a run depend on one another, so only seeds tell how certain they are.
    """
    scores: dict[str, Score] = {}
    for malicious, stop, clip in ((True, "stop_rate", "clip_rate"), (False, "false_rejection_rate", "false_clip_rate")):
        actions = [row.action for row in rows if row.malicious == malicious]
        scores[f"vector_{stop}"] = _share([action in ("reject", REFUSED) for action in actions])
        scores[f"vector_{clip}"] = _share([action == "clip" for action in actions])
    refused = sum(row.action == REFUSED for row in rows)
    scores["refused_vectors"] = Score(value=refused, low=None, high=None, count=len(rows))
    received = {(row.exchange, row.receiver): 0 for row in rows}
    for row in rows:
        received[row.exchange, row.receiver] += row.bytes
    mean = sum(received.values()) / len(received) if received else None
    scores["exchange_bytes"] = Score(value=mean, low=None, high=None, count=len(received))
    return scores


def exchange_curves(rows: Sequence[ExchangeRow]) -> dict[str, list[Point]]:
    """By round: how long malicious and honest vectors were, in lengths of the receiver's own; medians."""
    curves: dict[str, list[Point]] = {}
    for name, chosen in (("malicious_length", True), ("honest_length", False)):
        by_round: dict[int, list[float]] = {}
        for row in rows:
            if row.malicious == chosen and row.length is not None and row.own_length > 0:
                by_round.setdefault(row.round, []).append(row.length / row.own_length)
        points = [Point(round=number, value=_median(values)) for number, values in sorted(by_round.items())]
        if points:
            curves[name] = points
    return curves


def _share(hits: Sequence[bool]) -> Score:
    return Score(value=sum(hits) / len(hits) if hits else None, low=None, high=None, count=len(hits))


def _median(values: Sequence[float]) -> float | None:
    middle = median(values)
    return middle if math.isfinite(middle) else None
