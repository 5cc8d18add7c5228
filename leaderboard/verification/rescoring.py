"""Does an archive say what its entry says, and is every cell in it true in itself?

A record must be of a cell of the suite, made with the data, weights, sources and engine of this version; its scores and
curves must be those of its completions; and the completions must be what the engine makes of their tokens and verdicts
(`thiefbench.engine.backends.recorded`). Rows that were sampled otherwise than they say are found by running cells
again only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby
from secrets import SystemRandom
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from thiefbench import registry
from thiefbench.attacks.completions import writes_programs
from thiefbench.engine.backends.recorded import RetellingError, Retold
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.swarm import MOST_DRAWN
from thiefbench.leaderboard.cell_scores import CellScores, trimmed
from thiefbench.leaderboard.entry import Entry
from thiefbench.suite.analysis.scoring import HEADLINE_EVALUATIONS, cell_curves, cell_scores
from thiefbench.suite.execution.cell_run import identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Point, Record, Score, Store, identify, table_rows
from thiefbench.zoo.models import resolve

PROGRAM_ROUNDS = 4
"""Training rounds of a cell whose programs are run again, drawn anew each time; beside them the evaluations that scores
are made of. Of tasks that run no programs every reward is worked out anew."""

_CLOSE = 1e-9
"""Relative difference of two numbers that are the same but for the order of a sum."""
_CLOSE_ADVANTAGE = 1e-5
"""Advantages are float32."""
_MAY_LACK = ("score", "token_weights", "outcome")
"""Columns in which a completion may have no value."""
_CHOSEN = SystemRandom()


class InconsistentError(Exception):
    """Something in an entry or its archive does not hold. One sentence, without the cell's name."""


@dataclass(frozen=True)
class SubmittedCell:
    """A cell as its entry and its archive tell it.

    Attributes:
        spec: of the suite's cell.
        part: of the suite.
        scores: what the entry says.
        record: what the archive says.
        own: whether the submitted defense takes part; shared cells are undefended or the oracle's.
    """

    spec: CellSpec
    part: str
    scores: CellScores
    record: Record
    own: bool


def told_cells(entry: Entry, specs: Sequence[tuple[str, CellSpec]], store: Store) -> Iterator[SubmittedCell]:
    """The cells of an entry with their records; `specs` are those of its suite, each with its part."""
    for cell, (part, spec) in zip(entry.cells, specs, strict=True):
        record = store.cell(cell.cell_id).read()
        assert record is not None, "an archive that was unpacked holds a record of every cell"
        yield SubmittedCell(spec, part, cell, record, own=spec.defense == entry.manifest.defense)


def check_record(told: SubmittedCell, source_sha256: str) -> None:
    """See that a record is of the suite's cell, of this version, and what the entry says.

    Args:
        told: the cell.
        source_sha256: of the submitted defense's source.

    Raises:
        UntrueError: it is not.
    """
    record, spec = told.record, told.spec
    said = {name: value for name, value in record.cell.items() if name != "topology"}
    _check_cell(said, spec)
    _check_identity(record.identity, spec, source_sha256 if told.own else None)
    if record.cell.get("topology") != spec.swarm.topology:
        raise InconsistentError("its record names another topology than its swarm's")
    if identify({"cell": said, **record.identity}) != record.cell_id:
        raise InconsistentError("its id is not the hash of its record's identity")
    try:
        expected = trimmed(record, told.part, told.own, told.scores.record_sha256)
    except (ValidationError, KeyError) as error:
        raise InconsistentError("its record in the archive holds a number or a name that no entry takes") from error
    for name in type(expected).model_fields:
        if (one := getattr(told.scores, name)) != (other := getattr(expected, name)):
            raise InconsistentError(
                f"the entry's {name} is not what the record in the archive says: {_apart(one, other)}"
            )


def check_completions(told: SubmittedCell, table: pa.Table, policy: Policy | None = None) -> int:
    """See that a cell's scores are those of its completions, and these what the engine makes of tokens and verdicts.

    Args:
        told: the cell, with status "ok".
        table: its completions.
        policy: its model; by default loaded for its tokenizer.

    Returns:
        How many rewards were worked out anew.

    Raises:
        UntrueError: they are not.
    """
    spec = told.spec
    train = spec.rounds * spec.swarm.prompts * spec.swarm.group
    planned = {number: _planned(spec, number) for number in range(spec.rounds + 1)}
    most = train + sum(planned.values()) * (1 + MOST_DRAWN)
    if not train < len(table) <= most:
        raise InconsistentError(f"it has {len(table):,} completions, and such a cell has {train:,} to {most:,}")
    _check_nulls(table)
    blocks = _blocks(table, spec, planned)
    _check_scores(told.record, table)
    task, attack = registry.make("task", spec.task), registry.make("attack", spec.attack)
    again = Retold(spec.swarm, spec.role, policy or _policy(spec.model), task, attack, spec.seed)
    if again.attack.describe() != told.record.payload:
        raise InconsistentError("its record describes another payload than its seed draws")
    tried = _tried(spec, planned) if writes_programs(task) else None
    checked = 0
    for (train_phase, number), rows in blocks.items():
        where = f"round {number}" if train_phase else f"the evaluation after round {number}"
        trust = tried is not None and (train_phase, number) not in tried
        try:
            made = again.retell(rows, planned[number], trust)
        except RetellingError as error:
            raise InconsistentError(f"{where} is none that a swarm leaves: {error}") from error
        if len(made) != len(rows):
            raise InconsistentError(f"{where} has {len(rows):,} completions, and {len(made):,} belong there")
        _compare(rows, made, where, undefended=spec.defense == "none")
        checked += 0 if trust else len(rows)
    return checked


def _check_cell(said: Mapping[str, Any], spec: CellSpec) -> None:
    for name, expected in spec.as_dict().items():
        if (found := said.get(name)) != expected:
            raise InconsistentError(f"its record's {name} is not the suite's: {_apart(found, expected)}")
    if strange := sorted(said.keys() - spec.as_dict().keys()):
        raise InconsistentError(f"its record has the parameter {strange[0]}, which a cell of this version has not")


def _check_identity(said: Mapping[str, Any], spec: CellSpec, source_sha256: str | None) -> None:
    expected = _made_here(replace(spec, defense="none", seed=0, role="attack"))
    defense = source_sha256 or registry.source_hash("defense", spec.defense)
    expected = expected | {"sources": expected["sources"] | {"defense": defense}}
    if said.get("engine_revision") != expected["engine_revision"]:
        raise InconsistentError(
            f"it was run with engine revision {said.get('engine_revision')!r:.20}, and this version has "
            f"{expected['engine_revision']}: results of the two are not comparable"
        )
    for name, value in expected.items():
        if name != "cell" and said.get(name) != value:
            what = f"its {name}"
            if name == "sources":
                what = f"the source of its {_differing(said.get(name), value)}"
            elif name in ("weights", "task_data"):
                what = f"the weights of {spec.model}" if name == "weights" else f"the data of {spec.task}"
            raise InconsistentError(f"it was run with another version of {what} than this one has")
    if strange := sorted(said.keys() - (expected.keys() - {"cell"}) - {"judge"}):
        raise InconsistentError(f"its identity names {strange[0]}, which this version does not know")


@cache
def _made_here(spec: CellSpec) -> dict[str, Any]:
    """The identity of an undefended cell."""
    return identity(spec)


@cache
def _policy(model: str) -> Policy:
    return Policy.load(resolve(model))


def _check_nulls(table: pa.Table) -> None:
    for name in table.column_names:
        column = table[name]
        inside = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        if (name not in _MAY_LACK and column.null_count) or (inside is not column and inside.null_count):
            raise InconsistentError(f"a completion has no {name}")


def _check_scores(record: Record, table: pa.Table) -> None:
    curves = {name: points for name, points in record.curves.items() if name != "grad_norm"}
    due = (("scores", record.scores, cell_scores(table)), ("curves", curves, cell_curves(table)))
    for name, found, expected in due:
        if found.keys() != expected.keys():
            odd = sorted(found.keys() ^ expected.keys())[0]
            raise InconsistentError(f"its record has other {name} than its completions give: {odd}")
        for each, value in expected.items():
            told, made = _numbers(found[each]), _numbers(value)
            if len(told) != len(made) or not all(map(_close, told, made)):
                raise InconsistentError(
                    f"its record says another {each} than its completions give: {_apart(told[:4], made[:4])}"
                )


def _numbers(value: Score | Sequence[Point]) -> list[float | None]:
    if isinstance(value, Score):
        return [value.value, value.low, value.high, value.count]
    return [number for point in value for number in (point.round, point.value, point.low, point.high)]


def _close(one: float | None, other: float | None, tolerance: float = _CLOSE) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _planned(spec: CellSpec, number: int) -> int:
    """Completions that the evaluation after a round was to draw; 0 where none is due."""
    if number == spec.rounds:
        return spec.evaluation.final
    return 0 if number % spec.evaluation.every else spec.evaluation.completions


def _tried(spec: CellSpec, planned: Mapping[int, int]) -> set[tuple[bool, int]]:
    """Which rounds and evaluations of a cell have their programs run again."""
    evaluations = [number for number, count in planned.items() if count]
    rounds = _CHOSEN.sample(range(1, spec.rounds + 1), min(PROGRAM_ROUNDS, spec.rounds))
    measured = {evaluations[0], *evaluations[-HEADLINE_EVALUATIONS:]}
    return {(False, number) for number in measured} | {(True, number) for number in rounds}


def _blocks(table: pa.Table, spec: CellSpec, planned: Mapping[int, int]) -> dict[tuple[bool, int], list[CompletionRow]]:
    """Rows by whether they are a round's and its number, which must come in the order in which a cell makes them."""
    rows = table_rows(table)
    made = [(key, list(part)) for key, part in groupby(rows, lambda row: (row.phase == "train", row.round))]
    due = [(train, number) for number in planned for train in (True, False) if number or not train]
    expected = [(train, number) for train, number in due if train or planned[number]]
    if [key for key, _ in made] != expected:
        raise InconsistentError("its completions are not those of its rounds and evaluations, each once and in order")
    return dict(made)


def _compare(rows: Sequence[CompletionRow], made: Sequence[CompletionRow], where: str, undefended: bool) -> None:
    """See that rows are equal, and that nothing is rejected where there is no defense."""
    for told, again in zip(rows, made, strict=True):
        for field in fields(CompletionRow):
            one, other = getattr(told, field.name), getattr(again, field.name)
            if not _equal(field.name, one, other, told):
                place = f"group {told.group}, place {told.place}" if told.group >= 0 else f"completion {told.place}"
                raise InconsistentError(
                    f"{where}, {place}: its {field.name} does not follow from the tokens and verdicts: "
                    f"{_apart(one, other)}"
                )
        if undefended and (told.action != "accept" or told.token_weights is not None):
            raise InconsistentError(f"{where}: a completion is rejected, and there is no defense in this cell")


def _equal(name: str, one: Any, other: Any, told: CompletionRow) -> bool:
    if name == "advantage":
        return _close(one, other, _CLOSE_ADVANTAGE)
    if name == "refused" and not told.ids:  # what was wrong with an offer is gone with it
        return bool(one) == bool(other)
    return one is other or one == other  # a score may be NaN


def _differing(said: object, expected: Mapping[str, str]) -> str:
    known = said if isinstance(said, Mapping) else {}
    return next((kind for kind, value in expected.items() if known.get(kind) != value), "parts")


def _apart(one: object, other: object) -> str:
    """What is said and what is found, of mappings only where they differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        name = next((name for name in (*other, *one) if one.get(name) != other.get(name)), "")
        return f"{str(name)[:80]}: {_apart(one.get(name), other.get(name))}"
    return f"{one!r:.120} in place of {other!r:.120}"
