"""`thiefbench replay | export | merge`: pools that other swarms recorded, and stores that were filled apart."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="Recorded pools, one JSON object a line: docs/pools.md.")],
    defense: Annotated[
        list[str] | None, typer.Option(help="Defense to judge them; repeat. Default: every one, in one table.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For defenses that ask the policy, in all rounds: as for run.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    as_json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file as JSON.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write all rates to this file as CSV.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Accept no malformed line.")] = False,
) -> None:
    """Let defenses judge pools that any swarm recorded; nothing is trained."""
    from rich.markup import escape

    from thiefbench.cli import FAILED, _numerics, _stoppable, err, out
    from thiefbench.engine.model.policy import Policy
    from thiefbench.pools.files import PoolFileError
    from thiefbench.pools.judging import judge_file
    from thiefbench.pools.output import problems
    from thiefbench.pools.rounds import read_rounds
    from thiefbench.progress import bar
    from thiefbench.suite.analysis.matrix import every_defense, named_defenses
    from thiefbench.suite.report.terminal import print_file_replays
    from thiefbench.suite.store.records import write_atomically
    from thiefbench.zoo.models import resolve

    where, precision, _ = _numerics(device, dtype, None)
    judges, without = (named_defenses(defense), []) if defense else every_defense(judged=False)
    recorded = read_rounds(file)
    if strict and recorded.refused.count:
        number, first = recorded.refused.first[0]
        more = f"; malformed lines in all: {recorded.refused.count}"
        raise PoolFileError(f"{file}, line {number}: {first}{more}")
    if recorded.refused.count:
        err.print(f"[yellow]malformed lines, which are not used: {recorded.refused.count}[/yellow]")
        for problem in problems(recorded):
            err.print(escape(problem))
    recorded.compute_on(where, precision)
    if model:
        recorded.give_policy(Policy.load(resolve(model), where, precision))
    with _stoppable(), bar(err, "judging") as progress:
        outcome = judge_file(recorded, judges, model or "", progress)
    for reason in without:
        err.print(f"left out: {escape(reason)}")
    print_file_replays(out, outcome, details=bool(defense))
    if as_json is not None:
        write_atomically(as_json, json.dumps(outcome.as_dict(), indent=1, allow_nan=False).encode())
    if as_csv is not None:
        write_atomically(as_csv, outcome.csv().encode())
    if outcome.failed or not outcome.replays:
        raise typer.Exit(FAILED)


@app.command()
def export(
    store: Annotated[Path, typer.Argument(help="A store that `thiefbench run` filled.")],
    cell: Annotated[str, typer.Argument(help="A cell's id, or how only this one's begins.")],
    file: Annotated[Path, typer.Argument(help="Where to write; nothing is overwritten.")],
    cohort: Annotated[
        int | None, typer.Option(help="In a swarm of several models, whose pools, from 0. Default: the first's.")
    ] = None,
) -> None:
    """Write a stored cell's rounds, labels included, as a file that replay reads."""
    from rich.markup import escape

    from thiefbench import registry
    from thiefbench.cli import out
    from thiefbench.pools.export import ExportError, find_cell, header_of, lines_of, of_cohort
    from thiefbench.pools.files import write
    from thiefbench.suite.analysis.replay import Recording
    from thiefbench.suite.store.records import BrokenRecordError, Store, write_atomically

    if file.exists():
        raise ExportError(f"{file} is there already; give another name")
    directory = find_cell(Store(store), cell)
    try:
        record = directory.read()
    except BrokenRecordError as error:
        raise ExportError(f"{error}; run the suite again") from error
    if record is None:
        raise ExportError(f"the cell {directory.path.name} is not finished; run the suite again to go on with it")
    whole = Recording(directory, record, registry.make("task", record.cell["task"]))
    recording = of_cohort(whole, cohort)
    lines = list(lines_of(recording))
    write_atomically(file, write(header_of(recording), lines))
    written = sum(len(line.completions) for line in lines)
    out.print(f"{escape(str(file))}: {len(recording.pools)} rounds, {len(lines)} lines, {written} completions")
    if len(whole.cohorts) > 1:
        others = ", ".join(str(part.cohort) for part in whole.cohorts if part is not recording)
        out.print(f"What cohort {recording.cohort} received; --cohort writes another's: {others}")


class Preferred(StrEnum):
    """Whose results count."""

    first = "first"
    second = "second"


@app.command()
def merge(
    stores: Annotated[list[Path], typer.Argument(help="Stores that were filled apart; they stay as they are.")],
    into: Annotated[Path, typer.Option(help="The joined store: a new directory, or a store whose cells come first.")],
    prefer: Annotated[
        Preferred | None,
        typer.Option(help="Where a cell has other results in two stores, whose count. Default: nothing is merged."),
    ] = None,
) -> None:
    """Join stores, every cell once: what is damaged or unfinished is left out and said; run it again after a kill."""
    from rich.markup import escape

    from thiefbench.cli import FAILED, _stoppable, err, out
    from thiefbench.suite.store.merging import merge as join

    with _stoppable():
        done = join(stores, into, None if prefer is None else prefer.value)
    for conflict in done.conflicts:
        err.print(f"[yellow]{escape(conflict.text())}[/yellow]; the {prefer} one is taken")
    for text in (*done.damaged, *done.runs):
        err.print(escape(text))
    if done.unfinished:
        err.print(f"{done.unfinished} unfinished cells are left out; run their suite again to finish them")
    for store, count in done.copied.items():
        out.print(f"{escape(str(store))}: {count} cells copied")
    out.print(f"{escape(str(into))} holds {done.cells} cells; {done.shared} were the same in several stores")
    if done.lost:
        err.print(f"no store has an intact copy of {escape(', '.join(done.lost))}; run their suite again")
        raise typer.Exit(FAILED)
