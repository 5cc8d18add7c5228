"""`thiefbench replay | export | merge`: pools that other swarms recorded, and stores that were filled separately."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thiefbench.console import (
    FAILED,
    DeviceOption,
    DtypeOption,
    TrustOption,
    err,
    escaped,
    model_option,
    numerics,
    out,
    stoppable,
    typed_spec,
)
from thiefbench.error_messages import problem
from thiefbench.errors import UsageError
from thiefbench.wording import counted

if TYPE_CHECKING:
    from thiefbench.pools.rounds import FiledRounds

app = typer.Typer()


class Format(StrEnum):
    """Who wrote the files."""

    auto = "auto"
    pool = "pool"
    prime_rl = "prime-rl"
    grail = "grail"
    verl = "verl"
    trl = "trl"


_EXAMPLE = """Example, on all that arrived in a run of prime-rl:

thiefbench replay outputs/rollouts/step_*/train/all/traces.jsonl --defense blacklist
"""


@app.command(epilog=_EXAMPLE)
def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Recorded pools, one JSON object per line (docs/pools.md), or what another project's run left, in as "
            "many files as you like (docs/rollouts.md).",
        ),
    ],
    defense: Annotated[
        list[str] | None,
        typed_spec(
            "defense",
            help="Defense to test. Repeat the option for several. Default: every installed defense that needs no "
            "argument and no judge, in one table.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        model_option(
            help="Model that defenses may ask, the same in all rounds: a built-in one, a local folder or a name on "
            "the Hugging Face hub. Default: none."
        ),
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            help="What the files are: pools, or rollouts of another project. prime-rl stands for all that verifiers "
            "writes."
        ),
    ] = Format.auto,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tokenizer for completions without token ids and, in grail's rollouts, without texts: a local "
            "folder or a name on the Hugging Face hub. Default: none.",
        ),
    ] = None,
    sender: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="Field that names the sender in rollouts of others. Default: the one that the format has for it, if "
            "any.",
        ),
    ] = "",
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that is the reward in TRL's completions; repeat it for a sum. Default: the only one that can "
            "be.",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all results to this JSON file.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write all rates to this CSV file.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on malformed lines instead of skipping them.")] = False,
) -> None:
    """Test defenses on pools that any swarm recorded. Nothing is trained."""
    from thiefbench.engine.model.policy import Policy
    from thiefbench.pools.judging import judge_file
    from thiefbench.progress import bar
    from thiefbench.suite.analysis.matrix import every_defense, named_defenses
    from thiefbench.suite.report.terminal import print_file_replays
    from thiefbench.suite.store.records import write_atomically
    from thiefbench.zoo.models import resolve

    where, precision, _ = numerics(device, dtype, None)
    defenses, without = (named_defenses(defense), []) if defense else every_defense(judged=False)
    recorded = _read(files, format, tokenizer, sender, reward or [], bool(model))
    _report_malformed(recorded, strict)
    recorded.compute_on(where, precision)
    if model:
        recorded.give_policy(Policy.load(resolve(model), where, precision))
    with bar(err, "inspecting") as progress:
        outcome = judge_file(recorded, defenses, model or "", progress)
    for reason in without:
        err.print(f"left out: {escaped(reason)}")
    print_file_replays(out, outcome, details=bool(defense))
    if as_json is not None:
        write_atomically(as_json, json.dumps(outcome.as_dict(), indent=1, allow_nan=False).encode())
    if as_csv is not None:
        write_atomically(as_csv, outcome.csv().encode())
    if outcome.failed or not outcome.replays:
        raise typer.Exit(FAILED)


def _read(
    files: list[Path], format: Format, tokenizer: str | None, sender: str, rewards: list[str], policy: bool
) -> FiledRounds:
    """The rounds of files.

    Raises:
        PoolFileError: they cannot be read.
        UsageError: options do not fit the format.
        ModelError: the tokenizer cannot be had.
    """
    from thiefbench.pools.rounds import read_rounds
    from thiefbench.rollouts.reading import SOURCES, format_of, read_rollouts
    from thiefbench.rollouts.source import Reading
    from thiefbench.rollouts.tokens import NamedTokenizer

    name = format_of(files[0]) if format is Format.auto else format.value
    if policy and tokenizer:
        raise UsageError("--model brings its tokenizer; leave --tokenizer out")
    if rewards and name != "trl":
        raise UsageError(f"--reward is for TRL's completions, and {files[0]} is read as {name}")
    if name == "pool":
        if sender:
            raise UsageError("--sender is for rollouts of other projects; a pool's lines have their field sender")
        if len(files) > 1:
            raise UsageError("pools are read from one file; join several with cat, as docs/pools.md says")
        recorded = read_rounds(files[0])
        if tokenizer:
            recorded.count_tokens(NamedTokenizer(tokenizer).encode)
        return recorded
    if policy:
        raise UsageError(
            f"--model is for pools: rollouts of {name} do not say how they were sampled; to count tokens, name a "
            "tokenizer with --tokenizer"
        )
    named = NamedTokenizer(tokenizer) if tokenizer else None
    recorded = read_rollouts(files, SOURCES[name], Reading(tokenizer=named, sender=sender, rewards=tuple(rewards)))
    if named:
        recorded.count_tokens(named.encode)
    return recorded


def _report_malformed(recorded: FiledRounds, strict: bool) -> None:
    """Say which lines of files are not used, and why.

    Raises:
        PoolFileError: there are malformed lines, and `strict` is set.
    """
    from thiefbench.pools.files import PoolFileError
    from thiefbench.pools.output import problems

    refused = recorded.refused
    if not refused.count:
        return
    if strict:
        raise PoolFileError(f"{recorded.name}, {refused.shown()[0]}; malformed lines in all: {refused.count}")
    err.print(f"[yellow]malformed lines, which are not used: {refused.count}[/yellow]")
    for line in problems(recorded):
        err.print(escaped(line))


@app.command()
def export(
    store: Annotated[Path, typer.Argument(help="Folder that `thiefbench run` filled.")],
    cell: Annotated[str, typer.Argument(help="Id of a cell, or enough of its beginning to be unique.")],
    file: Annotated[Path, typer.Argument(help="File to write. It must not exist yet.")],
    cohort: Annotated[
        int | None,
        typer.Option(help="In a swarm of several models: number of the cohort to write. Default: the first cohort."),
    ] = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Write a cell's rounds, labels included, to a file that `thiefbench replay` reads."""
    from pydantic import ValidationError

    from thiefbench import registry
    from thiefbench.pools.export import ExportError, find_cell, header_of, lines_of, of_cohort
    from thiefbench.pools.files import write
    from thiefbench.suite.analysis.replay import Recording
    from thiefbench.suite.store.record_content import wrong_parameters
    from thiefbench.suite.store.records import BrokenRecordError, Store, write_atomically

    if file.exists():
        raise ExportError(f"{file} exists already; give another name")
    directory = find_cell(Store(store), cell)
    try:
        record = directory.read()
    except BrokenRecordError as error:
        raise ExportError(f"{error}; run the suite again") from error
    if record is None:
        raise ExportError(f"the cell {directory.path.name} is not finished; run the suite again to continue it")
    if wrong := wrong_parameters(record):
        raise ExportError(f"the record of the cell {directory.path.name} cannot be used: {wrong}; run the suite again")
    whole = Recording(directory, record, registry.make("task", record.cell["task"]))
    recording = of_cohort(whole, cohort)
    try:
        lines = list(lines_of(recording))
        content = write(header_of(recording), lines)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        wrong = f"{first['loc'][0]}: {problem(first)}" if first["loc"] else problem(first)
        raise ExportError(f"the cell {directory.path.name} cannot be written as a file of pools: {wrong}") from error
    write_atomically(file, content)
    written = sum(len(line.completions) for line in lines)
    parts = (counted(len(recording.pools), "round"), counted(len(lines), "line"), counted(written, "completion"))
    out.print(f"{escaped(str(file))}: {', '.join(parts)}")
    if len(whole.cohorts) > 1:
        others = ", ".join(str(part.cohort) for part in whole.cohorts if part is not recording)
        out.print(f"These are the pools of cohort {recording.cohort}; --cohort writes another's: {others}")


class Preferred(StrEnum):
    """Whose results count."""

    first = "first"
    second = "second"


@app.command()
def merge(
    stores: Annotated[list[Path], typer.Argument(help="Stores to join. They are not changed.")],
    into: Annotated[
        Path,
        typer.Option(help="The joined store: a new folder, or a store that counts as the first of all stores."),
    ],
    prefer: Annotated[
        Preferred | None,
        typer.Option(
            help="If two stores hold different results of one cell: which of the two to keep. Default: stop, and join "
            "nothing."
        ),
    ] = None,
) -> None:
    """Join several stores into one that holds every cell once.

    Damaged and unfinished cells are left out and reported. If it is interrupted, run the same command again.
    """
    from thiefbench.suite.store.merging import merge as join

    with stoppable():
        merged = join(stores, into, None if prefer is None else prefer.value)
    for conflict in merged.conflicts:
        err.print(f"[yellow]{escaped(conflict.text())}[/yellow]; the {prefer} one is taken")
    for text in (*merged.damaged, *merged.runs):
        err.print(escaped(text))
    if merged.unfinished:
        cells = counted(merged.unfinished, "unfinished cell is", "unfinished cells are")
        err.print(f"{cells} left out; run the suite again to finish")
    for store, count in merged.copied.items():
        out.print(f"{escaped(str(store))}: {counted(count, 'cell')} copied")
    same = counted(merged.shared, "was", "were")
    out.print(f"{escaped(str(into))} holds {counted(merged.cells, 'cell')}; {same} the same in several stores")
    if merged.lost:
        err.print(f"no store has an intact copy of {escaped(', '.join(merged.lost))}; run their suite again")
        raise typer.Exit(FAILED)
