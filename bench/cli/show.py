"""`thiefbench list | show | report | compare`: installed plugins, and existing results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from thiefbench.console import (
    FAILED,
    JsonOption,
    TrustOption,
    err,
    escaped,
    out,
    print_json,
    typed_spec,
)
from thiefbench.error_messages import nearest
from thiefbench.errors import UsageError
from thiefbench.tasks.text import printable

app = typer.Typer()


LISTABLE = (
    "attacks", "defenses", "aggregations", "weight_attacks", "stage_checks", "stage_attacks", "tasks", "suites",
    "models",
)  # fmt: skip
"""What `list` can list."""
SHOWABLE: tuple[Literal["attack", "defense", "task"], ...] = ("attack", "defense", "task")
"""What `show` can show."""


def _kind_argument(kinds: Sequence[str], about: str) -> typer.models.ArgumentInfo:
    """An argument that is one of some kinds, in the singular or the plural; a misspelt one gets a suggestion."""

    def check(typed: str) -> str:
        from thiefbench import registry

        plain = typed.lower().replace("-", "_").removesuffix("s")
        for kind in kinds:
            if kind.removesuffix("s") == plain:
                return kind
        for named in SHOWABLE:
            if typed in registry.names(named):
                what = f"{'an' if named == 'attack' else 'a'} {named}"
                raise UsageError(f"{typed} is the name of {what}; write thiefbench show {named} {typed}")
        raise UsageError(f"there is no kind {printable(typed)!r}; {nearest(typed, kinds)}known: {', '.join(kinds)}")

    def complete(incomplete: str) -> list[str]:
        return [kind for kind in kinds if kind.startswith(incomplete)]

    help_ = f"{about}: {', '.join(kinds[:-1])} or {kinds[-1]}."
    argument: typer.models.ArgumentInfo = typer.Argument(
        callback=check, autocompletion=complete, metavar="KIND", help=help_
    )
    return argument


@app.command("list")
def list_(kind: Annotated[str, _kind_argument(LISTABLE, "What to list")], as_json: JsonOption = False) -> None:
    """List what is installed, third-party plugins included."""
    from rich.table import Table

    from thiefbench import registry

    if kind == "models":
        from thiefbench.zoo.models import BUILT_IN

        summaries = dict(BUILT_IN)
    else:
        plugins: registry.Kind = kind.removesuffix("s")  # type: ignore[assignment]
        summaries = {name: registry.summary(plugins, name) for name in registry.names(plugins)}
    if as_json:
        print_json({kind: [{"name": name, "summary": summary} for name, summary in summaries.items()]})
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, summary in summaries.items():
        table.add_row(f"[bold]{name}[/bold]", escaped(summary))
    if kind == "models":
        table.add_row("any other", "give --model a local directory or a hub name")
    out.print(table)
    if kind not in ("models", "suites") and out.is_terminal:
        shown_as = {
            "aggregations": "defense", "stage_checks": "defense", "weight_attacks": "attack", "stage_attacks": "attack"
        }  # fmt: skip
        err.print(f"\nFor arguments and needs: thiefbench show {shown_as.get(kind, kind.removesuffix('s'))} NAME")


def _complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of plugins of the kind that was typed before."""
    from thiefbench import registry

    kinds: dict[str, registry.Kind] = {"attack": "attack", "defense": "defense", "task": "task"}
    kind = kinds.get(str(ctx.params.get("kind")))
    return [name for name in registry.names(kind) if name.startswith(incomplete)] if kind else []


@app.command()
def show(
    kind: Annotated[str, _kind_argument(SHOWABLE, "What it is")],
    spec: Annotated[
        str, typer.Argument(help="Its name, or mine.py:Mine; with arguments or without.", autocompletion=_complete_name)
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what an attack, defense or task does, its arguments with defaults, its needs and its source file."""
    from rich.table import Table
    from rich.text import Text

    from thiefbench import registry
    from thiefbench.plugin_facts import facts

    registry.allow(spec)
    shown = facts(kind, spec)  # type: ignore[arg-type]  # of the same words
    if as_json:
        print_json(shown.as_data())
        return
    out.print(Text(printable(shown.spec), style="bold"), f"({kind})")
    out.print(Text(printable(shown.summary)), soft_wrap=not out.is_terminal)
    if shown.arguments:
        out.print()
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("argument", no_wrap=True)
        table.add_column("default", overflow="fold", max_width=24)  # so that the next column has room
        table.add_column("what it is", overflow="fold")
        for each in shown.arguments:
            table.add_row(*map(escaped, (each.name, each.default or "must be given", each.about)))
        out.print(table)
    out.print()
    if shown.needs is None:
        out.print("needs: depends on the arguments; show it as NAME(key=value)")
    else:
        out.print(f"needs: {escaped(shown.needs[0]) if shown.needs else 'nothing'}")
        for need in shown.needs[1:]:
            out.print(f"       {escaped(need)}")
    out.print(f"source: {escaped(shown.source)}")


@app.command()
def report(
    store: Annotated[Path, typer.Argument(help="Directory that `thiefbench run` filled.")],
    samples: Annotated[
        int, typer.Option(min=0, help="Completions to show on the page completions.html. 0: leave that page out.")
    ] = 10_000,
    trust_plugins: TrustOption = False,
) -> None:
    """Write the results of a store's last run as HTML pages, plots, a CSV file and a LaTeX table."""
    from thiefbench.suite.analysis.comparison import Cell
    from thiefbench.suite.report.page import write_report
    from thiefbench.suite.store.records import Store

    damaged: list[Cell] = []
    out.print(f"report: {escaped(str(write_report(Store(store), damaged.append, samples)))}")
    for cell in damaged:
        err.print(
            f"[bold red]error:[/bold red] {escaped(f'{cell.name} ({cell.title}), seed {cell.seed}: {cell.problem}')}"
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
