"""The plan of a run: which cells the store lacks, and how long they take on this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from thiefbench.console import escaped
from thiefbench.suite.analysis.power import ASSUMED_SPREAD, MOST_SEEDS, POWER, power, seeds_needed
from thiefbench.suite.analysis.ranking_inputs import lacking, spread_over_seeds
from thiefbench.suite.analysis.run_comparisons import trained_comparisons
from thiefbench.suite.estimates.eta import (
    EVALUATED,
    MeasuredCell,
    Rates,
    Stage,
    completions,
    seconds_left,
    setting,
    write_seconds,
)
from thiefbench.suite.estimates.measured import measured_here
from thiefbench.suite.estimates.reference import MACHINE, Span, reference_pace
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.execution.jobs import Job
from thiefbench.suite.execution.runner import intact, jobs_of, run_of, taken_up, threads_note, without_weights
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import BrokenRecordError, Store, rounds_taken
from thiefbench.trust import reads_strangers
from thiefbench.wording import counted, ranges

# Enough to fill the sampler's batch, and drawn in a few seconds.
MEASURED_EVALUATION = 64

_MEASURE_HINT = " (--measure: at this machine's)"

GAPS = (0.1, 0.2, 0.3)
"""Differences of worst cases whose power is shown by default."""


@dataclass(frozen=True)
class Resolution:
    """Which differences between two defenses a suite can detect.

    Attributes:
        seeds, attacks: of the suite.
        spread: the standard deviation over seeds of harm prevented.
        freedom: of how many degrees of freedom it was measured in the store; 0 where it is assumed.
    """

    seeds: int
    attacks: int
    spread: float
    freedom: int

    def text(self, gap: float) -> str:
        """The probability that a difference of two worst cases is detected, and the seeds needed, in one sentence."""
        needed = seeds_needed(gap, self.spread, self.attacks)
        enough = f"{needed} seeds" if needed else f"more than {MOST_SEEDS} seeds"
        chance = power(gap, self.spread, self.seeds, self.attacks)
        return (
            f"a difference of {gap:.2f}: found in {chance:.0%} of runs with {counted(self.seeds, 'seed')}; "
            f"to find it in {POWER:.0%} of runs, use {enough}"
        )


@dataclass(frozen=True)
class Estimate:
    """How long cells take.

    Attributes:
        seconds: at least and at most, of those whose pace is known.
        source: where that is known from, in words.
        unknown: how many cells' pace is not known.
    """

    seconds: Span
    source: str
    unknown: int = 0


@dataclass(frozen=True)
class RunPlan:
    """What a run would do.

    Attributes:
        suite: that the cells belong to.
        cells: all of them, in order.
        stages: how far those that are still to be run have come, in order.
        workers: processes that would share them.
        estimate: the time that they would take together.
        disk: bytes that all cells take in the end; None where the store does not tell.
        resolution: what its ranking could tell apart; None for a suite that lacks the cells of a ranking.
        share: whether cells would take over rounds; how many is known only once defenses have seen them.
        note: that the store has cells with another number of threads; empty where it has none.
    """

    suite: Suite
    cells: tuple[CellSpec, ...]
    stages: tuple[Stage, ...]
    workers: int
    estimate: Estimate
    disk: int | None
    resolution: Resolution | None = None
    share: bool = False
    note: str = ""

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        rounds = {stage.spec: stage.done for stage in self.stages}
        return {
            "suite": self.suite.title,
            "fingerprint": self.suite.fingerprint(),
            "workers": self.workers,
            "cells": [
                {
                    "part": self.suite.part_of(spec), "role": spec.role, "attack": spec.attack, "defense": spec.defense,
                    "seed": spec.seed, "to_run": spec in rounds, "rounds_begun": rounds.get(spec, 0),
                }
                for spec in self.cells
            ],
            "seconds": {"low": self.estimate.seconds.low, "high": self.estimate.seconds.high},
            "source": self.estimate.source,
            "cells_of_unknown_pace": self.estimate.unknown,
            "disk_bytes": self.disk,
            "note": self.note,
        }  # fmt: skip


SPREAD = (0.8, 1.25)
"""The true time in shares of one that measured cells tell: replayed runs stayed in it after a tenth of their time."""


@reads_strangers
def look_ahead(
    suite: Suite, cells: Sequence[CellSpec], store: Store, workers: int = 1, play: bool = False, share: bool = True
) -> RunPlan:
    """What `run_suite` would do, judged by the store's records and where these tell nothing by a reference machine.

    Args:
        suite: that the cells belong to.
        cells: all of them.
        store: where they would be.
        workers: processes that would share them.
        play: run two rounds of a cell of every setting that the records do not tell, and judge by the second.
        share: whether cells would take over rounds.

    Nothing is written. Raises what `run_suite` raises for mistakes of the user.
    """
    jobs = jobs_of(suite, cells, store, one_seed=True)
    missing = {spec: job for spec, job in jobs.items() if intact(job) is None}
    stages = tuple(_stage(jobs[spec]) for spec in taken_up(missing, share))
    estimate = estimate_of(stages, store, workers, play, share)
    resolution = None if lacking(asdict(suite)) else _resolution(suite, jobs, store)
    note = threads_note(store, missing.values())
    return RunPlan(suite, tuple(cells), stages, workers, estimate, _disk(jobs.values()), resolution, share, note)


def estimate_of(
    stages: Sequence[Stage], store: Store, workers: int = 1, play: bool = False, share: bool = True
) -> Estimate:
    """How long what is left of cells takes; the arguments are as in `look_ahead`."""
    missing = [stage.spec for stage in stages]
    recorded = measured_here((each for each in store.records() if share or not rounds_taken(each)), missing)
    sources = [f"measured on {counted(len(recorded), 'stored cell')} of this machine"] if recorded else []
    estimable = {setting(each.spec) for each in recorded}
    honest_first = sorted(missing, key=lambda spec: spec.role != "control")
    settings = {setting(spec): spec for spec in reversed(honest_first)}  # with the first cell of each
    probes = [measure(spec) for where, spec in settings.items() if where not in estimable] if play else []
    if probes:
        sources.append(f"measured on the second round of {probes[0].spec.label}, run now")
        estimable |= settings.keys()
    lows, highs = ([m.times(share) for m in (*recorded, *probes)] for share in SPREAD)
    paces = {
        spec: pace for spec in missing if setting(spec) not in estimable and (pace := reference_pace(spec)) is not None
    }
    if paces:
        sources.append(f"at the pace of {MACHINE}{_MEASURE_HINT}")
        # The pace of cells whose attacker asks the defense includes a rehearsal.
        lows += [MeasuredCell(spec, 1.0, pace.low, 0.0) for spec, pace in paces.items()]
        highs += [MeasuredCell(spec, 1.0, pace.high, 0.0) for spec, pace in paces.items()]
    known = [stage for stage in stages if setting(stage.spec) in estimable or stage.spec in paces]
    low, high = (seconds_left(known, workers, Rates(each)) if known else 0.0 for each in (lows, highs))
    return Estimate(Span(low, high), "; ".join(sources), len(stages) - len(known))


def _resolution(suite: Suite, jobs: Mapping[CellSpec, Job], store: Store) -> Resolution:
    attacks = sum(len(part.attacks) for part in suite.scenes)
    finished = [job for job in jobs.values() if job.directory.record_path.exists()]
    measured = None
    if any(job.spec.role == "attack" and job.spec.defense != "none" for job in finished):
        measured = spread_over_seeds(trained_comparisons(store, run_of(suite, jobs), remarks=False))
    spread, freedom = measured or (ASSUMED_SPREAD, 0)
    return Resolution(len(suite.seeds), attacks, spread, freedom)


def measure(spec: CellSpec) -> MeasuredCell:
    """Run two rounds of a cell and small evaluations, without storing them; the first is a warm-up and not counted."""
    torch.set_num_threads(spec.threads)
    swarm = build_swarm(spec)
    for number in (1, 2):
        played = swarm.round(number)
        evaluation = swarm.evaluate(number, min(MEASURED_EVALUATION, spec.evaluation.completions))
    seconds = sum(evaluation.seconds.values()) + sum(played.seconds.values())
    return MeasuredCell(spec, len(played.rows) + EVALUATED * len(evaluation.rows), seconds)


def print_run_plan(out: Console, plan: RunPlan, gaps: Sequence[float] = GAPS) -> None:
    """The run's size, time and what it detects; below, the cells by swarm and defense, one table for equal attacks."""
    for line in plan_lines(plan, can_measure=True):
        out.print(escaped(line))
    if plan.resolution is not None:
        known = f"measured, {plan.resolution.freedom} degrees of freedom" if plan.resolution.freedom else "assumed"
        out.print(
            "how often the ranking would tell two defenses apart whose worst cases truly differ, if the harm that each "
            f"prevents has a standard deviation of {plan.resolution.spread:.2f} over seeds ({known}):"
        )
        for gap in gaps:
            out.print(f"  {plan.resolution.text(gap)}")
    wide = out if out.is_terminal else Console(file=out.file, highlight=False, width=200, emoji=False)
    attacks: dict[str, list[CellSpec]] = {}
    for spec in plan.cells:
        attacks.setdefault(plan.suite.title_of(spec), []).append(spec)
    stages = {stage.spec: stage for stage in plan.stages}
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for attack, cells in attacks.items():
        alike.setdefault(_cell_rows(stages, cells), []).append(attack)
    for rows, titles in alike.items():
        wide.print()
        each = [f"cells for the attack {titles[0]}"] if len(titles) == 1 else ["cells for each of the attacks", *titles]
        for number, line in enumerate(each):
            wide.print(escaped(f"  {line}" if number else line), soft_wrap=not out.is_terminal)
        wide.print(_cell_table(rows))


def _cell_rows(stages: Mapping[CellSpec, Stage], cells: Sequence[CellSpec]) -> tuple[tuple[str, ...], ...]:
    """One attack's cells by swarm and defense: swarm, defense, seeds, stored, to run, progress of those begun."""
    kinds: dict[tuple[str, str], list[CellSpec]] = {}
    for spec in cells:
        swarm = {"attack": "attacked", "control": "no attack", "placebo": "placebo"}[spec.role]
        kinds.setdefault((swarm, spec.defense), []).append(spec)
    rows = []
    for kind, alike in kinds.items():
        waiting = [stages[spec] for spec in alike if spec in stages]
        begun = ", ".join(f"seed {stage.spec.seed} at round {stage.done}" for stage in waiting if stage.done)
        seeds = ranges(sorted({spec.seed for spec in alike}))
        rows.append((*kind, seeds, str(len(alike) - len(waiting)), str(len(waiting)), begun))
    return tuple(rows)


def _cell_table(rows: Sequence[Sequence[str]]) -> Table:
    """The rows of `_cell_rows`; long names go on in the next line, so nothing is cut off."""
    begun = any(row[-1] for row in rows)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("swarm", "defense", "seeds", "stored", "to run", *(["of these begun"] if begun else [])):
        folds = column in ("defense", "of these begun")
        table.add_column(column, no_wrap=not folds, overflow="fold")
    for row in rows:
        table.add_row(*(escaped(part) for part in row[:-1]), *([escaped(row[-1]) or "-"] if begun else []))
    return table


def plan_lines(plan: RunPlan, can_measure: bool = False) -> list[str]:
    """The run's size, as lines: cells, time, disk space.

    Args:
        plan: the run's plan.
        can_measure: whether the command has the option --measure.
    """
    cached = len(plan.cells) - len(plan.stages)
    lines = [
        f"{plan.suite.title}: {counted(len(plan.stages), 'cell')} to run, {cached} in the store already",
        plan.note,
    ]
    lines += time_lines(plan.estimate, len(plan.stages), plan.workers, can_measure)
    apart = all(part.averaging or part.pipeline for part in plan.suite.scenes)  # whose cells share no rounds
    if plan.share and len(plan.stages) > 1 and not apart:
        lines.append("less if defenses reach equal verdicts, because cells then share rounds")
    if any(part.pipeline for part in plan.suite.scenes):
        lines.append("the lessons that a malicious stage may take before round 1 come on top")
    if plan.disk is not None:
        lines.append(f"about {plan.disk / 1e6:.1f} MB on disk in the end")
    return [line for line in lines if line]


def time_lines(estimate: Estimate, missing: int, workers: int = 1, can_measure: bool = False) -> list[str]:
    """How long cells take, as lines.

    Args:
        estimate: of all of them.
        missing: how many they are.
        workers: processes that would share them.
        can_measure: whether the command has the option --measure.
    """
    lines = []
    who = "one process" if workers == 1 else f"{workers} workers"
    if missing > estimate.unknown:
        source = estimate.source if can_measure else estimate.source.replace(_MEASURE_HINT, "")
        lines.append(f"{write_span(estimate.seconds)} with {who}, {source}")
    if estimate.unknown:
        which = "" if estimate.unknown == missing else f" of {estimate.unknown} of them"
        how = "; --measure runs two of them here" if can_measure else ""
        lines.append(f"how long the rounds{which} take is not known{how}")
    return lines


def write_span(seconds: Span) -> str:
    """From when to when, in words."""
    low, high = write_seconds(seconds.low), write_seconds(seconds.high)
    return f"{low} to {high}" if low != high else f"about {low}"


def _stage(job: Job) -> Stage:
    """The progress of a cell that is to be run, or whose weights are."""
    try:
        record = job.directory.read()
    except BrokenRecordError:
        return Stage(job.spec, job.spec.rounds)
    if record is not None and (lacking := without_weights(job.directory, record, job.recorded)):
        return Stage(job.spec, max(lacking))
    return Stage(job.spec, job.spec.rounds, checkpointed(job.directory))


def _disk(jobs: Collection[Job]) -> int | None:
    """Bytes of the cells that have completions, and as many for every completion and every kept weight to come."""
    finished = [job for job in jobs if job.directory.record_path.exists() and job.directory.completions_path.exists()]
    drawn = sum(sum(completions(job.spec, job.spec.rounds)) for job in finished)
    if not drawn:
        return None
    finished_bytes = sum(_bytes((job.directory.record_path, job.directory.completions_path)) for job in finished)
    in_all = sum(sum(completions(job.spec, job.spec.rounds)) for job in jobs)
    weight_files = [path for job in jobs for path in job.directory.weights.glob("*.safetensors")]
    wanted = sum(len(job.recorded) for job in jobs)
    if wanted and not weight_files:
        return None
    bytes_of_weights = _bytes(weight_files) / len(weight_files) if weight_files else 0.0
    return round(finished_bytes * in_all / drawn + bytes_of_weights * max(wanted, len(weight_files)))


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
