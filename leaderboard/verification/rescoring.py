"""Does an archive agree with its entry, and is every cell in it consistent?

A record must belong to a cell of the suite and must have been made with the data, weights, sources and engine of this
version; its scores and curves must be those of its completions; and the engine must make the same texts, rewards,
labels and advantages from the recorded tokens and verdicts (`thiefbench.engine.backends.recorded`). Where a judging
model rewards, it is asked again about some rounds. Whether the tokens were sampled as claimed can only be found out by
running cells again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby
from secrets import SystemRandom
from typing import Any

import pyarrow as pa
import torch
from pydantic import ValidationError

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.attacks.completions import writes_programs
from thiefbench.averaging.exchange import ExchangeRow
from thiefbench.defenses.base import JudgeError
from thiefbench.engine.backends.recorded import RecordedSwarm, RerunError
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import MOST_DRAWN
from thiefbench.leaderboard.cell_scores import CellScores, drifts, rounded_score, same_rounded, trimmed
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.verification import judged_rewards
from thiefbench.leaderboard.verification.exchanged_weights import (
    ExchangeError,
    RecordedLocalRounds,
    check_exchanges,
    local_rows,
)
from thiefbench.leaderboard.verification.pipelines import StagesError, check_stages
from thiefbench.leaderboard.verification.rehearsed import wrong_choice
from thiefbench.leaderboard.verification.rerunning import surroundings_apart
from thiefbench.pipeline.report import StageRow
from thiefbench.reward_judges import reward_judge_of
from thiefbench.suite.analysis.comparison import HEADLINE_EVALUATIONS
from thiefbench.suite.analysis.drift import MEASURES as DRIFT
from thiefbench.suite.analysis.drift import Answers
from thiefbench.suite.analysis.exchanges import exchange_curves, exchange_scores, stored_exchanges
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.analysis.stages import stage_curves, stage_scores, stored_stages
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.record_content import wrong_results
from thiefbench.suite.store.records import CHOSEN, CellDir, Point, Record, Score, Store, identify, lacking, table_rows
from thiefbench.suite.store.tables import TableError, exchanges_limit_of, stages_limit_of
from thiefbench.tasks.base import Task
from thiefbench.zoo.models import resolve

PROGRAM_ROUNDS = 4
"""Training rounds of a cell whose programs are run again, drawn at random in each verification, in addition to the
evaluations that scores are computed from. For tasks that run no programs, every reward is computed again."""

_CLOSE = 1e-9
"""Relative difference of two equal numbers whose sums were taken in different orders."""
_CLOSE_ADVANTAGE = 1e-5
"""Advantages are float32."""
_CHOSEN = SystemRandom()


class InconsistentError(Exception):
    """An entry and its archive are inconsistent. One sentence, without the cell's name."""


class OtherVersionError(InconsistentError):
    """A record was made with another version of the benchmark. A clause that says how the two differ."""


@dataclass(frozen=True)
class Beside:
    """What a cell stores beside its completions.

    Attributes:
        exchanges: where its nodes exchange weights.
        stages: where its node is a pipeline.
    """

    exchanges: Sequence[ExchangeRow] = ()
    stages: Sequence[StageRow] = ()


NOTHING_BESIDE = Beside()
"""Of a cell whose nodes exchange completions."""


@dataclass(frozen=True)
class SubmittedCell:
    """A submitted cell, from its entry and its archive.

    Attributes:
        spec: the suite's cell.
        part: of the suite.
        scores: from the entry.
        record: from the archive.
        own: whether the submitted defense takes part; shared cells are undefended or the oracle's.
        published: whether the entry refers to it instead of bringing it; its record has no curves of training then, and
            the archive holds nothing of it.
    """

    spec: CellSpec
    part: str
    scores: CellScores
    record: Record
    own: bool
    published: bool = False

    @property
    def name(self) -> str:
        """For readers."""
        return f"{self.part + ': ' if self.part else ''}{self.spec.label}"


def submitted_cells(entry: Entry, specs: Sequence[tuple[str, CellSpec]], store: Store) -> Iterator[SubmittedCell]:
    """The cells of an entry with their records; `specs` are those of its suite, each with its part."""
    for cell, (part, spec) in zip(entry.cells, specs, strict=True):
        if (published := entry.published.get(cell.cell_id)) is not None:
            yield SubmittedCell(spec, part, cell, published.record, own=False, published=True)
            continue
        record = store.cell(cell.cell_id).read()
        assert record is not None, "an archive that was unpacked holds a record of every cell it brings"
        yield SubmittedCell(spec, part, cell, record, own=spec.defense == entry.manifest.defense)


def check_record(submitted: SubmittedCell, source_sha256: str) -> None:
    """Check that a record belongs to the suite's cell and to this version, and agrees with the entry.

    Args:
        submitted: the cell.
        source_sha256: of the submitted defense's source.

    Raises:
        OtherVersionError: it was made with another version of the benchmark.
        InconsistentError: it belongs to another cell, or differs from the entry.
    """
    record = submitted.record
    check_identity(record, submitted.spec, source_sha256 if submitted.own else None)
    check_results(record)
    chose = record.status == "ok" and CHOSEN in record.payload
    if chose and (wrong := wrong_choice(submitted.spec, record.payload)):
        raise InconsistentError(f"its attack did not choose what its record says: {wrong}")
    if submitted.published:  # its scores were taken from the record
        return
    try:
        expected = trimmed(record, submitted.part, submitted.own, submitted.scores.record_sha256)
    except (ValidationError, KeyError) as error:
        raise InconsistentError("its record in the archive holds a number or a name that no entry takes") from error
    beside = {name: numbers for name, numbers in submitted.scores.scores.items() if name in DRIFT}  # see `check_drift`
    chosen = expected.chosen if submitted.scores.chosen else ""  # entries of older versions do not say it
    expected = expected.model_copy(update={"scores": {**expected.scores, **beside}, "chosen": chosen})
    for name in type(expected).model_fields:
        if (one := getattr(submitted.scores, name)) != (other := getattr(expected, name)):
            raise InconsistentError(
                f"the entry differs from the record in the archive in its {name}: {_difference(one, other)}"
            )


def check_identity(
    record: Record, spec: CellSpec, source_sha256: str | None = None, here: Mapping[str, Any] | None = None
) -> None:
    """Check that a record belongs to the suite's cell and to this version.

    Args:
        record: of a cell.
        spec: the suite's cell.
        source_sha256: of the defense's source, where it is not one that comes with this version.
        here: the cell's identity as this version computes it; by default that of a cell whose attack is declared.

    Raises:
        OtherVersionError: it was made with another version of the benchmark.
        InconsistentError: it belongs to another cell.
    """
    _check_cell(record.parameters, spec)
    _check_identity(record.identity, here or _declared_identity(spec, source_sha256))
    if record.cell.get("topology") != spec.swarm.topology:
        raise InconsistentError("its record names another topology than its swarm's")
    if identify({"cell": record.parameters, **record.identity}) != record.cell_id:
        raise InconsistentError("its id is not the hash of its record's identity")


def check_results(record: Record) -> None:
    """Check that a record holds results that a cell may have; raises InconsistentError where a failed one holds any."""
    if wrong := wrong_results(record):
        raise InconsistentError(f"its record in the archive is not that of a cell: {wrong}")


def check_completions(
    submitted: SubmittedCell,
    table: pa.Table,
    policy: Policy | None = None,
    attack: Attack | None = None,
    beside: Beside = NOTHING_BESIDE,
) -> int:
    """Check that a cell's scores follow from its completions, and these from the recorded tokens and verdicts.

    Args:
        submitted: the cell, with status "ok".
        table: its completions.
        policy: its model; by default loaded for its tokenizer.
        attack: of the cell; by default, the declared one that its spec names.
        beside: what such a cell stores beside its completions.

    Returns:
        How many rewards were computed again.

    Raises:
        InconsistentError: they do not.
    """
    spec = submitted.spec
    train = local_rows(spec) if spec.averaging else spec.rounds * spec.swarm.prompts * spec.swarm.group
    planned = {number: spec.evaluation.due(number, spec.rounds) for number in range(spec.rounds + 1)}
    most = train + sum(planned.values()) * (1 + MOST_DRAWN)
    if not train < len(table) <= most:
        raise InconsistentError(f"it has {len(table):,} completions, but such a cell has {train:,} to {most:,}")
    if name := lacking(table):
        raise InconsistentError(f"a completion has no {name}")
    blocks = _blocks(table, planned)
    _check_scores(submitted.record, table, beside)
    task, attack = registry.make("task", spec.task), attack or registry.make("attack", spec.attack)
    model = policy or _policy(spec.model)
    if spec.averaging:
        again: RecordedSwarm = (local := RecordedLocalRounds(spec, model, task, attack))
        try:
            check_exchanges(spec, local, beside.exchanges)
        except ExchangeError as error:
            raise InconsistentError(str(error)) from error
    else:
        if spec.pipeline:
            try:
                learned = {
                    number: sum(row.advantage not in (None, 0) for row in rows)
                    for (train_phase, number), rows in blocks.items()
                    if train_phase
                }
                check_stages(spec, beside.stages, learned)
            except StagesError as error:
                raise InconsistentError(str(error)) from error
        again = RecordedSwarm(spec.swarm, spec.role, model, task, attack, spec.seed, judged_rewards.FAULTS)
    try:
        again.recall(submitted.record.payload)
    except RerunError as error:
        raise InconsistentError(f"its record describes a payload that its seed does not draw: {error}") from error
    if again.attack.describe() != submitted.record.payload:
        raise InconsistentError("its record describes a payload that its seed does not draw")
    with_programs = _sampled_rounds(spec, planned) if writes_programs(task) else None
    checked = 0
    for (train_phase, number), rows in blocks.items():
        where = f"round {number}" if train_phase else f"the evaluation after round {number}"
        trust = with_programs is not None and (train_phase, number) not in with_programs
        try:
            rebuilt = again.rerun(rows, planned[number], trust)
        except RerunError as error:
            raise InconsistentError(f"the rows of {where} are inconsistent with any valid run: {error}") from error
        if len(rebuilt) != len(rows):
            raise InconsistentError(f"{where} has {len(rows):,} completions, and {len(rebuilt):,} belong there")
        _compare(rows, rebuilt, where, uninspected=spec.defense == "none" or not inspects_completions(spec))
        checked += 0 if trust else len(rows)
    if spec.swarm.reward != "rule":
        rounds = [rows for (train_phase, _), rows in blocks.items() if train_phase]
        _check_judge(spec, rounds, task, exact=not surroundings_apart(submitted.record))
    return checked


def inspects_completions(spec: CellSpec) -> bool:
    """Whether a cell's defense inspects completions; aggregations and stage checks do not."""
    return spec.averaging is None and spec.pipeline is None


def beside_completions(spec: CellSpec, directory: CellDir) -> Beside:
    """What a cell stores beside its completions: nothing where nodes exchange these.

    Raises:
        InconsistentError: a file is missing or damaged.
    """
    try:
        return Beside(
            stored_exchanges(directory, exchanges_limit_of(spec.as_dict())) if spec.averaging else (),
            stored_stages(directory, stages_limit_of(spec.as_dict())) if spec.pipeline else (),
        )
    except TableError as error:
        name = "exchanges.parquet" if spec.averaging else "stages.parquet"
        raise InconsistentError(f"its {name} {error.problem}") from error


def check_drift(
    cells: Sequence[SubmittedCell], archive: Store, published: Mapping[str, Callable[[], Answers]] | None = None
) -> int:
    """Check that the drift which an entry says its cells have follows from the completions in its archive.

    An entry of a version that did not measure drift says none at all, and refers to no published cells. Any other says
    that of every cell: the board shows the largest, and what is left out would not be among them.

    Args:
        cells: all cells of the entry, whose completions have passed `check_completions`.
        archive: their completions.
        published: by cell id, the words of published controls.

    Returns:
        Of how many cells that it brings the entry says it.

    Raises:
        InconsistentError: it does not.
    """
    brought = [each for each in cells if not each.published]
    saying = [each for each in brought if any(name in each.scores.scores for name in DRIFT)]
    if not saying and len(brought) == len(cells):
        return 0
    words = published or {}
    compared = [*brought, *(each for each in cells if each.record.cell_id in words)]
    computed = drifts([(each.part, each.record) for each in compared], archive, words)
    for each in brought:
        if each.record.cell_id not in computed and each not in saying:
            continue  # it failed, or its control did
        expected = computed.get(each.record.cell_id, {})
        for name in DRIFT:
            submitted = each.scores.scores.get(name)
            found = rounded_score(expected[name]) if name in expected else None
            if submitted is None or found is None or not same_rounded(submitted, found):
                raise InconsistentError(
                    f"{each.name}: its {name} does not follow from its completions and those of its control: "
                    f"{_difference(submitted, found)}"
                )
    return len(saying)


def _check_cell(parameters: Mapping[str, Any], spec: CellSpec) -> None:
    for name, expected in spec.as_dict().items():
        # As JSON: for Python, 0, 0.0 and False are equal, and a cell's id would tell them apart.
        if json.dumps(value := parameters.get(name), sort_keys=True) != json.dumps(expected, sort_keys=True):
            raise InconsistentError(f"its record's {name} is not the suite's: {_difference(value, expected)}")
    if strange := sorted(parameters.keys() - spec.as_dict().keys()):
        raise InconsistentError(f"its record has the parameter {strange[0]}, which cells of this version do not have")


def _declared_identity(spec: CellSpec, source_sha256: str | None) -> dict[str, Any]:
    """The identity of a cell whose attack is declared; for all seeds and defenses, the rest is computed once."""
    anchor = spec.defense if anchor_of(spec.defense) == "oracle" else "none"
    expected = _identity_here(replace(spec, defense=anchor, seed=0, role="attack"))
    defense = source_sha256 or registry.source_hash("defense", spec.defense)
    return expected | {"sources": expected["sources"] | {"defense": defense}}


def _check_identity(recorded: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if recorded.get("engine_revision") != expected["engine_revision"]:
        raise OtherVersionError(
            f"engine revision {recorded.get('engine_revision')!s:.20}; this is revision {expected['engine_revision']}"
        )
    for name, value in expected.items():
        if name not in ("cell", "judge") and recorded.get(name) != value:
            part = f"the {name.replace('_', ' ')}"
            if name == "sources":
                part = f"the source of the {_differing(recorded.get(name), value)}"
            elif name in ("weights", "task_data"):
                cell = expected["cell"]
                part = f"the weights of {cell['model']}" if name == "weights" else f"the data of {cell['task']}"
            raise OtherVersionError(f"{part} changed")
    if strange := sorted(recorded.keys() - (expected.keys() - {"cell"}) - {"judge"}):
        raise InconsistentError(f"its identity names {strange[0]}, which this version does not know")


@cache
def _identity_here(spec: CellSpec) -> dict[str, Any]:
    """The identity of an undefended cell, or of the oracle's."""
    return identity(spec)


@cache
def _policy(model: str) -> Policy:
    return Policy.load(resolve(model))


def _check_scores(record: Record, table: pa.Table, beside: Beside = NOTHING_BESIDE) -> None:
    curves = {name: points for name, points in record.curves.items() if name != "grad_norm"}
    scores_here, curves_here = cell_scores(table, record.schema_version), cell_curves(table)
    if record.cell.get("averaging"):
        scores_here |= exchange_scores(beside.exchanges)
        curves_here |= exchange_curves(beside.exchanges)
    if record.cell.get("pipeline"):
        scores_here |= stage_scores(beside.stages, curves_here["eval_asr"])
        curves_here |= stage_curves(beside.stages)
    compared = (("scores", record.scores, scores_here), ("curves", curves, curves_here))
    for name, recorded, expected in compared:
        if recorded.keys() != expected.keys():
            odd = sorted(recorded.keys() ^ expected.keys())[0]
            raise InconsistentError(f"its record's {name} do not follow from its completions: {odd}")
        for each, value in expected.items():
            recorded_numbers, computed_numbers = _numbers(recorded[each]), _numbers(value)
            if len(recorded_numbers) != len(computed_numbers) or not all(
                map(_close, recorded_numbers, computed_numbers)
            ):
                apart = _first_apart(recorded_numbers, computed_numbers)
                raise InconsistentError(
                    f"its record's {each} does not follow from its completions: "
                    f"{_difference(recorded_numbers[apart], computed_numbers[apart])}"
                )


def _numbers(value: Score | Sequence[Point]) -> list[float | None]:
    if isinstance(value, Score):
        return [value.value, value.low, value.high, value.count]
    return [number for point in value for number in (point.round, point.value, point.low, point.high)]


def _first_apart(one: Sequence[float | None], other: Sequence[float | None]) -> slice:
    """Where the first score or point stands, four numbers, in which two lists of them differ or one is over."""
    pairs = zip(one, other, strict=False)
    place = next((place for place, pair in enumerate(pairs) if not _close(*pair)), min(len(one), len(other)))
    begin = place - place % 4
    return slice(begin, begin + 4)


def _close(one: float | None, other: float | None, tolerance: float = _CLOSE) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, int) and isinstance(other, int):  # a count or a round; a stranger's may be beyond floats
        return one == other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _sampled_rounds(spec: CellSpec, planned: Mapping[int, int]) -> set[tuple[bool, int]]:
    """The rounds and evaluations of a cell whose programs are run again."""
    evaluations = [number for number, count in planned.items() if count]
    rounds = _CHOSEN.sample(range(1, spec.rounds + 1), min(PROGRAM_ROUNDS, spec.rounds))
    measured = {evaluations[0], *evaluations[-HEADLINE_EVALUATIONS:]}
    return {(False, number) for number in measured} | {(True, number) for number in rounds}


def _blocks(table: pa.Table, planned: Mapping[int, int]) -> dict[tuple[bool, int], list[CompletionRow]]:
    """Rows by phase (whether it is training) and round, which must be in the order in which a cell writes them."""
    rows = table_rows(table)
    blocks = [(key, list(part)) for key, part in groupby(rows, lambda row: (row.phase == "train", row.round))]
    due = [(train, number) for number in planned for train in (True, False) if number or not train]
    expected = [(train, number) for train, number in due if train or planned[number]]
    if [key for key, _ in blocks] != expected:
        raise InconsistentError("its completions are not those of its rounds and evaluations, each once and in order")
    return dict(blocks)


def _compare(rows: Sequence[CompletionRow], rebuilt: Sequence[CompletionRow], where: str, uninspected: bool) -> None:
    """Check that rows are equal, and that nothing is rejected where no defense inspects completions."""
    for row, rebuilt_row in zip(rows, rebuilt, strict=True):
        for field in fields(CompletionRow):
            one, other = getattr(row, field.name), getattr(rebuilt_row, field.name)
            if not _equal(field.name, one, other, row):
                place = f"group {row.group}, index {row.place}" if row.group >= 0 else f"completion {row.place}"
                raise InconsistentError(
                    f"{where}, {place}: its {field.name} does not follow from the tokens and verdicts: "
                    f"{_difference(one, other)}"
                )
        if uninspected and (row.action != "accept" or row.token_weights is not None):
            raise InconsistentError(
                f"{where}: a completion is rejected, but there is no defense in this cell that sees any"
            )


def _check_judge(spec: CellSpec, rounds: Sequence[Sequence[CompletionRow]], task: Task, exact: bool) -> None:
    """Check that the judge which rewards gives the rewards of some rounds, which are drawn at random.

    Args:
        spec: the cell.
        rounds: the rows of each of its rounds.
        task: the cell's.
        exact: whether equal bits are promised, so that no reward may differ.
    """
    judge = reward_judge_of(spec.swarm, "cpu", spec.dtype)
    assert judge is not None, "a judge rewards in this swarm"
    before = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        differing, asked = 0, 0
        for rows in _CHOSEN.sample(rounds, min(judged_rewards.ROUNDS, len(rounds))):
            try:
                counts = judged_rewards.differing(rows, spec.swarm, task, spec.seed, judge)
            except JudgeError as error:
                raise InconsistentError(f"round {rows[0].round}: {error}") from error
            differing, asked = differing + counts[0], asked + counts[1]
            if exact and counts[0]:
                break
        if differing > (0 if exact else judged_rewards.most_differing(asked)):
            raise InconsistentError(
                f"round {rows[0].round}: the judge that rewards does not give {differing} of {asked} rewards"
                if exact
                else f"the judge that rewards does not give {differing} of {asked} rewards of rounds that were drawn"
            )
    finally:
        torch.set_num_threads(before)


def _equal(name: str, one: Any, other: Any, row: CompletionRow) -> bool:
    if name == "advantage":
        return _close(one, other, _CLOSE_ADVANTAGE)
    if name == "refused" and not row.ids:  # what was wrong with an offer is gone with it
        return bool(one) == bool(other)
    return one is other or one == other  # a score may be NaN


def _differing(recorded: object, expected: Mapping[str, str]) -> str:
    sources = recorded if isinstance(recorded, Mapping) else {}
    return next((kind for kind, value in expected.items() if sources.get(kind) != value), "parts")


def _difference(one: object, other: object) -> str:
    """The recorded value and the expected one; of mappings, the first entry that differs."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        name = next((name for name in (*other, *one) if one.get(name) != other.get(name)), "")
        return f"{str(name)[:80]}: {_difference(one.get(name), other.get(name))}"
    return f"{one!r:.120} instead of {other!r:.120}"
