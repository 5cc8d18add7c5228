"""How much work cells are and how long what is left of them takes: pure arithmetic, for progress and plans.

The unit of work is one completion of a round: sampled, rewarded, inspected and learned from.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import accumulate

import numpy as np

from thiefbench.suite.scenario import CellSpec

# An evaluated completion is sampled and rewarded, not learned from: 0.65 to 1.11 of a training one's seconds in
# eleven records of the built-in models on two busy CPU cores, about 0.7 in the middle.
EVALUATED = 0.7

# How far apart two runs of one cell are, as a standard deviation of the logarithm of their seconds.
REPEATED = 0.05


@dataclass(frozen=True)
class Stage:
    """Where a cell stands in a run.

    Attributes:
        spec: the cell.
        total: the round it ends with.
        done: rounds finished; of a cell that waits, those of its checkpoint.
        begun: rounds that were finished when its seconds began to count; None for a cell that waits.
        seconds: that its process has worked on it since.
        pace: the same, round by round.
    """

    spec: CellSpec
    total: int
    done: int = 0
    begun: int | None = None
    seconds: float = 0.0
    pace: tuple[float, ...] = ()


@dataclass(frozen=True)
class MeasuredCell:
    """How long some work took: of which cell, how much, its seconds in one process, and these by round if all are."""

    spec: CellSpec
    work: float
    seconds: float
    pace: Sequence[float] = ()


@dataclass(frozen=True)
class Plan:
    """What a run is about to do.

    Attributes:
        title: the suite's.
        missing: the cells to run, in order.
        cached: how many more are in the store already.
        begun: of those to run that were stopped on their way, how many rounds the store holds.
        measured: what the finished ones among its cells tell about this machine's pace.
    """

    title: str
    missing: Sequence[CellSpec]
    cached: int = 0
    begun: Mapping[CellSpec, int] = field(default_factory=dict)
    measured: Sequence[MeasuredCell] = ()


def completions(spec: CellSpec, done: int) -> tuple[int, int]:
    """Completions of a cell up to round `done`: in pools, and planned in evaluations, the one at the start included."""
    planned = spec.evaluation
    last = done >= spec.rounds
    between = (min(done, spec.rounds - 1)) // planned.every
    evaluated = planned.completions * (1 + between) + (planned.final if last else 0)
    return done * spec.swarm.prompts * spec.swarm.group, evaluated


def work(spec: CellSpec, done: int) -> float:
    """Work of a cell from its start evaluation to what follows round `done`."""
    trained, evaluated = completions(spec, done)
    return trained + EVALUATED * evaluated


class Courses:
    """How the work of cells is spread over their rounds: not evenly, as answers get shorter or longer.

    Args:
        measured: of any cells; those that were played from the first round to the last tell.
    """

    def __init__(self, measured: Iterable[MeasuredCell] = ()) -> None:
        self._alike: dict[tuple[object, ...], list[list[float]]] = defaultdict(list)
        for each in measured:
            whole = sum(each.pace)
            if len(each.pace) == each.spec.rounds and whole > 0:
                shares = [0.0, *(seconds / whole for seconds in accumulate(each.pace))]
                for kind in _kinds(each.spec):
                    self._alike[kind].append(shares)
        self._known: dict[tuple[object, ...], list[float] | None] = {}

    def work(self, spec: CellSpec, done: int) -> float:
        """Work of a cell from its start evaluation to what follows round `done`, as cells alike had it.

        In the end it is what `work` says, whatever the course.
        """
        kinds = _kinds(spec)
        if kinds[0] not in self._known:
            found = next((self._alike[kind] for kind in kinds if kind in self._alike), None)
            self._known[kinds[0]] = None if found is None else [sum(at) / len(found) for at in zip(*found, strict=True)]
        shares = self._known[kinds[0]]
        if shares is None:
            return work(spec, done)
        start = work(spec, 0)
        return start + shares[done] * (work(spec, spec.rounds) - start)


class Rates:
    """Seconds per unit of work, learned from what was measured.

    The logarithm of a cell's rate is a sum: of what its setting, its malicious nodes, its defense, and these together
    add to that of all cells. Each part is drawn towards nothing, the less the more speaks for it (ridge regression).

    Args:
        measured: of any cells.
        courses: how their work is spread.
    """

    def __init__(self, measured: Iterable[MeasuredCell], courses: Courses | None = None) -> None:
        measured = [each for each in measured if each.work > 0 and each.seconds > 0]
        self.courses = Courses(measured) if courses is None else courses
        self._parts = _fitted(measured) if measured else {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def of(self, spec: CellSpec) -> float:
        """Seconds per unit of work to expect of a cell, whatever was measured."""
        return math.exp(sum(self._parts.get(part, 0.0) for part in _parts(spec)))


def _fitted(measured: Sequence[MeasuredCell]) -> dict[Hashable, float]:
    """What every part that occurs adds to the logarithm of a rate."""
    spread = {part: deviation for each in measured for part, deviation in _parts(each.spec).items()}
    place = {part: column for column, part in enumerate(spread)}
    left, right = np.diag([deviation**-2 for deviation in spread.values()]), np.zeros(len(spread))
    for each in measured:
        columns = [place[part] for part in _parts(each.spec)]
        trust = each.work / work(each.spec, each.spec.rounds) / REPEATED**2
        left[np.ix_(columns, columns)] += trust
        right[columns] += trust * math.log(each.seconds / each.work)
    return dict(zip(place, np.linalg.solve(left, right).tolist(), strict=True))


def _parts(spec: CellSpec) -> dict[Hashable, float]:
    """Of what a cell's rate is made up, with how much each part is expected to add: a standard deviation of the log."""
    where, attacked = setting(spec), spec.role == "attack"
    parts: dict[Hashable, float] = {
        (): 100.0,
        (spec.model, spec.device, spec.dtype): 1.0,
        where: 0.5,
        (where, _side(spec)): 0.8,
        (spec.defense,): 0.2,
        (spec.defense, attacked): 0.3,
        (where, _side(spec), spec.defense): 0.25,
        spec: 0.1,
    }
    if spec.asks:  # each question is an inspection
        parts[spec.defense, "asked"] = 1.5
    return parts


def rates_of_run(stages: Iterable[Stage], before: Iterable[MeasuredCell] = ()) -> Rates:
    """What the cells under way and those finished tell about the pace of a run, beside what was measured `before`.

    A cell's first rounds need not be like its later ones, and where no cell alike has shown how they differ, nobody
    knows. So a cell counts by the share of it that was played.
    """
    heard_of, before = [stage for stage in stages if stage.begun is not None], list(before)
    whole = [stage for stage in heard_of if stage.begun == 0 and stage.done == stage.spec.rounds]
    played = [MeasuredCell(each.spec, work(each.spec, each.done), each.seconds, each.pace) for each in whole]
    courses = Courses([*before, *played])
    return Rates([*before, *(_counted(stage, courses) for stage in heard_of)], courses)


def seconds_left(stages: Sequence[Stage], workers: int, rates: Rates) -> float:
    """Seconds until the last cell of a run ends.

    Args:
        stages: every cell of the run, in the order in which they are taken up.
        workers: processes that share them.
        rates: what their pace is, with something measured.
    """
    known = starts_known(stages, workers)
    lasting = [(s, work_left(s, s.spec in known, rates.courses) * rates.of(s.spec)) for s in stages]
    busy = [seconds for stage, seconds in lasting if stage.begun is not None and seconds > 0]
    return longest(busy, [seconds for stage, seconds in lasting if stage.begun is None], workers)


def work_left(stage: Stage, start_known: bool, courses: Courses) -> float:
    """Work of the rounds and evaluations that a cell has before it.

    Args:
        stage: where it stands.
        start_known: its process has evaluated the start model before, for another cell.
        courses: how its work is spread over its rounds.
    """
    left = courses.work(stage.spec, stage.total)
    if stage.begun is not None or stage.done:
        return left - courses.work(stage.spec, stage.done)
    return left - (work(stage.spec, 0) if start_known else 0.0)


def starts_known(stages: Sequence[Stage], workers: int) -> Collection[CellSpec]:
    """The cells whose start evaluation their process will know from an earlier cell: all but each process's first."""
    seen: Counter[str] = Counter()
    known = set()
    for stage in stages:
        start = repr(stage.spec.start)
        if seen[start] >= workers:
            known.add(stage.spec)
        seen[start] += 1
    return known


def longest(busy: Sequence[float], waiting: Sequence[float], workers: int) -> float:
    """Seconds until the last of some jobs ends, where every process that becomes free takes up the next that waits.

    Args:
        busy: seconds left of the jobs under way, one a process.
        waiting: seconds of the others, in their order.
        workers: processes.
    """
    free = [*busy, *[0.0] * (workers - len(busy))]
    heapify(free)
    for seconds in waiting:
        heapreplace(free, free[0] + seconds)
    return max(free)


def setting(spec: CellSpec) -> tuple[object, ...]:
    """What must be equal for a unit of work to be the same work: everything but attack, defense and length."""
    return (spec.task, spec.model, spec.swarm, spec.device, spec.dtype, spec.threads, spec.batches)


def write_seconds(seconds: float) -> str:
    """A duration in words, as precise as an estimate is."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _side(spec: CellSpec) -> tuple[str, str]:
    """What malicious nodes do; where all are honest, the attack makes no difference."""
    return (spec.role, "" if spec.role == "control" else spec.attack)


def _counted(stage: Stage, courses: Courses) -> MeasuredCell:
    """What a cell tells that is under way or finished."""
    begun = stage.begun or 0
    whole = courses.work(stage.spec, stage.total) - courses.work(stage.spec, begun)
    played = courses.work(stage.spec, stage.done) - courses.work(stage.spec, begun)
    share = played / whole if whole else 0.0
    return MeasuredCell(stage.spec, share * played, share * stage.seconds)


def _kinds(spec: CellSpec) -> tuple[tuple[object, ...], ...]:
    """Whose course a cell may have, the closest first: the same malicious nodes, the same setting."""
    length = (setting(spec), spec.rounds, spec.evaluation)
    return ((*length, _side(spec)), length)
