"""A cell in progress: its rounds one by one, and checkpoints from which a killed process resumes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thiefbench.attack_answers import wrong_outcomes
from thiefbench.averaging.swarm import AveragingSwarm
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.swarm import Swarm
from thiefbench.pipeline.swarm import PipelineSwarm
from thiefbench.suite.execution.sharing.shared_rounds import SharedRounds
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import (
    BrokenRecordError,
    CellDir,
    file_sha256,
    read_sealed,
    rows_table,
    table_rows,
    write_atomically,
    write_sealed,
    write_table,
)
from thiefbench.task_answers import wrong_rewards

CHECKPOINT_SECONDS = 30.0


def checkpointed(directory: CellDir) -> int:
    """Rounds in the checkpoint of an unfinished cell; 0 if it has none or a damaged one."""
    try:
        return int(read_sealed(directory.checkpoint / "state.json")["done"])
    except (BrokenRecordError, KeyError):
        return 0


def wrong_rows(swarm: Swarm, rows: Sequence[CompletionRow]) -> str:
    """Which reward of the task, or which outcome of the attack, is none, in a sentence; empty if all are."""
    rewarded = [row.reward for row in rows if swarm.spec.reward == "rule"]
    rewarded += [row.rule_reward for row in rows if row.rule_reward is not None]
    if wrong := wrong_rewards(rewarded, len(rewarded)):
        return f"the task {swarm.task.name} gave {wrong}"
    if not (wrong := wrong_outcomes(swarm.attack, (row.outcome for row in rows))):
        return ""
    text = next(row.text for row in rows if wrong_outcomes(swarm.attack, [row.outcome]))
    return f"the attack {swarm.attack.name} gave {wrong} (on {text[:100]!r})"


@dataclass
class CellInProgress:
    """A cell in progress: its finished rounds, and those not yet on disk."""

    spec: CellSpec
    swarm: Swarm
    directory: CellDir
    recorded: Sequence[int] = ()
    shared: SharedRounds | None = None
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

    @property
    def _beside(self) -> tuple[str, AveragingSwarm | PipelineSwarm] | None:
        """The swarm and its name in a checkpoint, if it has a state beside its population's."""
        if isinstance(self.swarm, AveragingSwarm):
            return "exchanges", self.swarm
        return ("stages", self.swarm) if isinstance(self.swarm, PipelineSwarm) else None

    def play(self) -> None:
        """Play the next round, with an evaluation and a checkpoint after it if they are due."""
        number = self.done + 1
        if number in self.recorded:
            weights.keep(self.directory, number, self.swarm.policy)
        if self.shared is not None:
            self.shared.begin(number)
        record, evaluated = self.swarm.round(number), None
        if self.shared is not None:
            record, evaluated = self.shared.end(record)
        spent = self.keep(record)
        self.grad_norms.append(record.grad_norm)
        if evaluated is not None:
            self.pending.append(evaluated)
        elif completions := self.spec.evaluation.due(number, self.spec.rounds):
            spent += self.keep(self.swarm.evaluate(number, completions))
        self.pace.append(round(spent, 3))
        self.done = number
        if time.monotonic() - self.saved_at > CHECKPOINT_SECONDS:
            self.checkpoint()

    def keep(self, record: RoundRecord) -> float:
        """Add the rows and seconds of a round or an evaluation; returns the seconds it took.

        Raises:
            ValueError: the attack gave outcomes that are not valid, or the task rewards.
        """
        if wrong := wrong_rows(self.swarm, record.rows):
            raise ValueError(wrong)
        self.pending.append(rows_table(record.rows))
        for phase, value in record.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value
        return sum(record.seconds.values())

    def checkpoint(self) -> None:
        """Write rows and weights, then the file that makes them valid, so that a kill in between loses nothing."""
        if self.done == self.saved_round or not self.pending:
            return
        part = f"rows-{self.done:06d}.parquet"
        write_table(self._work / part, pa.concat_tables(self.pending))
        tensors = f"weights-{self.done:06d}.safetensors"
        of_shared = None if self.shared is None else self.shared.state()
        # Weights may be older than the rows. Older versions of this package must not take them for the current ones.
        behind = bool(of_shared and of_shared["owed"])
        current = self.swarm.population.tensors() if self.shared is None else self.shared.tensors()
        beside = self._beside
        if beside is not None:
            current |= beside[1].tensors()
        write_atomically(self._work / tensors, save(current))
        state = {
            "done": self.done, "parts": [*self.parts, part], "shared": of_shared,
            "weights_behind" if behind else "weights": tensors, "seconds": self.seconds,
            "grad_norms": self.grad_norms, "pace": self.pace, "cohorts": self.swarm.population.state(),
            "payload": self.swarm.attack.describe(),
            "sha256": {name: file_sha256(self._work / name) for name in (*self.parts, part, tensors)},
        }  # fmt: skip
        if beside is not None:
            state[beside[0]] = beside[1].state()
        write_sealed(self._work / "state.json", state)
        for old in self._work.glob("weights-*.safetensors"):
            if old.name != tensors:
                old.unlink()
        self.parts.append(part)
        self.pending = []
        self.saved_at, self.saved_round = time.monotonic(), self.done

    def resume(self) -> bool:
        """Continue from the last checkpoint; False if there is none.

        Raises:
            BrokenRecordError: the checkpoint is damaged.
        """
        for folder in (self.directory.path, self._work):
            if folder.is_symlink():  # of a store that somebody else made: what is written here belongs into the store
                raise BrokenRecordError(f"{folder} is a link")
        path = self._work / "state.json"
        if not path.exists():
            return False
        state = read_sealed(path)
        of_shared = state.get("shared")  # a checkpoint of an older version has none
        if self.shared is None and of_shared and of_shared["taken"]:
            raise BrokenRecordError(f"the checkpoint in {self._work} holds shared rounds, and this run shares none")
        try:
            for name, expected in state["sha256"].items():
                if file_sha256(self._work / name) != expected:
                    raise BrokenRecordError(f"{self._work / name} is damaged")
            tensors = load_file(self._work / (state.get("weights_behind") or state["weights"]))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise BrokenRecordError(f"the checkpoint in {self._work} is damaged") from error
        self.swarm.recall(state["payload"])
        self.swarm.population.restore(tensors, state["cohorts"])
        if (beside := self._beside) is not None:
            try:
                beside[1].restore(tensors, state[beside[0]])
            except (KeyError, TypeError, ValueError) as error:
                raise BrokenRecordError(f"the checkpoint in {self._work} is damaged") from error
        self.parts, self.seconds, self.grad_norms = state["parts"], state["seconds"], state["grad_norms"]
        self.pace = state.get("pace", [])  # a checkpoint of an older version has none
        self.done = self.saved_round = state["done"]
        rows = self.table()
        self.swarm.remember(table_rows(rows))
        if self.shared is not None:
            self.shared.restore(of_shared, rows)
        return True

    def table(self) -> pa.Table:
        """All rows so far."""
        return pa.concat_tables([*(pq.read_table(self._work / part) for part in self.parts), *self.pending])

    def clear(self) -> None:
        """Remove the checkpoint of a finished cell."""
        for path in self._work.glob("*"):
            path.unlink()
        self._work.rmdir()
