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
evaluation. Everything else in a round is computed only from the seed and the round's number: items, assignments, noise,
the order that the defense sees, its random generator and the attack's. No random generator is carried over.
Attackers with history see the pools, never verdicts. Rewards and outcomes are functions of item and text; where a judge
rewards, what it said is taken over as well (`thiefbench.suite.execution.sharing.stored_rewards`). An attack
that may query the defense submits again, unless it queried nothing in the recorded round (see
`thiefbench.suite.execution.sharing.following`).

A defense that reads a clock or unseeded randomness gives other verdicts than the recorded ones, so its cell continues
on its own. Its trajectory records what really happened, and no other cell follows it by accident.

Gradient norms check this: an update that is computed again must give the recorded norm to the last bit. If it does not,
this machine does not reproduce that cell, and the new cell starts again without sharing (`NotReproducedError`).

An attack that rehearses does so before the cell follows another. The rehearsal takes over rounds by itself (see
`thiefbench.suite.execution.sharing.rehearsals`), and the cell then follows cells whose attack has the same fields after
it.

**Not shared** are swarms of several models, with delay, churn, sharing by count or log-probs; attacks that are granted
the policy but no queries in swarms with announced seeds, because those are not recorded; cells on other devices than a
CPU, where updates are not shown to be reproducible; and swarms under torchrun. Such cells are trained in full.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from thiefbench import registry
from thiefbench.engine.backends.followed import schedule_places
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.learning.deferred import OwedUpdate
from thiefbench.engine.reward_judge import RewardJudge
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.suite.execution.sharing.following import RehearsingSwarm, WatchingBackend, seeds_unrecorded
from thiefbench.suite.execution.sharing.marks import digest, fields_of, round_mark, start_mark
from thiefbench.suite.execution.sharing.rehearsals import KeptRounds, SharedRehearsal, spans_of
from thiefbench.suite.execution.sharing.shared_folder import NotReproducedError, States, usable
from thiefbench.suite.execution.sharing.stored_rewards import REWARDS, StoredRewards
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import (
    SHARED,
    SHARED_REHEARSAL,
    BrokenRecordError,
    CellDir,
    Record,
    read_sealed,
    table_rows,
    write_sealed,
)
from thiefbench.suite.store.tables import TableError
from thiefbench.tasks.base import Completion, Item

Marks = tuple[str, ...]

TELL_EVERY_SECONDS = 60.0
"""How often a rehearsal says how far it is."""
KEEP_EVERY = 10
"""Number of rounds between two states that are kept longest.

Those of the other rounds are spare. A defense that asks the policy needs the weights of every round, and loading them
takes less time than the update.
"""

_CELL_ID = re.compile(r"[0-9a-f]{16}")


class _LostError(Exception):
    """A finished cell's files are gone or damaged."""


def may_share(spec: CellSpec) -> bool:
    """Whether a cell may share rounds; see the last paragraph of the module docstring."""
    if spec.device != "cpu" or spec.swarm.mixed or spec.averaging or spec.pipeline:
        return False
    if spec.swarm.reward != "rule" and spec.swarm.reward_judge.endpoint is not None:
        return False  # a server may reply otherwise when it is asked again
    if spec.role == "control":
        return True
    return not seeds_unrecorded(spec.swarm, registry.make("attack", spec.attack).threat)


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
        played: hash of the attack's fields before round 1, after its rehearsal; empty for a control.
        unasked: the rounds in which the attack did not query the defense.
    """

    cell: str
    defense: str
    marks: Marks
    attack_unchanged: bool
    completions_sha256: str
    attack: str
    played: str
    unasked: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> Trajectory:
        """Read what `write` wrote.

        Raises:
            BrokenRecordError: the file is damaged or something else.
        """
        content = read_sealed(path)
        try:
            found = cls(**content | {name: tuple(content[name]) for name in ("marks", "unasked")})
        except (KeyError, TypeError) as error:
            raise BrokenRecordError(f"{path} is not a trajectory") from error
        if not isinstance(found.cell, str) or not _CELL_ID.fullmatch(found.cell):
            raise BrokenRecordError(f"{path} names no cell")
        return found

    def write(self, folder: Path) -> None:
        """Write it to the folder of cells with the same first mark."""
        write_sealed(folder / f"{self.cell}.json", asdict(self))


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


class _Backend(WatchingBackend):
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


class SharedRounds:
    """A cell in progress and the finished cells with the same first mark.

    Args:
        spec: the cell.
        what: its `identity`.
        directory: the cell's directory; the trajectories of all cells are in the store's folder `shared`.
        most_bytes: the most bytes for all weights there.
        stop: called after every round of a rehearsal; if it returns True, the rehearsal is given up.
        note: receives a message when a rehearsal begins, and how far it is about once a minute.

    Attributes:
        taken: the cell from which each shared round was taken over.
        rehearsed: which rounds of the rehearsal were taken over, and from which cells.
    """

    def __init__(
        self,
        spec: CellSpec,
        what: Mapping[str, Any],
        directory: CellDir,
        most_bytes: int = 0,
        stop: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.backend = _Backend(spec.batches)
        self._spec, self._what, self._cell = spec, what, directory.path.name
        self._attack = digest(json.dumps([what["cell"]["attack"], what["sources"]["attack"]]))
        self._cells, self._most_bytes = directory.path.parent, most_bytes
        self._stop, self._note = stop, note
        self._others: list[_Followed] | None = None
        self._rewards: StoredRewards | None = None
        self.taken: dict[int, str] = {}
        self.rehearsed = ""
        self._attack_unchanged = True
        self._compared = False
        self._played: str | None = None
        self._unasked: list[int] = []
        self._seconds_rehearsed = self._told = 0.0

    def storing(self, judge: RewardJudge) -> RewardJudge:
        """The swarm's judge that rewards, with what it says stored for other cells from `attach` on."""
        self._rewards = StoredRewards(judge)
        return self._rewards

    def attach(self, swarm: RehearsingSwarm) -> None:
        """Set the swarm, which plays with `backend`."""
        self._swarm, self._fields = swarm, fields_of(swarm.attack)
        self._start = start_mark(self._spec, self._what, swarm.attack.libraries())
        self._folder = self._cells.parent / "shared" / self._start
        self._states = States(self._folder, self._cell, self._most_bytes)
        self._marks: list[str] | None = [self._start]
        folders = self._folder.parent, self._folder, self._folder / "states", self._folder / REWARDS
        own = usable(self._cell, *folders)
        if own and self._rewards is not None and self._most_bytes:
            self._rewards.store_in(self._folder, self._cell)
        if self._fields is None or not own:
            self._marks = None
        self.backend.cohort.kept = self._kept

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
        """Prepare for a round: follow a trajectory that has had the same marks, if there is one.

        Before the first one the attack rehearses, because its choice decides whom the cell can follow.

        Raises:
            KeyboardInterrupt: `stop` returned True during the rehearsal, whose rounds so far are kept.
            NotReproducedError: see there.
        """
        if self._marks is not None and not self._swarm.prepared:
            self._rehearse()
        if self._played is None and self._fields is not None:
            self._played = "" if self._spec.role == "control" else digest(self._fields)
        cohort = self.backend.cohort
        cohort.defers, cohort.seconds_behind = False, 0.0
        self.backend.follow(())
        self.backend.follow_answers(None)
        while (other := self._next()) is not None:
            unasked = other.trajectory.attack_unchanged and number in other.trajectory.unasked
            try:
                self.backend.follow(other.pool(number), unasked and self._spec.swarm.seeds != "announced")
            except _LostError:
                self._drop(other)
                continue
            cohort.defers = True
            return

    def _rehearse(self) -> None:
        """Let the attack rehearse, with rounds of other cells' rehearsals."""
        began, spec = perf_counter(), replace(self._spec, role="attack")
        what = {**self._what, "cell": self._what["cell"] | {"role": "attack"}}
        start = start_mark(spec, what, self._swarm.attack.libraries())
        kept = KeptRounds(self._folder.parent / start, self._cell, what["cell"], self._most_bytes)
        self._told = began
        rehearsal = SharedRehearsal(
            self._swarm, start, kept, self._stop, partial(self._note, self._rehearses()), self._tell_of_rehearsal
        )
        self._attack_unchanged &= fields_of(self._swarm.attack) == self._fields  # by the evaluation before it
        self._swarm.rehearses_on = rehearsal.copied
        self._swarm.prepare()
        self._swarm.rehearses_on = None
        if not rehearsal.reproduced:
            raise NotReproducedError
        self.rehearsed, self._seconds_rehearsed = rehearsal.about(), perf_counter() - began
        self._fields = fields_of(self._swarm.attack)
        if self._fields is None or seeds_unrecorded(self._spec.swarm, self._swarm.attack.threat):
            self._marks = None

    def _rehearses(self) -> str:
        return f"{self._spec.label}: its attack rehearses before round 1, which may take longer than the cell itself"

    def _tell_of_rehearsal(self, copy: int, number: int) -> None:
        """Say how far the rehearsal is, unless it was said a short time ago."""
        if perf_counter() - self._told >= TELL_EVERY_SECONDS:
            self._told = perf_counter()
            self._note(f"{self._spec.label}: rehearsal, round {number} of swarm copy {copy}")

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
        if self._seconds_rehearsed:
            record = replace(record, seconds={"rehearse": self._seconds_rehearsed} | record.seconds)
            self._seconds_rehearsed = 0.0
        if not self.backend.asked:
            self._unasked.append(number)
        if not cohort.reproduced:
            raise NotReproducedError
        if self._marks is not None and number < self._spec.rounds and not cohort.owed:
            self._states.keep(self._marks[-1], cohort.state_before_owed(), spare=number % KEEP_EVERY != 0)
        return record, evaluation

    def _kept(self, owed: Sequence[OwedUpdate]) -> tuple[int, dict[str, torch.Tensor]] | None:
        """For `DeferringCohort.kept`: a state that some cell has stored after one of these rounds.

        The first time, the last recorded update is left to be carried out, so that its gradient norm shows whether this
        machine reproduces the recorded rounds.
        """
        recorded = [place for place, update in enumerate(owed, 1) if update.grad_norm is not None]
        if self._marks is None or not recorded:
            return None
        usable_places = recorded if self._compared else recorded[:-1]
        self._compared = True
        for place in reversed(usable_places):
            if (tensors := self._states.load(self._marks[owed[place - 1].round])) is not None:
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
        if self._played is not None:  # the start evaluation comes before the rehearsal, and does not depend on it
            self._others = [each for each in self._others if each.trajectory.played == self._played]
        if self.backend.draws_alone:  # its submissions are taken over, so it must have kept nothing
            self._others = [each for each in self._others if each.trajectory.attack_unchanged]
        return self._others[0] if self._others else None

    def _read_others(self) -> list[_Followed]:
        others = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found = Trajectory.read(path)
            except BrokenRecordError:
                continue
            if found.cell != self._cell and len(found.marks) == self._spec.rounds + 1:
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
        control, schedule = self._spec.role == "control", self.backend.cohort.schedule
        apart_from = ("outcome",) if control else ()
        self._marks.append(round_mark(self._marks[-1], record.rows, "" if control else fields, schedule, apart_from))

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
                self._played or "",
                tuple(self._unasked),
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
            "rehearsed": self.rehearsed, "played": self._played, "unasked": self._unasked,
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
        self.rehearsed, self._played = state.get("rehearsed", ""), state.get("played")
        self._unasked = state.get("unasked", [])
        self._fields = fields_of(self._swarm.attack)  # with the choice of its rehearsal
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
        entries = {SHARED: spans_of(self.taken), SHARED_REHEARSAL: self.rehearsed}
        return {name: text for name, text in entries.items() if text}


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
