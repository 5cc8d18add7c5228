"""A defense over recorded pools, round by round, without training.

Another cell's stored pools show what a defense rejects, but not what its models would have learned, because from the
second round on they would have sampled other completions. The engine's own code creates the views, so a defense sees
what it would have seen in that cell. A defense that asks the policy is replayed at the rounds whose weights were kept.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import TypeAdapter

from thiefbench import registry
from thiefbench.defenses.base import DefenderView, Defense, JudgeSpec, PastRound, Verdict
from thiefbench.engine.answer_keys import PublishedItems
from thiefbench.engine.compatibility import check_requirements
from thiefbench.engine.exchange import proofs_of
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Dtype, ModelError, Policy
from thiefbench.engine.pool import Pool
from thiefbench.engine.round_record import CompletionRow, as_offered, remembered
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.topology import assignments, slot_seed
from thiefbench.engine.transport import carried
from thiefbench.engine.views.defender import Judge
from thiefbench.judges import check_judge, judge_of
from thiefbench.limits import MOST_THREADS
from thiefbench.suite.analysis.recorded_rounds import Absent, AbsentText, LackingError, Recorded, pool_of
from thiefbench.suite.analysis.recorded_rounds import ReplayError as ReplayError
from thiefbench.suite.analysis.scoring import rejection_rates
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Score, table_rows
from thiefbench.tasks.base import Item, Sampling, Task
from thiefbench.user_frames import described
from thiefbench.zoo.models import resolve

_SWARM = TypeAdapter(SwarmSpec)


class _PolicyAskedError(Exception):
    """A defense asked the policy of a pool that is replayed without one."""


class Recording:
    """A finished cell for replays: every round's pool, and the model if weights were kept.

    Args:
        directory: the cell's directory.
        record: the cell's record.
        task: the cell's task, which has the items.
        judges: creates the judge for a defense from its name, a device and a dtype.

    Attributes:
        pools: the rows of every round, ordered by cohort, group and index.
        cohorts: a recording of every cohort's own pools, because each has its own defense; with one cohort, only this
            recording.
        cohort: the number of the first cohort.
        kept: the rounds whose weights are stored; none with several cohorts, because only one cohort's weights are
            kept.

    Raises:
        ReplayError: the cell has no score, or the task lacks an item.
    """

    def __init__(
        self,
        directory: CellDir,
        record: Record,
        task: Task,
        judges: Callable[[JudgeSpec, str, Dtype], Judge] = judge_of,
    ) -> None:
        if record.status != "ok":
            raise ReplayError(f"the cell {record.cell_id} failed and has no pool to replay")
        rows = directory.read_rows()
        known = [name for name in ("round", "cohort", "group", "place") if name in rows.column_names]
        order = [(name, "ascending") for name in known]
        self._train = rows.filter(pc.equal(rows["phase"], "train")).sort_by(order)
        self.pools: dict[int, list[CompletionRow]] = {}
        for row in table_rows(self._train):
            self.pools.setdefault(row.round, []).append(row)
        self.directory, self.record, self.task, self._judges = directory, record, task, judges
        self.swarm = _SWARM.validate_python(record.cell["swarm"])
        self._no_seeds = Absent("the seeds that senders announced, which are not recorded: run it as a trained cell")
        self.absent: Sequence[Absent] = (self._no_seeds,)
        self._items = _items(task)
        self._model: Policy | None = None
        numbers = sorted({row.cohort for rows in self.pools.values() for row in rows})
        self.cohort = numbers[0] if numbers else 0
        one = len(numbers) < 2
        self.kept = [number for number in weights.kept(directory) if number in self.pools] if one else []
        self.cohorts: list[Recording] = [self] if one else [self._of(number) for number in numbers]
        unknown = next((i for i in self._train["item_id"].to_pylist() if i not in self._items), None)
        if unknown is not None:
            raise ReplayError(
                f"the task has no item {unknown}: replay with the task and data the cell was recorded with"
            )

    @property
    def seed(self) -> int:
        """The cell's."""
        return int(self.record.cell["seed"])

    @property
    def sampling(self) -> Sampling:
        """The swarm's."""
        return self.swarm.sampler

    @property
    def model(self) -> str:
        """The start model of its cohort; empty if unknown, as nodes with sharing or crashes are separate cohorts."""
        classes = self.swarm.population
        if not classes:
            return str(self.record.cell["model"])
        if self.swarm.sharing or self.swarm.churn:
            return classes[0].model if len({each.model for each in classes}) == 1 else ""
        return classes[self.cohort].model

    @property
    def without_policy(self) -> str:
        """Why there is no policy and what to do about it."""
        if len(self.cohorts) > 1:
            return "the policy, and of a swarm of several models no weights are kept: run it as a trained cell"
        return (
            "the policy, and this cell kept no weights: run it as a trained cell, or record rounds with thiefbench "
            "matrix"
        )

    def lacks(self, defense: Defense) -> str:
        """Why a defense cannot be replayed, but only be run as a trained cell; empty if it can."""
        try:
            check_requirements(self.swarm, defense)
        except SpecError as error:
            return str(error)
        if "logprobs" in defense.requires:
            return f"{defense.name} needs log-probs, which are not recorded: run it as a trained cell"
        return ""

    def judge_for(self, defense: Defense) -> Judge | None:
        """The judge that the defense names, on the cell's device with its dtype; None if it asks none.

        Raises:
            ReplayError: there is no such judge here, or it cannot be loaded.
        """
        if "judge" not in defense.requires:
            return None
        try:
            check_judge(defense)
            assert defense.judge is not None
            return self._judges(defense.judge, self.record.cell["device"], self.record.cell["dtype"])
        except (SpecError, ModelError) as error:
            raise ReplayError(str(error)) from error

    def pool(self, number: int, cache_of: Callable[[Sequence[Item]], ForwardCache]) -> Pool:
        """A round's pool; `cache_of` makes the forward cache of its distinct items' prompts."""
        rows = self.pools[number]
        items = [self._items[item_id] for item_id in {row.group: row.item_id for row in rows}.values()]
        keyed = self.swarm.truth == "sender"
        seeds = self._seeds(number, rows)
        offered = [as_offered(row, seed, keyed, self.swarm) for row, seed in zip(rows, seeds, strict=True)]
        pool = pool_of(number, items, offered, cache_of)
        return replace(pool, public=PublishedItems(self.task, items)) if keyed else pool

    def _seeds(self, number: int, rows: Sequence[CompletionRow]) -> list[int]:
        """The seed of every completion's slot; announced seeds are not recorded."""
        if self.swarm.seeds == "announced":
            return [cast(int, self._no_seeds)] * len(rows)
        everyone = assignments(self.swarm, self.seed, number, self._copies)
        owed = {(assignment.group, assignment.index): assignment for assignment in everyone}
        if odd := next((row for row in rows if (row.group, row.place) not in owed), None):
            raise ReplayError(
                f"round {number} has a completion in group {odd.group}, index {odd.place}, that none owed"
            )
        return [slot_seed(self.seed, number, owed[row.group, row.place], row.item_id) for row in rows]

    @cached_property
    def _copies(self) -> int:
        """How many times its owed completions a malicious node offered."""
        cell = self.record.cell
        if self.swarm.sharing is None or cell["role"] == "control":
            return 1
        try:
            return int(registry.make("attack", cell["attack"]).copies)
        except registry.SpecStringError as error:
            raise ReplayError(str(error)) from error

    def _of(self, cohort: int) -> Recording:
        """The pools of one cohort."""
        part = copy.copy(self)
        part._train = self._train.filter(pc.equal(self._train["cohort"], cohort))
        cohort_rows = {number: [row for row in rows if row.cohort == cohort] for number, rows in self.pools.items()}
        part.pools = {number: rows for number, rows in cohort_rows.items() if rows}
        part.cohort, part.cohorts = cohort, [part]
        return part

    def pool_with_policy(self, number: int) -> Pool:
        """A round's pool with the model that sampled it, prepared as in the engine: prompts run, gradients expected.

        Raises:
            ReplayError: the model or the round's weights cannot be loaded.
        """
        policy = self.policy(number)

        def cache_of(items: Sequence[Item]) -> ForwardCache:
            return ForwardCache(policy, [policy.prompt_ids(self.task.messages(item)) for item in items])

        pool = self.pool(number, cache_of)
        pool.cache.prefix()  # sampling leaves the model in this state
        pool.cache.expect(pool.with_gradient())
        return pool

    def scores(self, actions: Mapping[int, Sequence[Verdict]]) -> dict[str, Score]:
        """Rejection rates of verdicts on some rounds, each round's in the order of its pool."""
        rounds = sorted(actions)
        train = self._train.filter(pc.is_in(self._train["round"], pa.array(rounds, pa.int32())))
        actions_of_rows = [verdict.action for number in rounds for verdict in actions[number]]
        return rejection_rates(
            train.drop_columns("action").append_column("action", pa.array(actions_of_rows, pa.string()))
        )

    def policy(self, number: int) -> Policy:
        """The model that sampled a round; the next call may change it.

        Raises:
            ReplayError: the model or the round's weights cannot be loaded.
        """
        cell = self.record.cell
        if cell["device"] != "cpu" and not torch.cuda.is_available():
            raise ReplayError(f"the cell was run on {cell['device']}, which is not here")
        try:
            if self._model is None:
                torch.set_num_threads(self._threads())
                self._model = Policy.load(resolve(cell["model"]), cell["device"], cell["dtype"])
            weights.load(self.directory, number, self._model)
        except (ModelError, BrokenRecordError) as error:
            raise ReplayError(str(error)) from error
        return self._model

    def _threads(self) -> int:
        """The cell's number of threads, if this machine can have so many."""
        threads = self.record.cell.get("threads")
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise ReplayError(f"the cell {self.record.cell_id} was not run on 1 to {MOST_THREADS:,} threads")
        return threads


@dataclass(frozen=True)
class Replay:
    """A defense's results on a recording.

    Attributes:
        scores: rejection rates over the inspected rounds; see `scoring.rejection_rates`.
        rounds: the inspected ones: all, or those with weights for a defense that asks the policy.
        asks_policy: whether the defense asks the policy.
        milliseconds: wall time of `inspect` per completion; the median over rounds. Each replay runs the policy over
            the pool again, so every defense's time includes what it asks.
        verdicts: those of every inspected round, in the order of its pool.
    """

    scores: dict[str, Score]
    rounds: tuple[int, ...]
    asks_policy: bool
    milliseconds: float
    verdicts: Mapping[int, Sequence[Verdict]]


def replay(recording: Recorded, make: Callable[[], Defense]) -> Replay:
    """Run a defense over the training pools of a finished cell and score its rejections.

    Every view equals that of the cell's own defense (order, pseudonyms, random generator, items, policy), except that
    the senders' log-probs are not recorded. Its `history` contains the verdicts of the replayed defense, and the cell's
    own verdicts for rounds that it did not inspect.

    A defense that asks the policy or needs proofs judges the rounds whose policy is available. A defense that asks a
    judge judges only these rounds too, because judges are slow, or all rounds if there are none. Proofs are computed
    again as by the senders, including malicious nodes' valid ones.

    Args:
        recording: the rounds.
        make: returns a fresh defense, which keeps its state over the inspected rounds; every cohort gets its own.

    Raises:
        LackingError: the recording lacks what the defense needs, such as the weights of the policy it asks.
        ReplayError: the defense fails.
    """
    if not recording.pools:
        raise ReplayError("the recording holds no round to replay")
    defense = make()
    if problem := recording.lacks(defense):
        raise LackingError(problem)
    if "proofs" not in defense.requires:
        dear = "judge" in defense.requires and recording.kept
        with suppress(_PolicyAskedError):
            return _replayed(recording, make, recording.kept if dear else list(recording.pools), asks_policy=False)
    if not recording.kept:
        raise LackingError(f"{defense.name} needs {recording.without_policy}")
    return _replayed(recording, make, recording.kept, asks_policy=True)


def _replayed(recording: Recorded, make: Callable[[], Defense], rounds: Sequence[int], asks_policy: bool) -> Replay:
    """One pass over the pools of every cohort.

    Raises:
        _PolicyAskedError, LackingError, ReplayError: see `_judged`.
    """
    given: dict[int, list[Verdict]] = {}
    inspections: list[tuple[float, int]] = []
    for cohort in recording.cohorts:
        timed = _Timed(make())
        for number, verdicts in _judged(cohort, timed, rounds, asks_policy).items():
            given.setdefault(number, []).extend(verdicts)
        inspections += timed.inspections
    given = dict(sorted(given.items()))
    milliseconds = [1000 * seconds / size for seconds, size in inspections if size]
    return Replay(recording.scores(given), tuple(given), asks_policy, median(milliseconds), given)


def _judged(recording: Recorded, timed: _Timed, rounds: Sequence[int], asks_policy: bool) -> dict[int, list[Verdict]]:
    """One cohort's verdicts by round, in the order of its pools.

    Raises:
        _PolicyAskedError: the defense asks the policy and `asks_policy` is False.
        LackingError: it asks for data that the recording lacks.
        ReplayError: it fails.
    """
    defense = timed.defense
    absent, judge = Absent("the policy"), recording.judge_for(defense)
    for each in recording.absent:
        each.asked = False
    history: list[PastRound] = []
    verdicts: dict[int, list[Verdict]] = {}
    for number, rows in recording.pools.items():
        if number not in rounds:
            history.append(remembered(rows, recording.seed, recording.swarm))
            continue
        if asks_policy:
            pool = recording.pool_with_policy(number)
            if "proofs" in defense.requires:
                pool = _proven(pool, rows, defense)
        else:
            pool = recording.pool(number, lambda items: cast(ForwardCache, absent))
        payload = {(row.group, row.place) for row in rows if row.payload}
        problem: Exception | None = None
        try:
            verdicts[number], past = pool.inspected(timed, payload, recording.sampling, history, recording.seed, judge)
            history.append(past)
        except Exception as error:  # its code may be anybody's: any exception is its failure, never a score
            problem = error
        if absent.asked:
            raise _PolicyAskedError
        for each in recording.absent:
            each.asked |= isinstance(each, AbsentText) and AbsentText.refused_by(problem)
        if lacking := [each.what for each in recording.absent if each.asked]:
            raise LackingError(f"{defense.name} needs {lacking[0]}")
        if problem is not None:
            raise ReplayError(f"{defense.name} failed in round {number}: {described(problem)}") from problem
    return verdicts


def _proven(pool: Pool, rows: Sequence[CompletionRow], defense: Defense) -> Pool:
    """A pool with every sender's proofs of its completions; `rows` are in the pool's order."""
    prompts = [pool.cache.prompts[pool.prompts[item.id]] for item in pool.items]
    groups = {group: place for place, group in enumerate(dict.fromkeys(row.group for row in rows))}
    offered = list(pool.offered)
    for node in dict.fromkeys(row.node for row in rows):
        mine = [i for i, row in enumerate(rows) if row.node == node and pool.answers[i][1]]
        answers = [(groups[rows[i].group], pool.answers[i][1]) for i in mine]
        proofs = proofs_of(pool.cache.policy, prompts, answers, defense)
        for i, proof in zip(mine, proofs, strict=True):
            offered[i] = replace(offered[i], proof=carried(proof, offered[i].length))
    return replace(pool, offered=offered)


class _Timed(Defense):
    """A defense with timed inspections.

    Attributes:
        inspections: wall seconds and completions of every pool.
    """

    name = "timed"

    def __init__(self, defense: Defense) -> None:
        self.defense = defense
        self.inspections: list[tuple[float, int]] = []
        self.__dict__ |= {"name": defense.name, "sees_labels": defense.sees_labels}

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """The defense's verdicts."""
        began = time.perf_counter()
        verdicts = tuple(self.defense.inspect(view))
        self.inspections.append((time.perf_counter() - began, len(view.completions)))
        return verdicts


@cache
def _items(task: Task) -> dict[str, Item]:
    return {row["id"]: Item.from_row(row) for row in task.items("train")}
