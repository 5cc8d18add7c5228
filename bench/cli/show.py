"""`thiefbench list | report | compare`: what is installed, and results that are there already."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from thiefbench.console import FAILED, JsonOption, TrustOption, err, escaped, out, print_json, typed_spec

app = typer.Typer()


class Listable(StrEnum):
    """What `list` can list."""

    attacks = "attacks"
    defenses = "defenses"
    tasks = "tasks"
    suites = "suites"
    models = "models"


@app.command("list")
def list_(kind: Annotated[Listable, typer.Argument(help="What to list.")], as_json: JsonOption = False) -> None:
    """List what is installed, third-party plugins included."""
    from rich.table import Table

    from thiefbench import registry

    if kind is Listable.models:
        from thiefbench.zoo.models import BUILT_IN

        summaries = dict(BUILT_IN)
    else:
        plugins: registry.Kind = kind.value.removesuffix("s")  # type: ignore[assignment]
        summaries = {name: registry.summary(plugins, name) for name in registry.names(plugins)}
    if as_json:
        print_json({kind.value: [{"name": name, "summary": summary} for name, summary in summaries.items()]})
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, summary in summaries.items():
        table.add_row(f"[bold]{name}[/bold]", escaped(summary))
    if kind is Listable.models:
        table.add_row("any other", "give --model a local directory or a hub name")
    out.print(table)


@app.command()
def report(
    store: Annotated[Path, typer.Argument(help="Directory that `thiefbench run` filled.")],
    trust_plugins: TrustOption = False,
) -> None:
    """Write the results of a store's last run as an HTML page, plots, a CSV file and a LaTeX table."""
    from thiefbench.suite.analysis.comparison import Cell
    from thiefbench.suite.report.page import write_report
    from thiefbench.suite.store.records import Store

    damaged: list[Cell] = []
    out.print(f"report: {escaped(str(write_report(Store(store), damaged.append)))}")
    for cell in damaged:
        err.print(
            f"[bold red]damaged:[/bold red] {escaped(f'{cell.name} ({cell.title}), seed {cell.seed}: {cell.problem}')}"
        )
    if damaged:
        raise typer.Exit(FAILED)


@app.command()
def compare(
    stores: Annotated[list[Path], typer.Argument(help="Two stores; or one store, together with two --defense.")],
    defense: Annotated[
        list[str] | None,
        typed_spec("defense", installed=False, help="Defense to compare within one store. Write the option twice."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--out", help="Directory to write compare.html and compare.csv to.")
    ] = None,
    trust_plugins: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the last runs of two stores, or two defenses of one store, with differences paired by seed."""
    from thiefbench.suite.report.compare import compared, comparison_as_data, write_comparison
    from thiefbench.suite.report.terminal import print_comparison

    comparison = compared(stores, defense or [])
    if as_json:
        print_json(comparison_as_data(comparison))
    else:
        print_comparison(out, comparison)
    if directory is not None:
        err.print(f"page: {escaped(str(write_comparison(comparison, directory)))}")
