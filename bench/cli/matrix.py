"""`thiefbench matrix`: every defense against every attack, on recorded rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thiefbench.cli.overrides import Overrides
from thiefbench.console import (
    CHOICE,
    FAILED,
    OUTCOME,
    DeviceOption,
    DtypeOption,
    ModelOption,
    SeedsOption,
    ThreadsOption,
    TrustOption,
    err,
    escaped,
    numerics,
    out,
    stoppable,
    suite_argument,
    typed_spec,
)

app = typer.Typer()


@app.command()
def matrix(
    suite: Annotated[list[str], suite_argument(help="Names or YAML files of suites. Several share one table.")],
    defense: Annotated[
        list[str] | None,
        typed_spec(
            "defense",
            help="Defense to test. Repeat the option for several. Default: every defense installed.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typed_spec(
            "attack",
            help="Attack to run instead of the suites' attacks. Repeat the option for several.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    model: ModelOption = None,
    seeds: SeedsOption = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of training. Default: as in the suites.", metavar="N", rich_help_panel=CHOICE),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps the results. Default: runs/NAME, the suite's name without its version; with "
            "several suites runs/matrix.",
            metavar="DIR",
            rich_help_panel=OUTCOME,
        ),
    ] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    threads: ThreadsOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Show how much of every attack each defense rejects.

    Only missing undefended swarms are trained; then all defenses inspect their recorded completions.
    """
    from thiefbench.suite.suite_yaml import load_suite

    read = [load_suite(name) for name in suite]  # mistyped names are reported before torch is loaded
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
    from thiefbench.writable import check_store

    defenses, left_out = (named_defenses(defense), []) if defense else every_defense()
    overrides = Overrides(attacks=attack, model=model, seeds=seeds, rounds=rounds)
    suites = undefended([overrides.applied_to(each) for each in read])
    numbers = numerics(device, dtype, threads)
    cells_of_suites = [(each, wanted(each.cells(*numbers))) for each in suites]
    results = Store(store or Path("runs") / (suites[0].name if len(suites) == 1 else "matrix"))
    check_store(results.root)
    for reason in left_out:
        err.print(f"left out: {escaped(reason)}")
    with stoppable():
        pools, failed = [], False
        for each, cells in cells_of_suites:
            with watch(err) as listener:
                records = run_suite(each, cells, results, listener, remember=False)
            failed |= any(record.status == "error" for record in records)
            pools += pools_of(each, cells, records)
        with bar(err, "inspecting") as progress:
            table = inspect_all(results, pools, defenses, progress, lambda message: err.print(escaped(message)))
    page = write_matrix(results, table, suites)
    print_matrix(out, table)
    err.print(f"The heat map: {escaped(str(page))}", soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)
