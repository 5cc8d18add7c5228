"""Shared rounds: a cell takes over the rounds that are the same as in a finished cell instead of training them.

A swarm's state after a round is determined by its state before, the pool and the verdicts. Among many defenses against
one attack, several reject exactly the payload and several reject nothing, and until their verdicts differ their swarms
are the same. So every finished cell stores its trajectory: a mark (a hash) for every round. A new cell plays its rounds
with the completions of a trajectory that has had the same marks so far (see `thiefbench.engine.backends.followed`); its
own defense inspects them, and its own attack submits if it may query that defense. If the resulting mark equals the
trajectory's, gradient norm and evaluation are taken over, and the update is deferred until the weights are needed (see
`thiefbench.engine.learning.deferred`). If it equals no trajectory's, the update is carried out and the cell continues
on its own.

**Why equal marks mean equal swarms.** The first mark covers everything that determines a cell's bits, except its
defense and the defense's judge: all parameters, data, start weights, sources of task and attack, the package's own
source, versions of the libraries, processor and threads. Two cells with the same first mark have the same state before
round 1. The mark of a round covers the previous mark, and

- the round's rows as stored, except for score and reason, which only the cell's own defense reads. So it covers the
  pool (items, tokens, texts, senders, rewards and reasons for refusals), which completions carry the payload, each
  completion's outcome, the actions and the token weights;
- which completions the update runs together. This depends on what the defense measured on the policy, in which calls,
  and affects the last bits of the gradient: two defenses with the same verdicts need not lead to the same weights;
- the fields of the attack. Attacks should keep no state, but if one does, its state may depend on a defense's answers.
  Cells whose attack has fields that cannot be serialised are not shared. An attack whose fields change is asked for its
  outcomes in every evaluation, and its cells are not shared if its submissions would be taken over.

A control has no malicious node: its attack only defines what is measured. So all controls of a swarm are the same
swarm, and neither the attack nor its outcomes are part of their marks, except for libraries that the attack publishes,
since programs may import them. If the attacks differ, an evaluation's recorded answers are taken over, and the cell's
own attack computes their outcomes.

So weights and optimizer moments after the update are equal, and with them the next round's honest completions and the
evaluation. Everything else in a round is computed only from the seed and the round's number: items, duties, noise, the
order that the defense sees, its random generator and the attack's. No random generator is carried over between rounds.
Attackers with history see the pools, never verdicts. Rewards and outcomes are functions of item and text.

A defense that reads a clock or unseeded randomness gives other verdicts than the recorded ones, so its cell continues
on its own. Its trajectory records what really happened, and no other cell follows it by accident.

Gradient norms check this: an update that is computed again must give the recorded norm to the last bit. If it does not,
this machine does not reproduce that cell, and the new cell starts again without sharing (`NotReproducedError`).

**Not shared** are swarms of several models, with delay, churn, sharing by count or log-probs; attacks that rehearse;
attacks that are granted the policy but no queries in swarms with announced seeds, because those are not recorded; cells
on other devices than a CPU, where updates are not shown to be reproducible; and swarms under torchrun. Such cells are
trained in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from time import perf_counter
from types import MappingProxyType, ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thiefbench import provenance, registry
from thiefbench.attacks.base import Attack
from thiefbench.engine.backends.followed import FollowingBackend, schedule_places
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.learning.deferred import OwedUpdate
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import (
    SHARED,
    BrokenRecordError,
    CellDir,
    Record,
    file_sha256,
    half_written,
    read_sealed,
    rows_table,
    table_rows,
    write_atomically,
    write_sealed,
)
from thiefbench.suite.store.tables import TableError
from thiefbench.tasks.base import Completion, Item

Marks = tuple[str, ...]

KEEP_EVERY = 10
"""Number of rounds between two stored states."""

_CELL_ID = re.compile(r"[0-9a-f]{16}")
_SWITCHES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_")  # environment variables that affect how libraries compute
_NOT_MARKED = ("score", "reason")
_UNWRITTEN = (torch.Tensor, Policy, ModuleType, dict, list, tuple, set, frozenset)


class NotReproducedError(Exception):
    """Updates computed again from recorded rounds do not give the recorded weights on this machine."""


class _LostError(Exception):
    """A finished cell's files are gone or damaged."""


def may_share(spec: CellSpec) -> bool:
    """Whether a cell may share rounds; see the last paragraph of the module docstring."""
    if spec.device != "cpu" or spec.swarm.mixed or spec.averaging:
        return False
    if spec.swarm.reward != "rule" and spec.swarm.reward_judge.endpoint is not None:
        return False  # a server may reply otherwise when it is asked again
    if spec.role == "control":
        return True
    threat = registry.make("attack", spec.attack).threat
    unrecorded_seeds = spec.swarm.seeds == "announced" and threat.policy and not threat.queries
    return not (threat.rehearsal or unrecorded_seeds)


@dataclass(frozen=True)
class Trajectory:
    """What a finished cell stores for other cells with the same first mark.

    Attributes:
        cell: the cell's id.
        defense: its spec string, for people.
        marks: one before the first round and one after each round.
        attack_unchanged: whether the attack's fields never changed, so that its views determine its submissions.
        completions_sha256: hash of its rows.
        attack: hash of its attack's spec string and source.
    """

    cell: str
    defense: str
    marks: Marks
    attack_unchanged: bool
    completions_sha256: str
    attack: str

    @classmethod
    def read(cls, path: Path) -> Trajectory:
        """Read what `write` wrote.

        Raises:
            BrokenRecordError: the file is damaged or something else.
        """
        content = read_sealed(path)
        try:
            found = cls(**content | {"marks": tuple(content["marks"])})
        except (KeyError, TypeError) as error:
            raise BrokenRecordError(f"{path} is no trajectory") from error
        if not isinstance(found.cell, str) or not _CELL_ID.fullmatch(found.cell):
            raise BrokenRecordError(f"{path} names no cell")
        return found

    def write(self, folder: Path) -> None:
        """Write it to the folder of cells with the same first mark."""
        write_sealed(folder / f"{self.cell}.json", asdict(self) | {"marks": list(self.marks)})


class _Followed:
    """A finished cell whose rounds another cell may take over."""

    def __init__(self, trajectory: Trajectory, directory: CellDir) -> None:
        self.trajectory, self._directory = trajectory, directory

    def pool(self, number: int) -> list[CompletionRow]:
        """The rows of a round, in their original order.

        Raises:
            _LostError: see there.
        """
        rows = list(table_rows(self._rows(number, train=True)))
        if not rows:
            raise _LostError
        return rows

    def evaluation(self, number: int) -> pa.Table | None:
        """The rows of the evaluation after a round, or None if there is none; raises like `pool`."""
        rows = self._rows(number, train=False)
        return rows if rows.num_rows else None

    def grad_norm(self, number: int) -> float:
        """The gradient norm of a round's update; raises like `pool`."""
        record, _ = self._files
        points = {point.round: point.value for point in record.curves.get("grad_norm", ())}
        if (norm := points.get(number)) is None:
            raise _LostError
        return norm

    def _rows(self, number: int, train: bool) -> pa.Table:
        _, table = self._files
        of_round = table.filter(pc.equal(table["round"], number))
        in_training = pc.equal(of_round["phase"], "train")
        return of_round.filter(in_training if train else pc.invert(in_training))

    @cached_property
    def _files(self) -> tuple[Record, pa.Table]:
        try:
            record = self._directory.read()
            if record is None or record.completions_sha256 != self.trajectory.completions_sha256:
                raise _LostError
            return record, self._directory.read_rows()
        except (OSError, BrokenRecordError, TableError) as error:
            raise _LostError from error


class _Backend(FollowingBackend):
    """Also follows recorded evaluations: their answers are taken over, and outcomes are computed from them."""

    _answers: Mapping[tuple[str, int], CompletionRow] = MappingProxyType({})

    def follow_answers(self, evaluation: pa.Table | None) -> None:
        """Answer the next evaluation as in a recorded one; with None, sample again."""
        rows = () if evaluation is None else table_rows(evaluation)
        self._answers = {(row.phase, row.place): row for row in rows}

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """The recorded answers if all are known; an answer depends only on the weights, seed, item and its number."""
        rows = [self._answers.get((phase, first + i)) for i in range(len(items))]
        known = [row for row, item in zip(rows, items, strict=True) if row is not None and row.item_id == item.id]
        if len(known) < len(items):
            return super().answers(phase, items, first, cohorts)
        return [Completion(row.ids, row.text, row.ended) for row in known]


class States:
    """Stored weights and optimizer moments, by mark, for cells that differ from the others after it.

    Without them, a cell only takes longer, because it computes its state from the recorded rounds.

    Args:
        folder: the folder of cells with the same first mark; its parent holds those of others.
        most_bytes: the most bytes for all of them; the oldest are deleted first.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder / "states", most_bytes

    def keep(self, mark: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store the state after a mark, unless it exists or is larger than `most_bytes`."""
        path = self._path(mark)
        if path.exists() or sum(each.nbytes for each in tensors.values()) > self._most:
            return
        content = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
        write_atomically(path, content)
        write_sealed(path.with_suffix(".json"), {"sha256": hashlib.sha256(content).hexdigest()})
        self._evict()

    def load(self, mark: str) -> dict[str, torch.Tensor] | None:
        """The state after a mark; None if it is not stored, or damaged."""
        path = self._path(mark)
        try:
            if file_sha256(path) != read_sealed(path.with_suffix(".json")).get("sha256"):
                return None
            return load_file(path)
        except (OSError, BrokenRecordError, SafetensorError):
            return None

    def _path(self, mark: str) -> Path:
        return self._folder / f"{mark}.safetensors"

    def _evict(self) -> None:
        sizes: dict[Path, tuple[float, int]] = {}
        for path in self._folder.parent.parent.glob("*/states/*.safetensors"):
            with suppress(OSError):  # another process may have deleted it
                about = path.stat()
                sizes[path] = about.st_mtime, about.st_size
        total = sum(size for _, size in sizes.values())
        for path, (_, size) in sorted(sizes.items(), key=lambda each: each[1]):
            if total <= self._most:
                break
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
            total -= size


class SharedRounds:
    """A cell in progress and the finished cells with the same first mark.

    Args:
        spec: the cell.
        what: its `identity`.
        directory: the cell's directory; the trajectories of all cells are in the store's folder `shared`.
        most_bytes: the most bytes for all weights there.

    Attributes:
        taken: the cell from which each shared round was taken over.
    """

    def __init__(self, spec: CellSpec, what: Mapping[str, Any], directory: CellDir, most_bytes: int = 0) -> None:
        self.backend = _Backend(spec.batches)
        self._spec, self._what, self._cell = spec, what, directory.path.name
        self._attack = _digest(json.dumps([what["cell"]["attack"], what["sources"]["attack"]]))
        self._cells, self._most_bytes = directory.path.parent, most_bytes
        self._others: list[_Followed] | None = None
        self.taken: dict[int, str] = {}
        self._attack_unchanged = True

    def attach(self, swarm: Swarm) -> None:
        """Set the swarm, which plays with `backend`."""
        self._swarm, self._fields = swarm, fields_of(swarm.attack)
        self._start = start_mark(self._spec, self._what, swarm.attack.libraries())
        self._folder = self._cells.parent / "shared" / self._start
        self._states = States(self._folder, self._most_bytes)
        self._marks: list[str] | None = [self._start]
        if self._fields is None or not self._usable():
            self._marks = None
        self.backend.cohort.kept = self._kept

    def _usable(self) -> bool:
        """Whether the folder is the store's own and not a link, which a store from somebody else could contain.

        Half-written files of this cell, left by a kill, are removed.
        """
        if any(path.is_symlink() for path in (self._folder.parent, self._folder, self._folder / "states")):
            return False
        for path in half_written(self._folder):
            if path.name.startswith(f".{self._cell}."):  # its lock is held; others may be writing theirs
                path.unlink(missing_ok=True)
        return True

    def start_evaluation(self) -> pa.Table | None:
        """The rows of the evaluation before round 1; None if no cell has them."""
        while (other := self._next()) is not None:
            try:
                return self._evaluation(other, 0)
            except _LostError:
                self._drop(other)
        return None

    def _evaluation(self, other: _Followed, number: int) -> pa.Table | None:
        """The rows of another cell's evaluation after a round; raises _LostError.

        None if there is none, and if the outcomes must be computed here: because the attacks differ, or because the
        attack's fields changed in that cell, so its state may depend on the outcomes it computed. The next evaluation
        then takes over the answers alone.
        """
        rows = other.evaluation(number)
        if other.trajectory.attack == self._attack and other.trajectory.attack_unchanged:
            return None if rows is None else _of_its_own(rows)
        self.backend.follow_answers(rows)
        return None

    def begin(self, number: int) -> None:
        """Prepare for a round: follow a trajectory that has had the same marks, if there is one."""
        cohort = self.backend.cohort
        cohort.defers, cohort.seconds_behind = False, 0.0
        self.backend.follow(())
        self.backend.follow_answers(None)
        while (other := self._next()) is not None:
            try:
                self.backend.follow(other.pool(number))
            except _LostError:
                self._drop(other)
                continue
            cohort.defers = True
            return

    def end(self, record: RoundRecord) -> tuple[RoundRecord, pa.Table | None]:
        """Finish a round: its record with the update's gradient norm, and the evaluation's rows if they are known.

        Raises:
            NotReproducedError: see there.
        """
        cohort, number = self.backend.cohort, record.rows[0].round
        self.backend.follow(())
        self._mark(record)
        evaluation = None
        if cohort.defers:
            known_norm, evaluation = self._going_on(number)
            in_round, began = cohort.seconds_behind, perf_counter()
            norm = cohort.settle(number, known_norm)
            seconds = record.seconds | {"update": record.seconds["update"] + perf_counter() - began}
            if number in self.taken:
                seconds = _seconds_of_shared(seconds, in_round)
            record = replace(record, grad_norm=norm, seconds=seconds)
        if not cohort.reproduced:
            raise NotReproducedError
        if self._marks is not None and number % KEEP_EVERY == 0 and number < self._spec.rounds and not cohort.owed:
            self._states.keep(self._marks[-1], cohort.state_before_owed())
        return record, evaluation

    def _kept(self, owed: Sequence[OwedUpdate]) -> tuple[int, dict[str, torch.Tensor]] | None:
        """For `DeferringCohort.kept`: a state that some cell has stored after one of these rounds."""
        for place in range(len(owed), 0, -1):
            update = owed[place - 1]
            if self._marks is None or update.grad_norm is None:  # it is this cell's own
                continue
            if (tensors := self._states.load(self._marks[update.round])) is not None:
                return place, tensors
        return None

    def _going_on(self, number: int) -> tuple[float | None, pa.Table | None]:
        """Gradient norm and evaluation of a round that equals another cell's; None if it equals none."""
        while (other := self._next()) is not None:
            try:
                norm, evaluation = other.grad_norm(number), self._evaluation(other, number)
            except _LostError:
                self._drop(other)
                continue
            self.taken[number] = other.trajectory.cell
            return norm, evaluation
        return None, None

    def _next(self) -> _Followed | None:
        """The first cell that has had the same marks so far."""
        if self._marks is None:
            return None
        if self._others is None:
            self._others = self._read_others()
        at, mark = len(self._marks) - 1, self._marks[-1]
        self._others = [each for each in self._others if each.trajectory.marks[at : at + 1] == (mark,)]
        return self._others[0] if self._others else None

    def _read_others(self) -> list[_Followed]:
        others = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found = Trajectory.read(path)
            except BrokenRecordError:
                continue
            # A cell whose submissions are taken over must have an attack without state.
            usable = found.attack_unchanged or not self.backend.takes_submissions
            if usable and found.cell != self._cell and len(found.marks) == self._spec.rounds + 1:
                others.append(_Followed(found, CellDir(self._cells / found.cell)))
        return others

    def _drop(self, other: _Followed) -> None:
        self._others = [each for each in self._others or () if each is not other]

    def _mark(self, record: RoundRecord) -> None:
        """Add the mark of a finished round."""
        if self._marks is None:
            return
        fields = fields_of(self._swarm.attack)
        if fields is None:
            self._marks = None
            return
        self._attack_unchanged &= fields == self._fields
        rows = rows_table(record.rows)
        control = self._spec.role == "control"
        not_marked = (*_NOT_MARKED, "outcome") if control else _NOT_MARKED
        content = (
            self._marks[-1], "" if control else fields, self.backend.cohort.schedule,
            *((name, rows[name].to_pylist()) for name in rows.column_names if name not in not_marked),
        )  # fmt: skip
        self._marks.append(_digest(repr(content)))

    def publish(self, completions_sha256: str) -> None:
        """Store the trajectory of the cell, whose rows are written. It is valid once the record exists."""
        if self._marks is not None and len(self._marks) == self._spec.rounds + 1:
            Trajectory(
                self._cell,
                self._spec.defense,
                tuple(self._marks),
                self._attack_unchanged,
                completions_sha256,
                self._attack,
            ).write(self._folder)

    def state(self) -> dict[str, Any]:
        """Its state for a checkpoint, as JSON."""
        owed = {
            str(each.round): {"schedule": schedule_places(each), "grad_norm": each.grad_norm}
            for each in self.backend.cohort.owed
        }
        return {
            "marks": self._marks, "attack_unchanged": self._attack_unchanged, "owed": owed,
            "taken": {str(number): cell for number, cell in self.taken.items()},
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any] | None, rows: pa.Table) -> None:
        """Continue from what `state` returned.

        Args:
            state: None if the cell was begun without sharing.
            rows: the cell's rows so far.
        """
        if state is None:
            self._marks = None
            return
        begun_elsewhere = not state["marks"] or state["marks"][0] != self._start
        self._marks = None if self._marks is None or begun_elsewhere else state["marks"]
        self._attack_unchanged = state["attack_unchanged"]
        self.taken = {int(number): cell for number, cell in state["taken"].items()}
        owed = []
        for number, update in sorted((int(number), update) for number, update in state["owed"].items()):
            in_round = pc.and_(pc.equal(rows["round"], number), pc.equal(rows["phase"], "train"))
            pool = list(table_rows(rows.filter(in_round)))
            owed.append(self.backend.owed_update(pool, update["schedule"], update["grad_norm"]))
        self.backend.cohort.resume(owed)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights and moments before the first deferred update in `state`, named as in `Population.tensors`."""
        cohort = self.backend.cohort
        return {f"{cohort.number}/{name}": tensor for name, tensor in cohort.state_before_owed().items()}

    def about(self) -> dict[str, Any]:
        """Its entries for a record; none of them is part of the cell's identity."""
        spans: list[tuple[int, int, str]] = []
        for number, cell in sorted(self.taken.items()):
            if spans and spans[-1][1:] == (number - 1, cell):
                spans[-1] = (spans[-1][0], number, cell)
            else:
                spans.append((number, number, cell))
        return {SHARED: ", ".join(f"{first}-{last} of {cell}" for first, last, cell in spans)} if spans else {}


def _seconds_of_shared(seconds: Mapping[str, float], behind: float) -> dict[str, float]:
    """The seconds of a round that was taken over, `behind` of which were for updates that had been deferred.

    They are only a part of the time of a trained round, so they do not measure a defense's cost; the inspection does.
    """
    inspected = seconds["inspect"]
    if inspected > behind:  # else others had asked
        inspected -= behind
    return {"inspect": inspected, SHARED: sum(seconds.values()) - inspected}


def _of_its_own(rows: pa.Table) -> pa.Table:
    """A part of a table as a table of these rows alone would be: its dictionaries hold no values of the others."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(place, field, rows[field.name].cast(pa.string()).dictionary_encode())
    return rows


def start_mark(spec: CellSpec, what: Mapping[str, Any], libraries: Mapping[str, str]) -> str:
    """The mark before round 1: of everything that determines a cell's bits except its defense and a control's attack.

    Args:
        spec: the cell.
        what: its `identity`.
        libraries: modules that its attack publishes.
    """
    apart_from = ("defense", "attack") if spec.role == "control" else ("defense",)
    content = {name: value for name, value in what.items() if name != "judge"}
    content["cell"] = {name: value for name, value in what["cell"].items() if name not in apart_from}
    content["sources"] = {kind: digest for kind, digest in what["sources"].items() if kind not in apart_from}
    content["libraries"] = dict(libraries)
    here = provenance.provenance(spec.device, spec.threads)
    apart = ("git_commit", "git_dirty")
    content["made_with"] = {name: value for name, value in here.items() if name not in apart}
    content["arithmetic"] = [torch.__config__.show(), torch.get_float32_matmul_precision()]
    content["switches"] = {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}
    return _digest(json.dumps(content, sort_keys=True))


def fields_of(attack: Attack) -> str | None:
    """An attack's fields as a text that is equal for equal fields; None if a field has no such text."""
    try:
        return repr(_written(attack, set()))
    except TypeError:
        return None


def _written(value: object, within: set[int]) -> object:
    """A value as nested tuples of numbers and strings.

    Raises:
        TypeError: it is or contains something else: weights, a random generator, a nested function.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum | Path | re.Pattern):
        return kind, repr(value)
    if isinstance(value, random.Random):
        return kind, value.getstate()
    if isinstance(value, type):
        return kind, value.__module__, value.__qualname__
    if id(value) in within:
        raise TypeError("it holds itself")
    inner = within | {id(value)}
    fields = getattr(value, "__dict__", {})
    if not fields and isinstance(value, dict):
        return kind, tuple((_written(name, inner), _written(each, inner)) for name, each in value.items())
    if not fields and isinstance(value, list | tuple):
        return kind, tuple(_written(each, inner) for each in value)
    if not fields and isinstance(value, set | frozenset):
        return kind, tuple(sorted(repr(_written(each, inner)) for each in value))
    hides = any(vars(each).get("__slots__") for each in type(value).__mro__)
    if hides or callable(value) or not hasattr(value, "__dict__") or isinstance(value, _UNWRITTEN):
        raise TypeError(f"{kind} cannot be written down")
    return kind, _written(fields, inner)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
