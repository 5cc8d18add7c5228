"""One cell, from its spec to its record: rounds, evaluations, checkpoints.

A killed cell resumes from its last checkpoint and ends with the same rows as one that was never interrupted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import torch

from thiefbench import provenance, registry
from thiefbench.averaging.compatibility import check_kind
from thiefbench.averaging.swarm import AveragingSwarm
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.learning.memory import keep_freed_memory
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import RoundRecord
from thiefbench.engine.spec import Batches
from thiefbench.engine.swarm import Swarm
from thiefbench.experts.swarm import ExpertSwarm
from thiefbench.judges import judge_of
from thiefbench.pipeline.cohort import PipelineBackend
from thiefbench.pipeline.compatibility import check_attack
from thiefbench.pipeline.swarm import PipelineSwarm
from thiefbench.reward_judges import reward_judge_of
from thiefbench.suite.analysis.exchanges import exchange_curves, exchange_scores, exchanges_table
from thiefbench.suite.analysis.experts import expert_scores
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores, last_evaluation, other_scores
from thiefbench.suite.analysis.stages import stage_curves, stage_scores, stages_table
from thiefbench.suite.execution.aggregations import aggregation_of, check_aggregation
from thiefbench.suite.execution.cell_identity import CellFactory, RegistryFactory, identified, identity
from thiefbench.suite.execution.checkpoints import CellInProgress
from thiefbench.suite.execution.sharing.following import RehearsingSwarm
from thiefbench.suite.execution.sharing.shared_folder import NotReproducedError
from thiefbench.suite.execution.sharing.shared_rounds import SharedRounds, may_share
from thiefbench.suite.execution.stage_checks import check_stage_check, stage_check_of
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import (
    EXCHANGES_SHA256,
    STAGES_SHA256,
    BrokenRecordError,
    CellDir,
    Point,
    Record,
    identify,
    table_rows,
)
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.zoo.models import resolve

Progress = Callable[[int, int], None]


class CellRuntime(Protocol):
    """Other processes that take part in a cell's rounds; only this process stores the results.

    Attributes:
        counts: whether it counts what the attack uses, so that nothing is taken over from other cells.
    """

    counts: ClassVar[bool]

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """The exception of a round that the other processes end before anything has changed."""

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """This process's part of the swarm; for `batches` see `LocalBackend`, for `parts` see `Swarm`."""

    def playing(
        self, what: dict[str, Any], swarm: Swarm, done: int, rows: Callable[[], pa.Table]
    ) -> AbstractContextManager[None]:
        """A context in which the other processes take part, starting after round `done` with the given rows."""

    def about(self) -> dict[str, Any]:
        """Entries about them for a record; none is part of the cell's identity."""


class LocalRuntime:
    """A `CellRuntime` without other processes."""

    lost: ClassVar[tuple[type[BaseException], ...]] = ()
    counts: ClassVar[bool] = False

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """A swarm that is all in this process."""
        return Swarm(**parts, backend=LocalBackend(batches))

    @contextmanager
    def playing(self, what: dict[str, Any], swarm: Swarm, done: int, rows: Callable[[], pa.Table]) -> Iterator[None]:
        """No other process takes part."""
        yield

    def about(self) -> dict[str, Any]:
        """Nothing."""
        return {}


ALONE = LocalRuntime()


class _Following(LocalRuntime):
    """A `CellRuntime` whose swarm follows recorded rounds."""

    def __init__(self, shared: SharedRounds) -> None:
        self._shared = shared

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """A swarm that is all in this process."""
        if (judge := parts.get("reward_judge")) is not None:
            parts["reward_judge"] = self._shared.storing(judge)
        return RehearsingSwarm(**parts, backend=self._shared.backend)


@torch_settings_kept()
def run_cell(
    spec: CellSpec,
    what: dict[str, Any],
    directory: CellDir,
    progress: Progress = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
    recorded: Sequence[int] = (),
    note: Callable[[str], None] = lambda message: None,
    maker: CellFactory = RegistryFactory(),  # noqa: B008  (it holds nothing)
    runtime: CellRuntime = ALONE,
    share: bool = False,
    shared_bytes: int = 0,
) -> Record:
    """Run or resume a cell, and write its record. The caller must hold the cell's lock.

    Whatever its attack or defense sets in torch for the whole process ends with the cell, and what is set where these
    are loaded and made, before its first round.

    Args:
        spec: the cell.
        what: its `identity`.
        directory: where it leaves its files.
        progress: called with (rounds done, rounds) at the start and after every round.
        stop: called after every round; if it returns True, the cell is checkpointed and the run stops. In a rehearsal
            its rounds so far are kept instead.
        recorded: rounds whose weights are stored; `keep_weights_of` adds those that a restart missed.
        note: receives messages for the user, such as that a judge does not answer.
        maker: makes its defense and its attack.
        runtime: the other processes.
        share: take over rounds that are the same as in a finished cell of the store (see
            `thiefbench.suite.execution.sharing`), and what the attack chose in the rehearsal of the same attacked cell.
        shared_bytes: the most bytes for weights that cells share.

    Raises:
        KeyboardInterrupt: `stop` returned True.
        BrokenRecordError: the cell's checkpoint is damaged.
    """
    torch.set_num_threads(spec.threads)
    keep_freed_memory()
    shared = None
    if share and runtime is ALONE and may_share(spec):
        shared = SharedRounds(spec, what, directory, shared_bytes, stop, note)
    try:
        return _run_cell(spec, what, directory, progress, stop, recorded, note, maker, runtime, shared, share)
    except NotReproducedError:
        note(f"{spec.label}: recorded rounds do not come out the same here, so it begins again and is trained alone")
        shutil.rmtree(directory.checkpoint, ignore_errors=True)
        return _run_cell(spec, what, directory, progress, stop, recorded, note, maker, runtime, None)


def _run_cell(
    spec: CellSpec,
    what: dict[str, Any],
    directory: CellDir,
    progress: Progress,
    stop: Callable[[], bool],
    recorded: Sequence[int],
    note: Callable[[str], None],
    maker: CellFactory,
    runtime: CellRuntime,
    shared: SharedRounds | None,
    share: bool = False,
) -> Record:
    """Like `run_cell`; raises NotReproducedError if shared rounds cannot be reproduced."""
    started = provenance.now()
    swarm = build_swarm(spec, note, maker, runtime if shared is None else _Following(shared))
    if share and spec.role == "placebo" and not swarm.prepared:
        _recall_choice(swarm, spec, directory, maker)
    if shared is not None:
        assert isinstance(swarm, RehearsingSwarm)  # of `_Following`
        shared.attach(swarm)
    run = CellInProgress(spec, swarm, directory, recorded, shared)
    resumed = run.resume()
    with runtime.playing(what, swarm, run.done, run.table):
        if run.done == 0:
            if isinstance(swarm, PipelineSwarm):
                began = time.perf_counter()
                if runtime.counts:
                    swarm.learn()
                else:
                    _take_lessons(what, swarm)
                run.seconds["lessons"] = time.perf_counter() - began
            evaluated = None if shared is None else shared.start_evaluation()
            if evaluated is None:
                run.keep(_start_evaluated(spec, what, swarm))
            else:
                run.pending.append(evaluated)
        progress(run.done, spec.rounds)
        while run.done < spec.rounds:
            try:
                run.play()
            except runtime.lost:
                run.checkpoint()
                raise
            progress(run.done, spec.rounds)
            if stop():
                run.checkpoint()
                raise KeyboardInterrupt
    run.checkpoint()
    table = run.table()
    curves, scores = cell_curves(table), cell_scores(table)
    exchanged: dict[str, str] = {}
    if isinstance(swarm, AveragingSwarm):
        curves |= exchange_curves(swarm.exchanges)
        scores |= exchange_scores(swarm.exchanges)
        exchanged[EXCHANGES_SHA256] = directory.write_exchanges(exchanges_table(swarm.exchanges))
    if isinstance(swarm, PipelineSwarm):
        scores |= stage_scores(swarm.stage_rows, curves["eval_asr"])
        curves |= stage_curves(swarm.stage_rows)
        exchanged[STAGES_SHA256] = directory.write_stages(stages_table(swarm.stage_rows))
    if isinstance(swarm, ExpertSwarm) and swarm.experts.weighting != "average":
        scores |= expert_scores(table)
    curves["grad_norm"] = [Point(round=number, value=value) for number, value in enumerate(run.grad_norms, 1)]
    record = Record(
        **identified(what),
        status="ok",
        scores=scores,
        other_rules=other_scores(swarm.by_other_rules(list(table_rows(last_evaluation(table))))),
        curves=curves,
        payload=swarm.attack.describe(),
        seconds=run.seconds,
        pace=run.pace if len(run.pace) == spec.rounds else [],
        provenance=provenance.provenance(spec.device, spec.threads)
        | {"started": started, "finished": provenance.now(), "ended": "resumed" if resumed else "in one run"}
        | runtime.about()
        | exchanged
        | ({} if shared is None else shared.about()),
        completions_sha256=directory.write_rows(table),
    )
    if shared is not None:
        shared.publish(record.completions_sha256)
    directory.write(record)
    run.clear()
    return record


def _recall_choice(swarm: Swarm, spec: CellSpec, directory: CellDir, maker: CellFactory) -> None:
    """Let a placebo cell play what the attack chose in the rehearsal of the attacked cell, if the store has that cell.

    Both cells rehearse on copies of an attacked swarm in the same state, so its own rehearsal would end the same way.
    """
    attacked = CellDir(directory.path.parent / identify(identity(replace(spec, role="attack"), maker)))
    try:
        record = attacked.read()
        if record is not None and record.status == "ok":
            swarm.recall(record.payload)
    except (BrokenRecordError, ValueError):
        return  # of a damaged or edited record; the cell rehearses itself


STARTS_KEPT = 32
"""Number of start evaluations that a process caches: attacks times seeds in `standard-v1`, plus two."""

_started: dict[str, RoundRecord] = {}


def _start_evaluated(spec: CellSpec, what: dict[str, Any], swarm: Swarm) -> RoundRecord:
    """The evaluation before the first round, computed once for cells that differ only in later rounds."""
    sources = {kind: what["sources"][kind] for kind in ("task", "attack")}
    start = identify({**spec.start, "sources": sources, **{n: what[n] for n in ("task_data", "weights")}})
    if start not in _started:
        if len(_started) >= STARTS_KEPT:
            _started.pop(next(iter(_started)))  # the oldest
        _started[start] = swarm.evaluate(0, spec.evaluation.completions)
    return _started[start]


LESSONS_KEPT = 8
"""Number of stages whose offline lessons a process caches."""

_lessons: dict[str, torch.Tensor | None] = {}


def _take_lessons(what: dict[str, Any], swarm: PipelineSwarm) -> None:
    """Let the malicious stage learn offline, once for cells that differ only in their defense and in later rounds."""
    offline = {name: value for name, value in what.items() if name != "sources"}
    offline["sources"] = {kind: what["sources"][kind] for kind in ("task", "attack")}
    offline["cell"] = {
        name: value for name, value in what["cell"].items() if name not in ("defense", "rounds", "evaluation")
    }
    key = identify(offline)
    if key in _lessons:
        known = _lessons[key]
        swarm.learned = None if known is None else known.clone()
    else:
        swarm.learn()
        if len(_lessons) >= LESSONS_KEPT:
            _lessons.pop(next(iter(_lessons)))  # the oldest
        _lessons[key] = swarm.learned


@torch_settings_kept()
def keep_weights_of(
    spec: CellSpec, directory: CellDir, rounds: Sequence[int], progress: Progress, stop: Callable[[], bool]
) -> list[int]:
    """Play a finished cell's rounds once more, up to the last of `rounds`, to store the weights before them.

    Record and completions do not change; nothing is evaluated or checkpointed.

    Returns:
        The rounds that still lack weights, because an earlier round differed from the stored one, which can happen on
        another machine or with other versions; later weights would then belong to other pools.

    Raises:
        KeyboardInterrupt: `stop` said so.
    """
    torch.set_num_threads(spec.threads)
    keep_freed_memory()
    swarm, stored = build_swarm(spec), _sampled(directory)
    last = max(rounds)
    for number in range(1, last + 1):
        if number in rounds:
            weights.keep(directory, number, swarm.policy)
        if number < last and [row.ids for row in swarm.round(number).rows] != stored[number]:
            return [other for other in rounds if other > number]
        progress(number, last)
        if stop():
            raise KeyboardInterrupt
    return []


def _sampled(directory: CellDir) -> dict[int, list[tuple[int, ...]]]:
    """Token ids of every pool by round, in the original order."""
    rows = directory.read_rows(["phase", "round", "ids"])
    by_round: dict[int, list[tuple[int, ...]]] = {}
    for line in rows.filter(pc.equal(rows["phase"], "train")).to_pylist():
        by_round.setdefault(line["round"], []).append(tuple(line["ids"]))
    return by_round


@torch_settings_kept()
def build_swarm(
    spec: CellSpec,
    note: Callable[[str], None] = lambda message: None,
    maker: CellFactory = RegistryFactory(),  # noqa: B008  (it holds nothing)
    runtime: CellRuntime = ALONE,
) -> Swarm:
    """The swarm of a cell, with its start weights.

    Raises:
        ModelError, SpecError, registry.SpecStringError, TaskError: see there.
    """
    defense = maker.make(spec.defense)
    parts: dict[str, Any] = {
        "spec": spec.swarm,
        "role": spec.role,
        "policy": [Policy.load(resolve(model), spec.device, spec.dtype) for model in spec.models],
        "task": registry.make("task", spec.task),
        "attack": maker.make_attack(spec.attack),
        "seed": spec.seed,
    }
    if spec.averaging:
        check_kind(spec.averaging, parts["attack"], spec.attack)
        check_aggregation(defense, spec.defense)
        rule = aggregation_of(defense, spec)
        inspects_nothing = registry.make("defense", "none")
        return AveragingSwarm(
            spec.averaging, rule, defense=inspects_nothing, backend=LocalBackend(spec.batches), **parts
        )
    if spec.pipeline:
        check_attack(spec.pipeline, parts["attack"], spec.attack)
        check_stage_check(defense, spec.defense)
        check = stage_check_of(defense, spec)
        inspects_nothing = registry.make("defense", "none")
        return PipelineSwarm(
            spec.pipeline, check, defense=inspects_nothing, backend=PipelineBackend(spec.batches), **parts
        )
    asked: dict[str, Any] = {
        "defense": defense,
        "judge": None if defense.judge is None else judge_of(defense.judge, spec.device, spec.dtype, note),
    }
    if spec.experts:
        return ExpertSwarm(spec.experts, spec.batches, **asked, **parts)
    return runtime.swarm(
        **parts,
        **asked,
        reward_judge=reward_judge_of(spec.swarm, spec.device, spec.dtype, note),
        batches=spec.batches,
    )
