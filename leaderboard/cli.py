"""`thiefbench leaderboard`: get a defense ready to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

if TYPE_CHECKING:
    from rich.console import Console

    from thiefbench.leaderboard.reexecution import Watch
    from thiefbench.suite.execution import Progress

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
def verify(
    entry: Annotated[Path, typer.Argument(help="An entry's folder.")],
    archive: Annotated[
        Path | None, typer.Option(help="The entry's archive; without it nothing but the entry is looked at.")
    ] = None,
    reruns: Annotated[int, typer.Option(min=0, help="Submitted cells to run again, drawn in secret.")] = 1,
    fresh: Annotated[int, typer.Option(min=0, help="Secret seeds to draw for cells that were never submitted.")] = 0,
    all_attacks: Annotated[
        bool, typer.Option("--all-attacks", help="At fresh seeds, run every attack of the suite, not one.")
    ] = False,
    private: Annotated[
        Path | None, typer.Option(help="YAML with seeds: [...] and attacks: [...] of your own; never published.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Keep the cells that are run, to go on after a stop; not the submitted store.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Folder to write the verification into, such as leaderboard/verified.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Run on another device than the entry's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Run with other CPU threads than the entry's.")] = None,
) -> None:
    """Find out how far an entry can be trusted: read it, rescore it, run parts of it again."""
    from thiefbench.cli import DONE, FAILED, err, out
    from thiefbench.leaderboard.check import Finding
    from thiefbench.leaderboard.entry import EntryError
    from thiefbench.leaderboard.held_out import HeldOut, read_held_out
    from thiefbench.leaderboard.samples import samples
    from thiefbench.leaderboard.verification import write_verification
    from thiefbench.leaderboard.verify import Asked
    from thiefbench.leaderboard.verify import verify as ask
    from thiefbench.suite.scenario import SuiteError

    for path, what in ((entry, "entry"), (archive, "archive")):
        if path is not None and not path.exists():
            raise SuiteError(f"there is no {what} {path}")
    known = HeldOut() if private is None else read_held_out(private)

    def tell(finding: Finding) -> None:
        style = _STYLES[finding.status]
        said = f": {finding.said}" if finding.said else ""
        out.print(f"[{style}]{finding.status:7}[/{style}] {escape(finding.question + said)}")

    asked = Asked(archive, reruns, fresh, all_attacks, known, store, device, threads)
    try:
        found = ask(entry, asked, tell, _watched(err), samples)
    except EntryError as error:
        out.print(f"[bold red]rejected[/bold red]: {escape(str(error))}")
        raise typer.Exit(FAILED) from None
    out.print(f"[bold]{found.slug}: {found.verdict}[/bold]" + (f" ({', '.join(found.flags)})" if found.flags else ""))
    for reason in found.reasons:
        out.print(f"  {escape(reason)}")
    if write is not None:
        err.print(f"verification: {escape(str(write_verification(write, found)))}")
    raise typer.Exit(FAILED if found.verdict == "rejected" else DONE)


def _watched(err: Console) -> Watch:
    """Tells a console of the rounds of what is run."""

    def watch(what: str) -> Progress:
        def told(done: int, total: int) -> None:
            if done in (0, total) or done % max(1, total // 4) == 0:
                err.print(f"  {escape(what)}: round {done} of {total}")

        return told

    return watch
