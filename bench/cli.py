"""The command line: `thiefbench run | matrix | list | audit | report | compare | replay | export | merge | zoo | ...`.

Nothing heavy is imported before a command needs it, so `--help` and `list` answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from thiefbench import __version__, exchange
from thiefbench.errors import is_users

if TYPE_CHECKING:
    from thiefbench.engine.backends.process_group import Launch
    from thiefbench.suite.execution.executors import Executor
    from thiefbench.suite.scenario import CellSpec, Suite

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Measure how well a defense protects a decentralised GRPO swarm from poisoned completions.",
)  # fmt: skip
zoo = typer.Typer(no_args_is_help=True, help="The built-in small models.")
app.add_typer(zoo, name="zoo")
app.add_typer(exchange.app)
for command in entry_points(group="thiefbench.commands"):  # those of the floor above
    app.add_typer(command.load(), name=command.name)
out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

DONE, FAILED, BAD_USE, INTERRUPTED = 0, 1, 2, 130


class What(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    tasks = "tasks"
    suites = "suites"
    models = "models"


class Topologies(StrEnum):
    """Who answers what."""

    vertical = "vertical"
    horizontal = "horizontal"


class BatchKinds(StrEnum):
    """What is sampled together."""

    cohort = "cohort"
    node = "node"


class Executors(StrEnum):
    """Who runs cells."""

    local = "local"
    ray = "ray"


SpecList = list[str]
StoreOption = Annotated[Path | None, typer.Option(help="Where records are kept. Default: runs/SUITE.")]
ModelOption = Annotated[str | None, typer.Option(help="Built-in model, local directory or hub name.")]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many seeds, counted from 0.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="float32 or bfloat16.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPU threads of each process; part of a cell's identity. Default: its share of the cores, up to 4."
    ),
]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Print the version when asked."""
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # they would tear our own progress
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def run(
    suite: Annotated[str, typer.Argument(help="A suite's name (see `thiefbench list suites`) or a YAML file.")],
    defense: Annotated[
        SpecList | None, typer.Option(help="Defense to run beside `none` and the suite's anchors; repeat for several.")
    ] = None,
    attack: Annotated[
        SpecList | None, typer.Option(help="Attack to run instead of the suite's; repeat for several.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task to run instead of the suite's.")] = None,
    model: ModelOption = None,
    topology: Annotated[Topologies | None, typer.Option(help="Topology to run instead of the suite's.")] = None,
    seeds: SeedsOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to run instead of the suite's.")] = None,
    store: StoreOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    threads: ThreadsOption = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that run cells at the same time, sharing the cores or the GPU.")
    ] = 1,
    executor: Annotated[
        Executors,
        typer.Option(help="Who runs the cells: this machine, or a Ray cluster (docs/cluster.md)."),
    ] = Executors.local,
    ray_address: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of the Ray cluster. Default: RAY_ADDRESS, or else a new one on this machine."),
    ] = None,
    gpus_per_cell: Annotated[
        float | None, typer.Option(help="Share of a GPU that each cell takes on Ray, such as 0.5. Default: 1.")
    ] = None,
    batches: Annotated[
        BatchKinds | None,
        typer.Option(
            help="What is sampled together: all completions of a cohort (default), or of a node, as under torchrun."
        ),
    ] = None,
    rank_timeout: Annotated[
        float,
        typer.Option(
            min=1.0, max=86400.0, help="Under torchrun: seconds after which a rank that shows no life is lost."
        ),
    ] = 300.0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Run nothing: show which cells are missing and how long they take.")
    ] = False,
) -> None:
    """Run what is missing of a suite; stop it at any time and run it again to go on."""
    from thiefbench.engine.backends.process_group import Launch
    from thiefbench.engine.spec import SpecError
    from thiefbench.progress import watch
    from thiefbench.suite.estimates.run_plan import look_ahead, print_run_plan
    from thiefbench.suite.execution.runner import local, run_suite
    from thiefbench.suite.report.terminal import print_results
    from thiefbench.suite.store.records import Store
    from thiefbench.suite.suite_yaml import load_suite

    who: AbstractContextManager[Executor]
    launch = Launch.of_environment()
    if launch is not None:
        if workers > 1 or executor is not Executors.local or plan or batches is BatchKinds.cohort:
            raise SpecError(
                "under torchrun one cell is run at a time, each node a rank; write the command without --workers, "
                "--executor, --plan and --batches cohort, or without torchrun"
            )
        batches = BatchKinds.node
    if executor is Executors.ray:
        from thiefbench.suite.execution.ray_executor import RayExecutor, Share

        if workers > 1:
            raise SpecError("--workers is for --executor local; Ray runs as many cells as its nodes have room for")
        share = Share.of(device, threads or 1, gpus_per_cell)
        who, numerics = RayExecutor(share, ray_address), (device, _dtype(dtype), share.cpus)
    elif ray_address is not None or gpus_per_cell is not None:
        raise SpecError("--ray-address and --gpus-per-cell are for a Ray cluster; write --executor ray beside them")
    else:
        sharing = launch.local_size if launch else workers
        who, numerics = nullcontext(local(workers)), _numerics(device, dtype, threads, sharing)
    chosen = _overridden(load_suite(suite), defense, attack, task, model, topology, seeds, rounds)
    cells = chosen.cells(*numerics, batches.value if batches else "cohort")
    kept = Store(store or Path("runs") / chosen.name)
    if launch is not None:
        who = _joined(launch, cells, device, rank_timeout)
    if plan:
        _device(device)  # a round may be played on this machine
        with _stoppable(), who as ready:
            print_run_plan(out, look_ahead(chosen, cells, kept, ready.places))
        return
    with _stoppable(), who as ready, watch(err, ready.places) as listener:
        records = run_suite(chosen, cells, kept, listener, executor=ready)
    print_results(out, kept)
    if any(record.status == "error" for record in records):
        raise typer.Exit(FAILED)
    err.print(f"The page with curves: thiefbench report {escape(str(kept.root))}")


@app.command()
def matrix(
    suite: Annotated[SpecList, typer.Argument(help="Suites, by name or YAML file; several share one table.")],
    defense: Annotated[
        SpecList | None, typer.Option(help="Defense to judge the pools; repeat. Default: every one.")
    ] = None,
    attack: Annotated[
        SpecList | None, typer.Option(help="Attack to run instead of the suites'; repeat for several.")
    ] = None,
    model: ModelOption = None,
    seeds: SeedsOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to run instead of the suites'.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Where records are kept. Default: runs/SUITE, of several suites runs/matrix.")
    ] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    threads: ThreadsOption = None,
) -> None:
    """Let every defense judge every attack: run undefended swarms where missing, replay all defenses on their pools."""
    from thiefbench.progress import bar, watch
    from thiefbench.suite.analysis.matrix import (
        every_defense,
        inspect_all,
        named_defenses,
        pools_of,
        undefended,
        wanted,
    )
    from thiefbench.suite.execution.runner import run_suite
    from thiefbench.suite.report.heatmap import write_matrix
    from thiefbench.suite.report.terminal import print_matrix
    from thiefbench.suite.store.records import Store
    from thiefbench.suite.suite_yaml import load_suite

    judges, left_out = (named_defenses(defense), []) if defense else every_defense()
    chosen = undefended(
        [_overridden(load_suite(name), None, attack, None, model, None, seeds, rounds) for name in suite]
    )
    numerics = _numerics(device, dtype, threads)
    asked = [(each, wanted(each.cells(*numerics))) for each in chosen]
    kept = Store(store or Path("runs") / (chosen[0].name if len(chosen) == 1 else "matrix"))
    for reason in left_out:
        err.print(f"left out: {escape(reason)}")
    with _stoppable():
        pools, failed = [], False
        for each, cells in asked:
            with watch(err) as listener:
                records = run_suite(each, cells, kept, listener, remember=False)
            failed |= any(record.status == "error" for record in records)
            pools += pools_of(each, cells, records)
        with bar(err, "judging") as progress:
            judged = inspect_all(kept, pools, judges, progress, lambda message: err.print(escape(message)))
    page = write_matrix(kept, judged, chosen)
    print_matrix(out, judged)
    err.print(f"The heat map: {escape(str(page))}")
    if failed:
        raise typer.Exit(FAILED)


@app.command("list")
def list_(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """List what is installed, third-party plugins included."""
    from rich.table import Table

    from thiefbench import registry

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    if what is What.models:
        from thiefbench.zoo.models import BUILT_IN

        for name, summary in BUILT_IN.items():
            table.add_row(f"[bold]{name}[/bold]", summary)
        table.add_row("any other", "give --model a local directory or a hub name")
    else:
        kind: registry.Kind = what.value.removesuffix("s")  # type: ignore[assignment]
        for name in registry.names(kind):
            table.add_row(f"[bold]{name}[/bold]", escape(registry.summary(kind, name)))
    out.print(table)


@app.command()
def audit(
    task: Annotated[str, typer.Option(help="Task whose reward is audited.")],
    attack: Annotated[str, typer.Option(help="Attack whose payload goes into every oracle solution.")],
    data: Annotated[Path | None, typer.Option(help="Directory with the task's data files.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Draws the payload.")] = 0,
) -> None:
    """Count how many clean and how many poisoned oracle solutions earn the full reward."""
    from thiefbench import registry
    from thiefbench.audit import audit as count
    from thiefbench.progress import bar
    from thiefbench.suite.analysis.scoring import wilson

    if split not in ("train", "test"):
        raise registry.SpecStringError(f"--split must be train or test, not {split!r}")
    spec = registry.parse("task", task)
    if data is not None:
        spec = registry.ParsedSpec(spec.target, spec.arguments | {"data": str(data)})
    audited, attacker = registry.make("task", str(spec)), registry.make("attack", attack)
    with bar(err, "auditing") as progress:
        found = count(audited, attacker, "train" if split == "train" else "test", seed, progress)
    passing = wilson(found.poisoned, found.poisonable)
    out.print(f"task [bold]{escape(str(spec))}[/bold], {split} split, {found.items} items")
    drawn = ", ".join(f"{name} {value!r}" for name, value in found.payload.items())
    out.print(f"attack [bold]{escape(attack)}[/bold]" + (f" ({escape(drawn)})" if drawn else ""))
    out.print(f"clean oracle solutions with full reward:    {found.clean} of {found.items}")
    share = "" if passing.value is None else f" = {passing.value:.2%} [{passing.low:.2%}, {passing.high:.2%}]"
    out.print(f"poisoned oracle solutions with full reward: {found.poisoned} of {found.poisonable}{share}")
    if found.unrewarded:
        out.print(f"clean but not rewarded: {', '.join(found.unrewarded[:20])}")
    if found.example:
        out.print("\none poisoned solution that earns the full reward:")
        out.print(escape(found.example))


@app.command()
def report(store: Annotated[Path, typer.Argument(help="A store that `thiefbench run` filled.")]) -> None:
    """Write the HTML page, the plots, a CSV and a LaTeX table of a store's last run."""
    from thiefbench.suite.report.page import write_report
    from thiefbench.suite.store.records import Store

    out.print(f"report: {escape(str(write_report(Store(store))))}")


@app.command()
def compare(
    stores: Annotated[list[Path], typer.Argument(help="Two stores; or one, with two --defense.")],
    defense: Annotated[SpecList | None, typer.Option(help="Defense of the one store; give two.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--out", help="Folder to write compare.html and compare.csv into.")
    ] = None,
) -> None:
    """Put the last runs of two stores, or two defenses of one, side by side: differences paired by seed."""
    from thiefbench.suite.report.compare import compared, write_comparison
    from thiefbench.suite.report.terminal import print_comparison

    found = compared(stores, defense or [])
    print_comparison(out, found)
    if directory is not None:
        err.print(f"page: {escape(str(write_comparison(found, directory)))}")


@zoo.command("train")
def zoo_train(
    name: Annotated[str, typer.Argument(help="A built-in model.")],
    directory: Annotated[Path | None, typer.Option("--out", help="Where to save it. Default: ./NAME.")] = None,
) -> None:
    """Train a built-in model from its recipe and compare the weights with the shipped ones."""
    import difflib

    from thiefbench import registry
    from thiefbench.progress import bar
    from thiefbench.zoo.models import BUILT_IN, resolve
    from thiefbench.zoo.recipe import RECIPES, train

    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise registry.SpecStringError(f"there is no built-in model {name!r}; {hint}known: {', '.join(RECIPES)}")
    target = directory or Path(name)
    with bar(err, f"training {name}") as progress:
        train(RECIPES[name], target, lambda step, steps, loss: progress(step, steps))
    made = (target / "model.safetensors").read_bytes()
    shipped = Path(resolve(name)) / "model.safetensors"
    if name not in BUILT_IN:
        verdict = "there are no shipped weights to compare with"
    elif shipped.read_bytes() == made:
        verdict = "bit-equal to the shipped weights"
    else:
        verdict = "not bit-equal to the shipped weights (another platform, library version or thread count?)"
    out.print(f"saved {escape(str(target))}: {verdict}")


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail("the disk is full; what was finished is kept, so make room and run the same command again")
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            _fail(f"{error.filename or 'a file'} cannot be written: {error.strerror}")
        raise
    except Exception as error:
        if not is_users(error):
            raise
        _fail(str(error))


def _joined(launch: Launch, cells: Sequence[CellSpec], device: str, timeout: float) -> AbstractContextManager[Executor]:
    """The ranks as an executor, for rank 0; the others play along here, and end."""
    from thiefbench.engine.backends.process_group import ProcessGroup, RankLostError
    from thiefbench.suite.execution.torchrun import FollowingRank, LeadingRank, check_cells, take_device

    check_cells(cells, launch)
    take_device(device, launch)
    try:
        exchange = ProcessGroup.join(launch, timeout)
        if launch.rank == 0:
            return LeadingRank(exchange)
        FollowingRank(exchange, cells).follow()
    except RankLostError as error:
        err.print(f"rank {launch.rank}: {escape(str(error))}")
        raise typer.Exit(FAILED) from None
    raise typer.Exit(DONE)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C in what is wrapped ends politely, and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        again = f"thiefbench {' '.join(_quoted(word) for word in sys.argv[1:])}"
        err.print(f"Stopped; everything finished is kept. To go on: {escape(again)}")
        raise typer.Exit(INTERRUPTED) from None


def _fail(message: str) -> None:
    err.print(f"[bold red]error:[/bold red] {escape(message)}")
    sys.exit(BAD_USE)


def _overridden(
    suite: Suite,
    defense: SpecList | None,
    attack: SpecList | None,
    task: str | None,
    model: str | None,
    topology: Topologies | None,
    seeds: int | None,
    rounds: int | None,
) -> Suite:
    from dataclasses import replace

    from thiefbench.suite.analysis.ranking import beside_anchors

    changed = suite
    if attack:
        changed = changed.override(f"attacks {' '.join(attack)}", attacks=tuple(attack))
    if task:
        changed = changed.override(f"task {task}", task=task)
    if model:
        changed = changed.override(f"model {model}", model=model)
    if topology:
        changed = changed.override(f"topology {topology.value}", swarm={"topology": topology.value})
    if seeds and tuple(range(seeds)) != suite.seeds:
        changed = changed.override("1 seed" if seeds == 1 else f"{seeds} seeds", seeds=tuple(range(seeds)))
    if rounds and any(rounds != part.rounds for part in suite.scenes):
        recorded = tuple(number for number in changed.recorded if number <= rounds)
        changed = changed.override("1 round" if rounds == 1 else f"{rounds} rounds", rounds=rounds, recorded=recorded)
    if defense:  # which defenses meet the suite is what a user decides: no modification
        changed = replace(changed, defenses=beside_anchors(suite.defenses, defense))
    return changed


def _numerics(
    device: str, dtype: str, threads: int | None, workers: int = 1
) -> tuple[str, Literal["float32", "bfloat16"], int]:
    """What of a cell's identity the command line decides, checked."""
    share = max(1, len(os.sched_getaffinity(0)) // workers)
    return _device(device), _dtype(dtype), threads or min(4, share)


def _device(device: str) -> str:
    import torch

    from thiefbench.engine.spec import SpecError

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise SpecError(
            f"the device {device} is not there; write --device cpu" + (" or cuda" if torch.cuda.is_available() else "")
        )
    return device


def _dtype(dtype: str) -> Literal["float32", "bfloat16"]:
    from thiefbench.engine.spec import SpecError

    if dtype not in ("float32", "bfloat16"):
        raise SpecError(f"--dtype must be float32 or bfloat16, not {dtype!r}")
    return "float32" if dtype == "float32" else "bfloat16"


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
