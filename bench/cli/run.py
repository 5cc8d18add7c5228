"""`thiefbench run`: run a suite."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thiefbench.cli.execution import BatchKinds, Execution, Executors
from thiefbench.cli.overrides import Overrides, Topologies
from thiefbench.console import (
    CHOICE,
    FAILED,
    HARDWARE,
    OUTCOME,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    SeedsOption,
    StoreOption,
    ThreadsOption,
    TrustOption,
    WorkersOption,
    check_device,
    err,
    escaped,
    out,
    print_json,
    stoppable,
    suite_argument,
    typed_spec,
)
from thiefbench.errors import UsageError
from thiefbench.limits import SHARED_GB
from thiefbench.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from thiefbench.suite.scenario import Suite
    from thiefbench.suite.store.records import Store

app = typer.Typer()

_AHEAD, _RAY, _TORCHRUN = "Plan without running", "Ray clusters (docs/cluster.md)", "torchrun"

_EXAMPLES = """Examples:

thiefbench run smoke --defense blacklist

thiefbench run standard-v2 --defense guard --plan

thiefbench run smoke --defense mine.py:Mine --attack text --seeds 3
"""

SuiteArgument = Annotated[str, suite_argument(help="Name of a suite (see `thiefbench list suites`) or a YAML file.")]
DefenseOption = Annotated[
    list[str] | None,
    typed_spec(
        "defense",
        help="Defense to test, in addition to `none` and the suite's anchors. Repeat the option for several.",
        rich_help_panel=CHOICE,
    ),
]
AttackOption = Annotated[
    list[str] | None,
    typed_spec(
        "attack", help="Attack to run instead of the suite's attacks. Repeat the option for several.",
        rich_help_panel=CHOICE,
    ),
]  # fmt: skip
TaskOption = Annotated[
    str | None, typed_spec("task", help="Task to train on instead of the suite's task.", rich_help_panel=CHOICE)
]
TopologyOption = Annotated[
    Topologies | None,
    typer.Option(
        help="vertical: each node owns whole groups, on items that it picks. horizontal: all nodes share every group. "
        "Default: as in the suite.",
        rich_help_panel=CHOICE,
    ),
]
RoundsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Rounds of training. Default: as in the suite.", metavar="N", rich_help_panel=CHOICE),
]
ExecutorOption = Annotated[
    Executors, typer.Option(help="Run cells on this machine or on a Ray cluster.", rich_help_panel=_RAY)
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the cluster. Default: the environment variable RAY_ADDRESS; if it is not set, a new cluster "
        "on this machine alone.",
        metavar="HOST:PORT",
        rich_help_panel=_RAY,
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        help="Share of a GPU that each cell takes, such as 0.5. Default: 1.", metavar="SHARE", rich_help_panel=_RAY
    ),
]
BatchesOption = Annotated[
    BatchKinds | None,
    typer.Option(
        help="Which completions are sampled in one batch: those of a cohort (all nodes with equal weights), or those "
        "of one node, which is what torchrun does. Results of the two differ slightly. Default: cohort.",
        rich_help_panel=HARDWARE,
    ),
]
RankTimeoutOption = Annotated[
    float,
    typer.Option(
        min=1.0, max=86400.0, help="Seconds without a heartbeat after which a rank counts as lost.",
        metavar="SECONDS", rich_help_panel=_TORCHRUN,
    ),
]  # fmt: skip
PlanOption = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Run nothing; show which cells are missing, how long they would take, and how large a difference between "
        "two defenses the seeds can detect.",
        rich_help_panel=_AHEAD,
    ),
]
NoShareOption = Annotated[
    bool,
    typer.Option(
        "--no-share",
        help="Train every cell from its first round, without taking over rounds of finished cells (the results are the "
        "same).",
        rich_help_panel=OUTCOME,
    ),
]
SharedOption = Annotated[
    float,
    typer.Option(
        min=0.0, max=1e6, help="GB that the store may use for weights that cells share. The oldest are deleted first; "
        "without them, a cell whose verdicts differ late takes longer.",
        metavar="GB", rich_help_panel=OUTCOME,
    ),
]  # fmt: skip
MeasureOption = Annotated[
    bool,
    typer.Option(
        "--measure", help="With --plan: run two rounds of each kind of cell never run here, to estimate its time.",
        rich_help_panel=_AHEAD,
    ),
]  # fmt: skip
GapOption = Annotated[
    list[float] | None,
    typer.Option(
        min=0.001, max=10.0, help="With --plan: a difference between two worst cases of harm prevented, instead of "
        "0.1, 0.2 and 0.3; the plan says how many seeds detect it. Repeat the option for several.",
        metavar="GAP", rich_help_panel=_AHEAD,
    ),
]  # fmt: skip
TracebackOption = Annotated[
    bool,
    typer.Option(
        "--traceback", help="For cells that failed, show every frame, not only those of your own code.",
        rich_help_panel=OUTCOME,
    ),
]  # fmt: skip


@app.command(epilog=_EXAMPLES)
def run(
    suite: SuiteArgument,
    defense: DefenseOption = None,
    attack: AttackOption = None,
    task: TaskOption = None,
    model: ModelOption = None,
    topology: TopologyOption = None,
    seeds: SeedsOption = None,
    rounds: RoundsOption = None,
    store: StoreOption = None,
    plan: PlanOption = False,
    measure: MeasureOption = False,
    gap: GapOption = None,
    as_json: JsonOption = False,
    trust_plugins: TrustOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    threads: ThreadsOption = None,
    workers: WorkersOption = 1,
    batches: BatchesOption = None,
    executor: ExecutorOption = Executors.local,
    ray_address: RayAddressOption = None,
    gpus_per_cell: GpusOption = None,
    rank_timeout: RankTimeoutOption = 300.0,
    traceback: TracebackOption = False,
    no_share: NoShareOption = False,
    shared_gb: SharedOption = SHARED_GB,
) -> None:
    """Run a suite. Stop it at any time; the same command continues, and runs only the cells that are missing."""
    from thiefbench.suite.suite_yaml import load_suite

    # Report mistyped options before torch is loaded.
    if measure and not plan:
        raise UsageError("--measure only estimates how long a run takes; write --plan beside it")
    if gap and not plan:
        raise UsageError("--gap only asks how many seeds detect a difference; write --plan beside it")
    changed = Overrides(defense, attack, task, model, topology, seeds, rounds)
    as_released = load_suite(suite)
    from thiefbench.progress import watch
    from thiefbench.suite.execution.runner import run_suite
    from thiefbench.suite.run_plan import GAPS, look_ahead, print_run_plan
    from thiefbench.suite.store.records import Store

    execution = Execution(device, dtype, threads, workers, executor, ray_address, gpus_per_cell, batches, rank_timeout)
    execution.check(plan)
    if as_released.superseded:
        err.print(f"[bold]{escaped(as_released.title)} is superseded.[/bold] {escaped(as_released.superseded)}")
    numerics = execution.numerics()
    chosen = changed.applied_to(as_released)
    cells = chosen.cells(*numerics)
    results = Store(store or Path("runs") / chosen.name)
    cell_executor = execution.executor_for(cells)
    if plan:
        check_device(device)  # a round may be played on this machine
        with stoppable(), cell_executor as ready:
            ahead = look_ahead(chosen, cells, results, ready.places, measure, not no_share)
        if as_json:
            print_json(ahead.as_data())
        else:
            print_run_plan(out, ahead, gap or GAPS)
        return
    # A plan does without these, which load matplotlib.
    from thiefbench.suite.execution.first_rounds import FirstRoundError
    from thiefbench.suite.report.run_table import print_results, results_as_data, rows_of_run
    from thiefbench.suite.report.terminal import print_failures, print_frames
    from thiefbench.writable import check_store

    check_store(results.root)
    earlier = results.read_run()
    with stoppable():
        try:
            with cell_executor as ready, watch(err, ready.places) as listener:
                records = run_suite(
                    chosen, cells, results, listener, executor=ready, share=not no_share, shared_gb=shared_gb,
                    try_first=execution.local,
                )  # fmt: skip
        except FirstRoundError as error:
            print_frames(err, error.traceback if traceback else error.own_frames)
            raise
        finally:
            if hidden := _not_shown(results, earlier):
                err.print(escaped(hidden), soft_wrap=True)
    rows = rows_of_run(results)
    if as_json:
        print_json(results_as_data(results, rows))
    else:
        print_results(out, results, rows)
    print_failures(err, records, traceback)
    if any(record.status == "error" for record in records):
        raise typer.Exit(FAILED)
    flag = " --trust-plugins" if _names_own_code(chosen) else ""
    err.print(
        f"For the page with curves: thiefbench report {escaped(shlex.quote(str(results.root)))}{flag}", soft_wrap=True
    )


def _not_shown(store: Store, earlier: Mapping[str, Any] | None) -> str:
    """One sentence if cells of the run before have results that the store's report no longer shows, else empty."""
    from thiefbench.suite.store.runs import RunError, check_run

    now = store.read_run()
    if not earlier or not now:
        return ""
    try:
        before = check_run(earlier, "")
        check_run(now, "")
    except RunError:
        return ""
    shown = {each["cell_id"] for each in now["cells"]}
    hidden = [
        each
        for each in earlier["cells"]
        if each["cell_id"] not in shown and store.cell(each["cell_id"]).record_path.exists()
    ]
    if not hidden:
        return ""
    return (
        f"The report of this store no longer shows {counted(len(hidden), 'cell')} of the run before it "
        f"({before.title}), such as {hidden[0].get('label') or hidden[0]['cell_id']}. Repeat its command to see them "
        "again, or give each run a --store of its own."
    )


def _names_own_code(suite: Suite) -> bool:
    """Whether a report has to load an attack that no installed package declares."""
    from thiefbench import registry

    return any(any(registry.classes_in(attack)) for part in suite.scenes for attack in part.attacks)
