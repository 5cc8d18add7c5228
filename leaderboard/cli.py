"""`thiefbench leaderboard`: get a defense ready to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Compare defenses on equal terms.")

_STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red"}


@app.callback()
def root() -> None:
    """Compare defenses on equal terms."""


@app.command()
def check(
    defense: Annotated[str, typer.Argument(help="What to check: mine.py:Mine(key=value), a name, or a+b.")],
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run it in this process, without a sandbox: only code that you trust.")
    ] = False,
) -> None:
    """See in about a minute whether a defense is fit to be submitted, and what to change where it is not."""
    from rich.markup import escape

    from thiefbench.cli import DONE, FAILED, err, out
    from thiefbench.leaderboard.check import Subject
    from thiefbench.leaderboard.check import check as ask
    from thiefbench.leaderboard.samples import samples
    from thiefbench.leaderboard.surroundings import files
    from thiefbench.tasks.sandbox import SandboxUnavailable, backend

    files(defense)  # a mistake in the spec string is told before anything else is done
    if not unsafe:
        try:
            err.print(f"in the sandbox ({backend()}); playing two rounds of three small swarms ...")
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error} --unsafe runs the defense without a sandbox, if you trust it.") from None
    else:
        err.print("[yellow]unsafe:[/yellow] the defense runs in this process, without a sandbox")
    failed = 0
    for finding in ask(Subject(defense, samples(), unsafe)):
        style = _STYLES[finding.status]
        said = f"  {finding.said}" if finding.status == "ok" and finding.said else f": {finding.said}"
        told = said if finding.said else ""
        out.print(f"[{style}]{finding.status:7}[/{style}] {finding.question}{escape(told)}")
        failed += finding.status == "FAILED"
    if failed:
        out.print(f"{escape(defense)} is not ready: {failed} of these rules {'is' if failed == 1 else 'are'} broken")
    else:
        out.print(f"{escape(defense)} may be submitted")
    raise typer.Exit(FAILED if failed else DONE)


@app.command()
def build(
    site: Annotated[Path, typer.Argument(help="Folder to write the site into.")],
    entries: Annotated[Path, typer.Option(help="Folder of entries.")] = Path("leaderboard/entries"),
    verified: Annotated[Path, typer.Option(help="Folder of verifications.")] = Path("leaderboard/verified"),
) -> None:
    """Write the board as a static site: a ranked table for each suite, a page for each entry, and the data as files."""
    from rich.markup import escape

    from thiefbench.cli import DONE, FAILED, err, out
    from thiefbench.leaderboard.site.writing import write_site

    made = write_site(site, entries, verified)
    for suite in made.suites:
        entered = sum(row.own for row in suite.rows)
        out.print(f"{escape(suite.suite.title)}: {entered} entries with a row, {len(suite.apart)} without")
    for _, reason in made.broken:
        err.print(f"[bold red]not shown:[/bold red] {escape(reason)}")
    out.print(f"site: {escape(str(site / 'index.html'))}")
    raise typer.Exit(FAILED if made.broken else DONE)
