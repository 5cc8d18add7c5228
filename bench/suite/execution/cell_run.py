"""One cell, from its spec to its record: rounds, evaluations, checkpoints.

A killed cell goes on from its last checkpoint and ends with the same rows as one that was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thiefbench import provenance, registry
from thiefbench.defenses.base import Defense
from thiefbench.engine import ENGINE_REVISION
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.learning.memory import keep_freed_memory
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import RoundRecord
from thiefbench.engine.spec import Batches
from thiefbench.engine.swarm import Swarm
from thiefbench.judges import judge_identity, judge_of
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import (
    SCHEMA_VERSION,
    BrokenRecordError,
    CellDir,
    Point,
    Record,
    file_sha256,
    identify,
    read_sealed,
    rows_table,
    table_rows,
    write_atomically,
    write_sealed,
    write_table,
)
from thiefbench.zoo.models import resolve, weights_fingerprint

CHECKPOINT_SECONDS = 30.0

Progress = Callable[[int, int], None]


class DefenseFactory(Protocol):
    """Who makes a cell's defense and names its source."""

    def make(self, spec: str) -> Defense:
        """The defense of a spec string, fresh."""

    def source_hash(self, spec: str) -> str:
        """SHA-256 over what defines it, as `registry.source_hash` has it."""


class RegistryFactory:
    """The registry, which loads the defense's class in this process."""

    def make(self, spec: str) -> Defense:
        """As `registry.make`."""
        made: Defense = registry.make("defense", spec)
        return made

    def source_hash(self, spec: str) -> str:
        """As `registry.source_hash`."""
        return registry.source_hash("defense", spec)


class CellRuntime(Protocol):
    """Other processes that play a cell's rounds along with this one, which alone keeps what they make."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """What a round raises when the others end it before anything has changed."""

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """The swarm, this process' part of it; for `batches` see `LocalBackend`, for `parts` see `Swarm`."""

    def playing(
        self, what: dict[str, Any], swarm: Swarm, done: int, rows: Callable[[], pa.Table]
    ) -> AbstractContextManager[None]:
        """In the `with` block the others play along, from after round `done` on, of which there are `rows`."""

    def about(self) -> dict[str, Any]:
        """What a record says of them; nothing in it is part of the cell's identity."""


class LocalRuntime:
    """Nobody else: a `CellRuntime` of none."""

    lost: ClassVar[tuple[type[BaseException], ...]] = ()

    def swarm(self, batches: Batches, **parts: Any) -> Swarm:
        """A swarm that is all in this process."""
        return Swarm(**parts, backend=LocalBackend(batches))

    @contextmanager
    def playing(self, what: dict[str, Any], swarm: Swarm, done: int, rows: Callable[[], pa.Table]) -> Iterator[None]:
        """Nobody plays along."""
        yield

    def about(self) -> dict[str, Any]:
        """Nothing."""
        return {}


ALONE = LocalRuntime()


def identity(spec: CellSpec, maker: DefenseFactory = RegistryFactory()) -> dict[str, Any]:  # noqa: B008  (it holds nothing)
    """Everything that can change a cell's outcome, as plain data."""
    sources = {kind: registry.source_hash(kind, getattr(spec, kind)) for kind in ("task", "attack")}
    made = {
        "cell": spec.as_dict(),
        "task_data": registry.make("task", spec.task).fingerprint(),
        "weights": _weights_of(spec),
        "sources": sources | {"defense": maker.source_hash(spec.defense)},
        "engine_revision": ENGINE_REVISION,
        "schema_version": SCHEMA_VERSION,
    }
    if (judge := maker.make(spec.defense).judge) is not None:
        made["judge"] = judge_identity(judge)
    return made


def _weights_of(spec: CellSpec) -> str | dict[str, str]:
    """The fingerprint of the start weights; of a population's, by model."""
    if not spec.swarm.population:
        return weights_fingerprint(spec.model)
    return {model: weights_fingerprint(model) for model in spec.models}


def run_cell(
    spec: CellSpec,
    what: dict[str, Any],
    directory: CellDir,
    progress: Progress = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
    recorded: Sequence[int] = (),
    note: Callable[[str], None] = lambda message: None,
    maker: DefenseFactory = RegistryFactory(),  # noqa: B008  (it holds nothing)
    company: CellRuntime = ALONE,
) -> Record:
    """Run a cell, or go on with it, and write its record. The caller holds the cell's lock.

    Args:
        spec: the cell.
        what: its `identity`.
        directory: where it leaves its files.
        progress: called with (rounds done, rounds) at the start and after every round.
        stop: asked after every round; when it says True, the cell is checkpointed and left.
        recorded: rounds whose weights are kept; those played before a restart that did not keep them are left to
            `keep_weights_of`.
        note: told what the user should know, such as that a judge does not answer.
        maker: makes its defense.
        company: who plays along.

    Raises:
        KeyboardInterrupt: `stop` said so.
        BrokenRecordError: the checkpoint that the cell would go on from is damaged.
    """
    torch.set_num_threads(spec.threads)
    keep_freed_memory()
    started = provenance.now()
    swarm = build_swarm(spec, note, maker, company)
    run = _Run(spec, swarm, directory, recorded)
    resumed = run.resume()
    with company.playing(what, swarm, run.done, run.table):
        if run.done == 0:
            run.keep(_start_evaluated(spec, what, swarm))
        progress(run.done, spec.rounds)
        while run.done < spec.rounds:
            try:
                run.play()
            except company.lost:
                run.checkpoint()
                raise
            progress(run.done, spec.rounds)
            if stop():
                run.checkpoint()
                raise KeyboardInterrupt
    run.checkpoint()
    table = run.table()
    curves = cell_curves(table)
    curves["grad_norm"] = [Point(round=number, value=value) for number, value in enumerate(run.grad_norms, 1)]
    record = Record(
        **_identified(what),
        status="ok",
        scores=cell_scores(table),
        curves=curves,
        payload=swarm.attack.describe(),
        seconds=run.seconds,
        pace=run.pace if len(run.pace) == spec.rounds else [],
        provenance=provenance.provenance(spec.device, spec.threads)
        | {"started": started, "finished": provenance.now(), "ended": "resumed" if resumed else "in one run"}
        | company.about(),
        completions_sha256=directory.write_rows(table),
    )
    directory.write(record)
    run.clear()
    return record


STARTS_KEPT = 32
"""Start evaluations that a process remembers: as many as `standard-v1` has of attacks times seeds, and two."""

_started: dict[str, RoundRecord] = {}


def _start_evaluated(spec: CellSpec, what: dict[str, Any], swarm: Swarm) -> RoundRecord:
    """The evaluation before the first round, once for cells that differ only in what comes after it."""
    sources = {kind: what["sources"][kind] for kind in ("task", "attack")}
    start = identify({**spec.start, "sources": sources, **{n: what[n] for n in ("task_data", "weights")}})
    if start not in _started:
        if len(_started) >= STARTS_KEPT:
            _started.pop(next(iter(_started)))  # the oldest
        _started[start] = swarm.evaluate(0, spec.evaluation.completions)
    return _started[start]


def keep_weights_of(
    spec: CellSpec, directory: CellDir, rounds: Sequence[int], progress: Progress, stop: Callable[[], bool]
) -> list[int]:
    """Play a finished cell's rounds once more, up to the last of `rounds`, to keep the weights they begin with.

    Record and completions stay as they are; nothing is evaluated and nothing checkpointed.

    Returns:
        The rounds that stay without: a round before them came out otherwise than stored, as it may on another machine
        or with other versions, and its successors' weights would belong to other pools.

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
    """Token ids of every pool by round, in the order in which rounds make them."""
    rows = directory.read_rows(["phase", "round", "ids"])
    made: dict[int, list[tuple[int, ...]]] = {}
    for line in rows.filter(pc.equal(rows["phase"], "train")).to_pylist():
        made.setdefault(line["round"], []).append(tuple(line["ids"]))
    return made


def checkpointed(directory: CellDir) -> int:
    """Rounds that the checkpoint of an unfinished cell holds; 0 where it has none or a damaged one."""
    try:
        return int(read_sealed(directory.checkpoint / "state.json")["done"])
    except (BrokenRecordError, KeyError):
        return 0


def failed_record(spec: CellSpec, what: dict[str, Any], error: Exception) -> Record:
    """The record of a cell that could not finish: its error, and no score. `what` is the cell's `identity`."""
    return Record(
        **_identified(what),
        status="error",
        error=f"{type(error).__name__}: {error}",
        provenance=provenance.provenance(spec.device, spec.threads) | {"finished": provenance.now()},
    )


def _identified(what: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that say which cell it is."""
    return {
        "cell_id": identify(what),
        "cell": what["cell"] | {"topology": what["cell"]["swarm"]["topology"]},
        "identity": {name: value for name, value in what.items() if name != "cell"},
    }


def build_swarm(
    spec: CellSpec,
    note: Callable[[str], None] = lambda message: None,
    maker: DefenseFactory = RegistryFactory(),  # noqa: B008  (it holds nothing)
    company: CellRuntime = ALONE,
) -> Swarm:
    """The swarm that a cell describes, at its start weights.

    Raises:
        ModelError, SpecError, registry.SpecStringError, TaskError: see there.
    """
    defense = maker.make(spec.defense)
    return company.swarm(
        spec=spec.swarm,
        role=spec.role,
        policy=[Policy.load(resolve(model), spec.device, spec.dtype) for model in spec.models],
        task=registry.make("task", spec.task),
        attack=registry.make("attack", spec.attack),
        defense=defense,
        seed=spec.seed,
        judge=None if defense.judge is None else judge_of(defense.judge, spec.device, spec.dtype, note),
        batches=spec.batches,
    )


@dataclass
class _Run:
    """A cell in progress: what is done, and what of it is not on disk yet."""

    spec: CellSpec
    swarm: Swarm
    directory: CellDir
    recorded: Sequence[int] = ()
    done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    pending: list[pa.Table] = field(default_factory=list)
    saved_at: float = field(default_factory=time.monotonic)
    saved_round: int = -1

    @property
    def _work(self) -> Path:
        return self.directory.checkpoint

    def play(self) -> None:
        """The next round, the evaluation behind it where one is due, and a checkpoint where one is due."""
        number = self.done + 1
        if number in self.recorded:
            weights.keep(self.directory, number, self.swarm.policy)
        made = self.swarm.round(number)
        spent = self.keep(made)
        self.grad_norms.append(made.grad_norm)
        planned = self.spec.evaluation
        if number == self.spec.rounds:
            spent += self.keep(self.swarm.evaluate(number, planned.final))
        elif number % planned.every == 0:
            spent += self.keep(self.swarm.evaluate(number, planned.completions))
        self.pace.append(round(spent, 3))
        self.done = number
        if time.monotonic() - self.saved_at > CHECKPOINT_SECONDS:
            self.checkpoint()

    def keep(self, made: RoundRecord) -> float:
        """Remember rows and seconds of a round or an evaluation; how many seconds it took."""
        self.pending.append(rows_table(made.rows))
        for phase, value in made.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value
        return sum(made.seconds.values())

    def checkpoint(self) -> None:
        """Write rows and weights, then the file that makes them count, so that a kill in between loses nothing."""
        if self.done == self.saved_round or not self.pending:
            return
        part = f"rows-{self.done:06d}.parquet"
        write_table(self._work / part, pa.concat_tables(self.pending))
        tensors = f"weights-{self.done:06d}.safetensors"
        write_atomically(self._work / tensors, save(self.swarm.population.tensors()))
        state = {
            "done": self.done, "parts": [*self.parts, part], "weights": tensors, "seconds": self.seconds,
            "grad_norms": self.grad_norms, "pace": self.pace, "cohorts": self.swarm.population.state(),
            "sha256": {name: file_sha256(self._work / name) for name in (*self.parts, part, tensors)},
        }  # fmt: skip
        write_sealed(self._work / "state.json", state)
        for old in self._work.glob("weights-*.safetensors"):
            if old.name != tensors:
                old.unlink()
        self.parts.append(part)
        self.pending = []
        self.saved_at, self.saved_round = time.monotonic(), self.done

    def resume(self) -> bool:
        """Take up the last checkpoint; False where there is none.

        Raises:
            BrokenRecordError: the checkpoint is damaged.
        """
        path = self._work / "state.json"
        if not path.exists():
            return False
        state = read_sealed(path)
        try:
            for name, expected in state["sha256"].items():
                if file_sha256(self._work / name) != expected:
                    raise BrokenRecordError(f"{self._work / name} is damaged")
            tensors = load_file(self._work / state["weights"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise BrokenRecordError(f"the checkpoint in {self._work} is damaged") from error
        self.swarm.population.restore(tensors, state["cohorts"])
        self.parts, self.seconds, self.grad_norms = state["parts"], state["seconds"], state["grad_norms"]
        self.pace = state.get("pace", [])  # a checkpoint of an older version has none
        self.done = self.saved_round = state["done"]
        self.swarm.remember(table_rows(self.table()))
        return True

    def table(self) -> pa.Table:
        """All rows so far."""
        return pa.concat_tables([*(pq.read_table(self._work / part) for part in self.parts), *self.pending])

    def clear(self) -> None:
        """Remove the checkpoint of a finished cell."""
        for path in self._work.glob("*"):
            path.unlink()
        self._work.rmdir()
