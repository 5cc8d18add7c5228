"""The scores of an entry, scores.json: one record per cell, trimmed to what the board shows and compares.

In place of a shared cell that the board has published (`thiefbench.leaderboard.published`) stands a reference to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from thiefbench.engine.spec import Role
from thiefbench.leaderboard.manifest import EntryModel, Sha256
from thiefbench.suite.analysis.cell_drift import drift_scores, stored_answers
from thiefbench.suite.analysis.comparison import HEADLINE_EVALUATIONS, Cell
from thiefbench.suite.analysis.drift import Answers
from thiefbench.suite.store.ranges import known, wrong_curve, wrong_score
from thiefbench.suite.store.record_content import FAILED_WITH_RESULTS
from thiefbench.suite.store.records import (
    CHOSEN,
    EXCHANGES_SHA256,
    SCHEMA_VERSION,
    STAGES_SHA256,
    Point,
    Record,
    Score,
    Store,
)
from thiefbench.tasks.text import one_line

DIGITS = 6
"""Significant digits of the numbers in an entry; the archive has them in full."""
CURVES = ("eval_asr", "eval_reward", "eval_length")
"""The curves that an entry keeps for the defense's own cells; for shared cells it keeps the curve that harm needs."""
SHARED_SCORES = ("asr", "clean_reward", "start_reward")
"""The scores that an entry keeps for shared cells, against which its row is measured."""
OF_COMPLETIONS = ("stop_rate", "false_rejection_rate", "masked_rate")
"""The scores that say nothing where nodes exchange weights or are pipelines, as nobody inspects completions there."""
_CHOSEN = 60
"""Most letters of what an attack chose; a stranger's attack may describe anything by that name."""
_CLOSE: Final = 1e-5
"""Relative difference of equal numbers that were rounded."""

Number = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Limits far beyond any real measure, which keep sums from overflowing."""
MOST_SECONDS: Final = 1e7
"""Limit of a cell's time in one phase: four months."""
Numbers = tuple[Number | None, Number | None, Number | None, Annotated[int, Field(ge=0)]]
"""Value, low, high and count of a score."""


class CellScores(EntryModel):
    """A cell's record, trimmed.

    Attributes:
        cell_id: the name of its folder in the archive.
        part, role, attack, defense, seed: which cell of the suite it is.
        status, error: as in its record.
        scores: its record's scores, rounded; for a shared cell only `SHARED_SCORES`, and where nodes exchange weights
            or are pipelines none of `OF_COMPLETIONS`. Also its drift and divergence, which are not in records; entries
            of older versions lack these.
        curves: round and value, rounded: `CURVES`, or for a shared cell the end of "eval_asr".
        chosen: what an attack that chooses in a rehearsal played; entries of older versions lack it.
        seconds: by phase, rounded; of shared cells, only the undefended attacked ones have them, because round times
            are relative to those.
        schema_version: the record's; entries without it have version 1.
        record_sha256, completions_sha256: of its two files in the archive; a failed cell has no completions.
        exchanges_sha256: of a third one, which cells have where nodes exchange weights.
        stages_sha256: of the third one of a cell whose node is a pipeline.
    """

    cell_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    part: Annotated[str, Field(max_length=200)]
    role: Role
    attack: Annotated[str, Field(min_length=1, max_length=2000)]
    defense: Annotated[str, Field(min_length=1, max_length=2000)]
    seed: int
    status: Literal["ok", "error"] = "ok"
    error: Annotated[str, Field(max_length=300)] = ""
    scores: dict[str, Numbers] = Field(default={})
    curves: dict[str, tuple[tuple[Annotated[int, Field(ge=0, le=10**6)], Number | None], ...]] = Field(default={})
    chosen: Annotated[str, Field(max_length=_CHOSEN, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    seconds: dict[str, Annotated[Number, Field(ge=0, le=MOST_SECONDS)]] = Field(default={})
    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = 1
    record_sha256: Sha256
    completions_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    exchanges_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    stages_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @property
    def tables(self) -> dict[str, str]:
        """The hash of each table that the cell has, by the name of its file."""
        every = {
            "completions.parquet": self.completions_sha256,
            "exchanges.parquet": self.exchanges_sha256,
            "stages.parquet": self.stages_sha256,
        }
        return {name: sha256 for name, sha256 in every.items() if sha256}

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.status == "error":
            beside = (self.completions_sha256, self.exchanges_sha256, self.stages_sha256, self.chosen)
            if self.scores or any(self.curves.values()) or self.seconds or any(beside):
                raise ValueError(FAILED_WITH_RESULTS)
            return self
        if self.error:
            raise ValueError("it has scores and an error, and a cell has one or the other")
        if not self.completions_sha256:
            raise ValueError("it has scores and no completions that they could follow from")
        if strange := next((name for name in (*self.scores, *self.curves) if not known(name)), None):
            raise ValueError(f"it has {one_line(strange, 60)!r}, which no cell has")
        for name, numbers in self.scores.items():
            if wrong := wrong_score(name, self.attack, *numbers):
                raise ValueError(one_line(wrong, 200))
        for name, points in self.curves.items():
            if wrong := wrong_curve(name, self.attack, ((number, value, None, None) for number, value in points)):
                raise ValueError(one_line(wrong, 200))
        return self


class Reference(EntryModel):
    """A published shared cell, in place of a copy of it.

    Attributes:
        cell_id: of the cell.
        published: SHA-256 of its published file.
    """

    cell_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    published: Sha256


LISTED = ("cell", "reference")
"""The two kinds of what scores.json lists."""


def _kind(listed: object) -> str:
    refers = isinstance(listed, Reference) or (isinstance(listed, Mapping) and "published" in listed)
    return LISTED[refers]


class Scores(EntryModel):
    """The content of scores.json: the suite's cells that a defense's row needs, in the suite's order."""

    cells: tuple[
        Annotated[Annotated[CellScores, Tag(LISTED[0])] | Annotated[Reference, Tag(LISTED[1])], Discriminator(_kind)],
        ...,
    ] = Field(max_length=5000)


def trimmed(
    record: Record, part: str, own: bool, record_sha256: str, drift: Mapping[str, Score] | None = None
) -> CellScores:
    """A record, trimmed for an entry.

    Args:
        record: of the cell.
        part: of the suite.
        own: whether the submitted defense is used in the cell.
        record_sha256: of the record's file.
        drift: see `drifts`; None leaves it out.
    """
    named = {name: record.cell[name] for name in ("role", "attack", "defense", "seed")}
    if own:
        curves = {name: record.curves[name] for name in CURVES if name in record.curves}
    else:
        curves = {"eval_asr": record.curves.get("eval_asr", [])[-HEADLINE_EVALUATIONS:]}
    timed = own or (named["role"], named["defense"]) == ("attack", "none")
    kept = set(record.scores) if own else set(SHARED_SCORES)
    if record.cell.get("averaging") or record.cell.get("pipeline"):
        kept -= set(OF_COMPLETIONS)
    return CellScores(
        **named,
        cell_id=record.cell_id,
        part=part,
        status=record.status,
        error=record.error[:300],
        scores={name: rounded_score(score) for name, score in record.scores.items() if name in kept}
        | {name: rounded_score(score) for name, score in (drift or {}).items()},
        curves={name: tuple((each.round, rounded(each.value)) for each in points) for name, points in curves.items()},
        chosen=one_line(record.payload.get(CHOSEN, ""), _CHOSEN) if timed and record.status == "ok" else "",
        seconds={name: float(f"{value:.4g}") for name, value in record.seconds.items() if timed},
        schema_version=record.schema_version,
        record_sha256=record_sha256,
        completions_sha256=record.completions_sha256,
        exchanges_sha256=record.provenance.get(EXCHANGES_SHA256, ""),
        stages_sha256=record.provenance.get(STAGES_SHA256, ""),
    )


def untrimmed(cell: CellScores, parameters: Mapping[str, Any], machine: Mapping[str, Any]) -> Record:
    """A record rebuilt from an entry; `parameters` are the cell's, `machine` its provenance."""
    scores = {name: score_of(numbers) for name, numbers in cell.scores.items()}
    curves = {name: [Point(round=r, value=value) for r, value in points] for name, points in cell.curves.items()}
    return Record(
        schema_version=cell.schema_version,
        cell_id=cell.cell_id,
        cell=dict(parameters),
        identity={},
        status=cell.status,
        error=cell.error,
        scores=scores,
        curves=curves,
        payload={CHOSEN: cell.chosen} if cell.chosen else {},
        seconds=cell.seconds,
        provenance=dict(machine),
        completions_sha256=cell.completions_sha256,
    )


def drifts(
    records: Iterable[tuple[str, Record]], store: Store, published: Mapping[str, Callable[[], Answers]] | None = None
) -> dict[str, dict[str, Score]]:
    """The drift and divergence of cells, by cell id, from the completions in a store.

    Args:
        records: of cells that are compared with one another, each with its part of the suite.
        store: of their completions.
        published: by cell id, the words of controls whose completions are not in the store; they are measured
            elsewhere (see `thiefbench.leaderboard.published`).
    """
    elsewhere = published or {}
    cells = []
    for part, record in records:
        named = {name: record.cell[name] for name in ("role", "attack", "defense", "seed")}
        problem = f"failed: {record.error}" if record.status == "error" else ""
        directory = store.cell(record.cell_id)
        cells.append(Cell(record.cell_id, part=part, directory=directory, record=record, problem=problem, **named))

    def answers_of(cell: Cell) -> Answers:
        return elsewhere[cell.cell_id]() if cell.cell_id in elsewhere else stored_answers(cell)

    return {cell: scores for cell, scores in drift_scores(cells, answers_of).items() if cell not in elsewhere}


def rounded_score(score: Score) -> Numbers:
    """A score, rounded for an entry."""
    return rounded(score.value), rounded(score.low), rounded(score.high), score.count


def score_of(numbers: Numbers) -> Score:
    """The score that an entry has rounded."""
    value, low, high, count = numbers
    return Score(value=value, low=low, high=high, count=count)


def same_rounded(one: Numbers, other: Numbers) -> bool:
    """Whether rounded scores are equal, give or take the last digit, with equal counts."""
    pairs = zip(one[:3], other[:3], strict=True)
    return one[3] == other[3] and all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE) for a, b in pairs
    )


def rounded(value: float | None) -> float | None:
    """A number to `DIGITS` significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
