"""`thiefbench list | show | report | compare`: installed plugins and suites, and existing results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from thiefbench.console import (
    FAILED,
    JsonOption,
    TrustOption,
    err,
    escaped,
    out,
    print_hanging,
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
"""What `show` can show, beside suites."""
SUITE: Final = "suite"


SHOWN_AS: Mapping[str, Literal["attack", "defense", "task"]] = {
    "attacks": "attack", "weight_attacks": "attack", "stage_attacks": "attack", "defenses": "defense",
    "aggregations": "defense", "stage_checks": "defense", "tasks": "task",
}  # fmt: skip
"""What `show` calls the plugins that `list` lists under the key."""


def _kind_named(typed: str, kinds: Sequence[str]) -> str | None:
    """The kind that was typed in the singular or the plural; None if it is none of them."""
    plain = typed.lower().replace("-", "_").removesuffix("s")
    return next((kind for kind in kinds if kind.removesuffix("s") == plain), None)


def _checked_kind(typed: str, kinds: Sequence[str]) -> str:
    """Like `_kind_named`.

    Raises:
        UsageError: it is none of them; with a suggestion.
    """
    if kind := _kind_named(typed, kinds):
        return kind
    if named := [kind for kind in SHOWABLE if typed in _names_shown_as(kind)]:
        what = f"{'an' if named[0] == 'attack' else 'a'} {named[0]}"
        raise UsageError(f"{typed} is the name of {what}; write thiefbench show {named[0]} {typed}")
    raise UsageError(f"there is no kind {printable(typed)!r}; {nearest(typed, kinds)}known: {', '.join(kinds)}")


def _names_shown_as(kind: Literal["attack", "defense", "task"]) -> list[str]:
    """The names of all plugins that `show` shows as one kind."""
    from thiefbench import registry

    listed: list[registry.Kind] = [each.removesuffix("s") for each, as_ in SHOWN_AS.items() if as_ == kind]  # type: ignore[misc]
    return [name for each in listed for name in registry.names(each)]


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in LISTABLE if kind.startswith(incomplete)]


def _complete_kind_or_name(incomplete: str) -> list[str]:
    """What `show` may begin with."""
    from thiefbench import registry

    named = {name for kind in SHOWABLE for name in _names_shown_as(kind)} | set(registry.names("suite"))
    known = [*SHOWABLE, SUITE, *sorted(named)]
    return [each for each in known if each.startswith(incomplete)]


def _complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of plugins of the kind that was typed before, for `list` and `show`."""
    from thiefbench import registry
    from thiefbench.zoo.models import BUILT_IN

    typed = str(ctx.params.get("kind"))
    if ctx.info_name == "show":
        shown = _kind_named(typed, SHOWABLE)
        names = _names_shown_as(shown) if shown else []  # type: ignore[arg-type]  # of the same words
    else:
        kind = _kind_named(typed, LISTABLE)
        names = list(BUILT_IN) if kind == "models" else registry.names(kind.removesuffix("s")) if kind else []  # type: ignore[arg-type]
    return [name for name in names if name.startswith(incomplete)]


def _kind_of(spec: str) -> Literal["attack", "defense", "task"]:
    """The kind of a plugin that was typed without it.

    Raises:
        UsageError: the name is that of plugins of several kinds, of something that is no plugin, or of nothing.
    """
    from thiefbench import registry
    from thiefbench.zoo.models import BUILT_IN

    if shown := _kind_named(spec, SHOWABLE):
        raise UsageError(f"name {'an' if shown == 'attack' else 'a'} {shown}; thiefbench list {shown}s lists them")
    name = re.split(r"[(+]", spec)[0].strip()
    kinds = [kind for kind in SHOWABLE if name in _names_shown_as(kind)]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise UsageError(f"{name} is the name of more than one plugin; write thiefbench show {'|'.join(kinds)} {name}")
    if registry.reads_like_class(name):
        raise UsageError(f"say what {printable(name)} is: write thiefbench show {'|'.join(SHOWABLE)} {printable(name)}")
    if name in BUILT_IN:
        raise UsageError(f"{name} is a model; thiefbench list models says what it does")
    known = [*(each for kind in SHOWABLE for each in _names_shown_as(kind)), *registry.names("suite")]
    raise UsageError(
        f"there is no attack, defense, task or suite named {printable(name)!r}; {nearest(name, known)}"
        "thiefbench list attacks|defenses|tasks|suites lists them"
    )


@app.command("list", no_args_is_help=True)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            callback=lambda typed: _checked_kind(typed, LISTABLE), autocompletion=_complete_kind, metavar="KIND",
            help=f"What to list: {', '.join(LISTABLE[:-1])} or {LISTABLE[-1]}.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Only this one, with its arguments.", autocompletion=_complete_name),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List what is installed, third-party plugins included."""
    from rich.table import Table

    from thiefbench import registry

    if name is not None and kind in SHOWN_AS:
        _show(SHOWN_AS[kind], name, as_json)
        return
    if name is not None and kind == f"{SUITE}s":
        _show_suite(name, as_json)
        return
    if kind == "models":
        from thiefbench.zoo.models import BUILT_IN

        summaries = dict(BUILT_IN)
    else:
        plugins: registry.Kind = kind.removesuffix("s")  # type: ignore[assignment]
        summaries = {name: registry.summary(plugins, name) for name in registry.names(plugins)}
    if name is not None:
        if name not in summaries:
            known = f"{nearest(name, summaries)}known: {', '.join(summaries)}"
            raise UsageError(f"there is no {kind.removesuffix('s')} named {printable(name)!r}; {known}")
        summaries = {name: summaries[name]}
    if as_json:
        print_json({kind: [{"name": each, "summary": about} for each, about in summaries.items()]})
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for each, summary in summaries.items():
        table.add_row(f"[bold]{each}[/bold]", escaped(summary))
    if kind == "models" and name is None:
        table.add_row("any other", "give --model a local folder or a hub name")
    out.print(table)
    if kind in SHOWN_AS and out.is_terminal:
        err.print(f"\nFor arguments and needs: thiefbench show {SHOWN_AS[kind]} NAME")


@app.command(no_args_is_help=True)
def show(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND|NAME", autocompletion=_complete_kind_or_name, show_default=False,
            help="What it is: attack, defense, task or suite. Of an installed one, the name is enough.",
        ),
    ],
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Its name, or mine.py:Mine; with arguments or without.", autocompletion=_complete_name
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what an attack, defense or task does, its arguments, needs and source; or what a suite holds."""
    from thiefbench import registry

    if spec is None:
        if kind in registry.names(SUITE) or kind.endswith((".yaml", ".yml")):
            _show_suite(kind, as_json)
        else:
            _show(_kind_of(kind), kind, as_json)
    elif (shown := _checked_kind(kind, (*SHOWABLE, SUITE))) == SUITE:
        _show_suite(spec, as_json)
    else:
        _show(shown, spec, as_json)


def _show(kind: str, spec: str, as_json: bool) -> None:
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
    for place, paragraph in enumerate(shown.about or ("Its class has no docstring.",)):
        if place == 1:
            out.print()
        out.print(Text(printable(paragraph)))
    if shown.arguments:
        out.print()
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("argument", no_wrap=True)
        table.add_column("default", overflow="fold", max_width=24)  # so that the next column has room
        described = any(each.about for each in shown.arguments)
        if described:
            table.add_column("what it is", overflow="fold")
        for each in shown.arguments:
            about = [each.about] if described else []
            table.add_row(*map(escaped, (each.name, each.default or "must be given", *about)))
        out.print(table)
    out.print()
    if shown.needs is None:
        out.print("needs: depends on the arguments; show it as NAME(key=value)")
    else:
        _print_needs(shown.needs)
    out.print(f"source: {escaped(shown.source)}", soft_wrap=True)


def _show_suite(name: str, as_json: bool) -> None:
    from rich.text import Text

    from thiefbench.suite.report.suite_facts import suite_facts
    from thiefbench.suite.suite_yaml import load_suite

    shown = suite_facts(load_suite(name))
    if as_json:
        print_json(shown.as_data())
        return
    out.print(Text(printable(shown.title), style="bold"), f"({SUITE})")
    for paragraph in filter(None, (shown.superseded and f"Superseded. {shown.superseded}", shown.about)):
        out.print(Text(printable(paragraph)))
    out.print()
    _print_pairs(shown.general.items())
    for part in shown.parts:
        out.print()
        if part.name:
            out.print(Text(printable(part.name), style="bold"))
        _print_pairs([*part.swarm.items(), *zip(["Attacks", *[""] * len(part.attacks)], part.attacks, strict=False)])
    out.print(f"\ncells and time: thiefbench run {escaped(name)} --plan", soft_wrap=True)


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns; on a terminal a longer value goes on below itself."""
    for name, value in pairs:
        print_hanging(out, f"{escaped(name):18}", escaped(value))


def _print_needs(needs: Sequence[str]) -> None:
    """Each need on a line of its own, aligned; on a terminal a longer one goes on below itself."""
    for label, need in zip(["needs: ", *["       "] * len(needs)], needs or ["nothing"], strict=False):
        print_hanging(out, label, escaped(need))


@app.command()
def report(
    store: Annotated[Path, typer.Argument(help="Folder that `thiefbench run` filled.")],
    samples: Annotated[
        int, typer.Option(min=0, help="Completions to show on the page completions.html. 0: leave that page out.")
    ] = 10_000,
    trust_plugins: TrustOption = False,
) -> None:
    """Write the results of a store's last run as HTML pages, plots, a CSV file and a LaTeX table."""
    from thiefbench.cli.changed_code import changed_code
    from thiefbench.cli.unfinished import how_to_go_on
    from thiefbench.suite.analysis.comparison import Cell
    from thiefbench.suite.report.page import write_report
    from thiefbench.suite.store.records import Store

    damaged: list[Cell] = []
    out.print(f"report: {escaped(str(write_report(Store(store), damaged.append, samples)))}", soft_wrap=True)
    if changed := changed_code(Store(store)):
        err.print(
            f"the code of {escaped(' and of '.join(changed))} is no longer what these results were computed with; run "
            "the suite again to measure it as it is now",
            soft_wrap=True,
        )
    if command := how_to_go_on(Store(store)):
        err.print(escaped(command), soft_wrap=True)
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
        Path | None, typer.Option("--out", help="Folder to write compare.html and compare.csv to.")
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
        err.print(f"page: {escaped(str(write_comparison(comparison, directory)))}", soft_wrap=True)
