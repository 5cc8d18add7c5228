"""How much work cells are and how long what is left of them takes: pure arithmetic, for progress and plans.

The unit of work is one completion of a round: sampled, rewarded, inspected and learned from. How many seconds it takes
is the mean of what was measured on cells alike, those of the same setting, role, attack and defense; see `Rates`.

Some attacks rehearse before round 1, for longer than the cell then takes. These seconds are kept apart: they are no
part of a round's, and come on top for every cell that has its rehearsal before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace

from thiefbench.suite.scenario import CellSpec

# An evaluated completion is sampled and rewarded, not learned from: 0.65 to 1.11 of a training one's seconds in
# eleven records of the built-in models on two busy CPU cores, about 0.7 in the middle.
EVALUATED = 0.7

REHEARSED = (104, 13 * 256)
"""Rounds and evaluated completions of a rehearsal of which nothing was measured: the most that `auto` takes."""

Kind = tuple[object, ...]


@dataclass(frozen=True)
class Stage:
    """Where a cell stands in a run.

    Attributes:
        spec: the cell.
        total: the round it ends with.
        done: rounds finished; of a cell that waits, those of its checkpoint.
        begun: rounds that were finished when its seconds began to count; None for a cell that waits.
        seconds: that its process has worked on it since.
        first: of these, until its first round was finished, if it began with a rehearsal; else 0.
    """

    spec: CellSpec
    total: int
    done: int = 0
    begun: int | None = None
    seconds: float = 0.0
    first: float = 0.0

    @property
    def rehearsal_ahead(self) -> bool:
        """Whether its rehearsal lies before it or is under way."""
        return self.spec.rehearses and self.total > 0 and self.done == 0

    @property
    def counted_from(self) -> int | None:
        """The round after which its seconds tell how long rounds take; None for a cell that waits."""
        return 1 if self.begun == 0 and self.spec.rehearses else self.begun

    @property
    def work_left(self) -> float:
        """Work of the rounds and evaluations that it has before it."""
        if self.begun is not None or self.done:
            return work(self.spec, self.total) - work(self.spec, self.done)
        return work(self.spec, self.total)

    @property
    def measured(self) -> MeasuredCell | None:
        """What its rounds so far tell; None where it waits or no round that tells something is finished."""
        after = self.counted_from
        if after is None or self.done <= after or self.seconds <= self.first:
            return None
        done = work(self.spec, self.done) - work(self.spec, after)
        return MeasuredCell(self.spec, done, self.seconds - self.first, self.first if after != self.begun else None)


@dataclass(frozen=True)
class MeasuredCell:
    """How long some work on a cell took.

    Attributes:
        spec: the cell.
        work: how much.
        seconds: of this work, in one process.
        rehearsed: seconds of the rehearsal before round 1; None if it was not measured.
    """

    spec: CellSpec
    work: float
    seconds: float
    rehearsed: float | None = None

    def times(self, factor: float) -> MeasuredCell:
        """The same on a machine that takes so many times as long."""
        rehearsed = None if self.rehearsed is None else self.rehearsed * factor
        return replace(self, seconds=self.seconds * factor, rehearsed=rehearsed)


@dataclass(frozen=True)
class RunOutline:
    """What a run is about to do.

    Attributes:
        title: the suite's.
        missing: the cells to run, in order.
        cached: how many more are in the store already.
        begun: of those to run that were stopped on their way, how many rounds the store holds.
        measured: how long the finished ones among its cells took on this machine.
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


class Rates:
    """Seconds per unit of work: the mean over what was measured on cells alike.

    Alike are cells of the same setting, role, attack and defense. Where none of these was measured, a cell takes as
    long as those of its role and attack, or as those of its defense, whichever is longer: a defense that is slow
    against one attack is slow against another. Where neither was measured, it takes as long as its setting's cells,
    and else as all. Cells whose attacker asks the defense are a kind of their own, as every question is an inspection.

    Args:
        measured: of any cells.
    """

    def __init__(self, measured: Iterable[MeasuredCell]) -> None:
        measured = list(measured)
        totals: defaultdict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for each in measured:
            if each.work > 0 and each.seconds > 0:
                for kind in (_own(each.spec), *_partly_alike(each.spec), *_loosely_alike(each.spec)):
                    totals[kind][0] += each.seconds
                    totals[kind][1] += each.work
        self._means = {kind: seconds / units for kind, (seconds, units) in totals.items()}
        rehearsals: defaultdict[Kind, list[float]] = defaultdict(list)
        for each in measured:
            if each.rehearsed is not None:
                for kind in _rehearsing_alike(each.spec):
                    rehearsals[kind].append(each.rehearsed)
        self._rehearsals = {kind: sum(seconds) / len(seconds) for kind, seconds in rehearsals.items()}

    def __bool__(self) -> bool:
        return bool(self._means)

    def of(self, spec: CellSpec) -> float:
        """Seconds per unit of work to expect of a cell, given that something was measured."""
        if (own := self._means.get(_own(spec))) is not None:
            return own
        if partly := [self._means[kind] for kind in _partly_alike(spec) if kind in self._means]:
            return max(partly)
        return next(self._means[kind] for kind in _loosely_alike(spec) if kind in self._means)

    def rehearsal(self, spec: CellSpec) -> float:
        """Seconds to expect of a cell's rehearsal, given that something was measured.

        A placebo plays what the rehearsal of the attacked cell chose, so without a measurement it takes no time.
        """
        alike = (self._rehearsals[kind] for kind in _rehearsing_alike(spec) if kind in self._rehearsals)
        if (seconds := next(alike, None)) is not None:
            return seconds
        if spec.role == "placebo":
            return 0.0
        rounds, evaluated = REHEARSED
        return self.of(spec) * (rounds * spec.swarm.prompts * spec.swarm.group + EVALUATED * evaluated)

    def left(self, stage: Stage) -> float:
        """Seconds until a cell ends, given that something was measured."""
        ahead = max(0.0, self.rehearsal(stage.spec) - stage.seconds) if stage.rehearsal_ahead else 0.0
        return ahead + stage.work_left * self.of(stage.spec)


def _own(spec: CellSpec) -> Kind:
    return ("own", setting(spec), _side(spec), spec.defense)


def _partly_alike(spec: CellSpec) -> tuple[Kind, Kind]:
    return ("side", setting(spec), _side(spec)), ("defense", setting(spec), spec.defense, spec.asks)


def _loosely_alike(spec: CellSpec) -> tuple[Kind, ...]:
    """From the closest to all cells."""
    return ("setting", setting(spec), spec.asks), ("setting", setting(spec)), ("all",)


def _rehearsing_alike(spec: CellSpec) -> tuple[Kind, ...]:
    """From the closest to all cells of its role whose attack rehearses."""
    return (
        _own(spec), ("role", setting(spec), spec.role, spec.defense), ("role", setting(spec), spec.role),
        ("role", spec.role),
    )  # fmt: skip


def _side(spec: CellSpec) -> tuple[str, str]:
    """What malicious nodes do; where all are honest, the attack makes no difference."""
    return (spec.role, "" if spec.role == "control" else spec.attack)


def setting(spec: CellSpec) -> tuple[object, ...]:
    """What must be equal for a unit of work to be the same work: everything but attack, defense and length."""
    return (spec.task, spec.model, spec.swarm, spec.device, spec.dtype, spec.threads, spec.batches)


def rates_of_run(stages: Iterable[Stage], before: Iterable[MeasuredCell] = ()) -> Rates:
    """What a run's cells so far and those measured `before` it tell.

    A cell's first rounds need not be like its later ones, so one under way counts only where none like it is finished.
    """
    played = [(stage, measured) for stage in stages if (measured := stage.measured) is not None]
    finished = [*before, *(measured for stage, measured in played if stage.done == stage.total)]
    known = {_own(measured.spec) for measured in finished}
    return Rates([*finished, *(measured for _, measured in played if _own(measured.spec) not in known)])


def seconds_left(stages: Sequence[Stage], workers: int, rates: Rates) -> float:
    """Seconds until the last cell of a run ends.

    Args:
        stages: every cell of the run, in the order in which they are taken up.
        workers: processes that share them.
        rates: what their work takes, with something measured.
    """
    seconds = [(stage, rates.left(stage)) for stage in stages]
    busy = [left for stage, left in seconds if stage.begun is not None and left > 0]
    return longest(busy, [left for stage, left in seconds if stage.begun is None], workers)


def longest(busy: Sequence[float], waiting: Sequence[float], workers: int) -> float:
    """Seconds until the last of some jobs ends, where every process that becomes free takes up the next that waits.

    Args:
        busy: seconds left of the jobs under way, one a process.
        waiting: seconds of the others, in their order.
        workers: processes.
    """
    free = [*busy, *[0.0] * (min(workers, len(busy) + max(1, len(waiting))) - len(busy))]
    heapify(free)
    for seconds in waiting:
        heapreplace(free, free[0] + seconds)
    return max(free)


def write_seconds(seconds: float) -> str:
    """A duration in words, as precise as an estimate is."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
