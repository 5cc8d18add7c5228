"""`thiefbench leaderboard`: check a defense, submit it, verify an entry, build the board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from thiefbench.leaderboard.check import Finding, Subject
    from thiefbench.leaderboard.samples import Sample
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
    from thiefbench.leaderboard.surroundings import files

    files(defense)  # a mistake in the spec string is told before anything else is done, and before torch is loaded
    from rich.markup import escape

    from thiefbench.cli import DONE, FAILED, err, out
    from thiefbench.leaderboard.check import Subject
    from thiefbench.tasks.sandbox import SandboxUnavailable, backend

    if not unsafe:
        try:
            err.print(f"in the sandbox ({backend()}); playing two rounds of three small swarms ...")
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error} --unsafe runs the defense without a sandbox, if you trust it.") from None
    else:
        err.print("[yellow]unsafe:[/yellow] the defense runs in this process, without a sandbox")
    failed = _ask(Subject(defense, _samples(), unsafe))
    if failed:
        out.print(f"{escape(defense)} is not ready: {failed} of these rules {'is' if failed == 1 else 'are'} broken")
    else:
        out.print(f"{escape(defense)} may be submitted")
    raise typer.Exit(FAILED if failed else DONE)


@app.command()
def submit(
    defense: Annotated[str, typer.Argument(help="What to submit: mine.py:Mine(key=value), folder/mine.py:Mine, a+b.")],
    name: Annotated[str, typer.Option(help="What the board calls it.")] = "",
    authors: Annotated[str, typer.Option(help="Who made it, separated by commas.")] = "",
    paper: Annotated[str, typer.Option(help="Its address, https://...")] = "",
    suite: Annotated[str, typer.Option(help="A released suite that ranks.")] = "standard-v1",
    store: Annotated[Path | None, typer.Option(help="Where records are kept. Default: runs/SUITE.")] = None,
    directory: Annotated[Path, typer.Option("--out", help="The folder of entries.")] = Path("leaderboard/entries"),
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each process, as for run.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run cells at the same time.")] = 1,
    standing: Annotated[
        bool,
        typer.Option("--standing", help="An entry of ThiefBench's own; anchors and what rejects all are taken too."),
    ] = False,
) -> None:
    """Check a defense, run what is missing of the suite, and write the entry: stop at any time and go on."""
    from rich.markup import escape

    from thiefbench.cli import FAILED, _numerics, _stoppable, err, out
    from thiefbench.leaderboard import submit as submitting
    from thiefbench.leaderboard.check import Subject
    from thiefbench.leaderboard.entry import Numerics
    from thiefbench.progress import watch

    if standing:
        name, authors = name or defense, authors or submitting.OWN
    credits = submitting.credits_of(name, authors, paper)
    chosen = submitting.released(suite)
    where, precision, share = _numerics(device, dtype, threads, workers)
    numerics = Numerics(device=where, dtype=precision, threads=share)
    kept = store or Path("runs") / chosen.name
    made = submitting.prepare(defense, credits, chosen, numerics, kept, directory, standing)
    for each in made.staged.left_out:
        err.print(f"left out: {escape(each)}, which neither the file nor the spec string names")
    with _stoppable():
        if made.checkable:
            err.print("first what `thiefbench leaderboard check` asks, about a minute ...")
            if _ask(Subject(made.checkable, _samples(), standing=standing)):
                out.print(f"{escape(defense)} is not ready: make it keep the rules marked FAILED")
                raise typer.Exit(FAILED)
        err.print(submitting.caps())
        with watch(err, workers) as listener:
            records = submitting.run(made, listener, workers)
    if errors := [record for record in records if record.status == "error"]:
        for record in errors:
            out.print(f"failed: {escape(str(record.cell['defense']))} against {escape(str(record.cell['attack']))}, "
                      f"seed {record.cell['seed']}: {escape(record.error)}")  # fmt: skip
        out.print("An entry needs all of its cells: the same command tries these again")
        raise typer.Exit(FAILED)
    entry = submitting.write(made, records)
    for line in (*submitting.told(submitting.row_of(entry)), *submitting.next_steps(made, entry)):
        out.print(escape(line))


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
    from rich.markup import escape

    from thiefbench.cli import DONE, FAILED, _device, _stoppable, err, out
    from thiefbench.leaderboard.entry import EntryError, read_manifest
    from thiefbench.leaderboard.held_out import HeldOut, read_held_out
    from thiefbench.leaderboard.verification import write_verification
    from thiefbench.leaderboard.verify import Asked
    from thiefbench.leaderboard.verify import verify as ask
    from thiefbench.suite.scenario import SuiteError

    for path, what in ((entry, "entry"), (archive, "archive")):
        if path is not None and not path.exists():
            raise SuiteError(f"there is no {what} {path}")
    known = HeldOut() if private is None else read_held_out(private)

    asked = Asked(archive, reruns, fresh, all_attacks, known, store, device, threads)
    try:
        if asked.runs and archive is not None:
            _device(device or read_manifest(entry).numerics.device)
        with _stoppable():
            found = ask(entry, asked, _print, _watched, _samples)
    except EntryError as error:
        out.print(f"[bold red]rejected[/bold red]: {escape(str(error))}")
        raise typer.Exit(FAILED) from None
    out.print(f"[bold]{found.slug}: {found.verdict}[/bold]" + (f" ({', '.join(found.flags)})" if found.flags else ""))
    for reason in found.reasons:
        out.print(f"  {escape(reason)}")
    if write is not None:
        err.print(f"verification: {escape(str(write_verification(write, found)))}")
    raise typer.Exit(FAILED if found.verdict == "rejected" else DONE)


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


def _samples() -> list[Sample]:
    """The pools that a defense is asked about, played and judged on one thread.

    Models this small gain little from a second one, and where other work shares the cores its waiting costs a lot:
    seven times the processor time was seen.
    """
    import torch

    from thiefbench.leaderboard.samples import samples

    torch.set_num_threads(1)
    return samples()


def _ask(subject: Subject) -> int:
    """Print what the check finds, a line for each rule; how many are broken."""
    from thiefbench.leaderboard.check import check as ask

    failed = 0
    for finding in ask(subject):
        _print(finding)
        failed += finding.status == "FAILED"
    return failed


def _print(finding: Finding) -> None:
    from rich.markup import escape

    from thiefbench.cli import out

    style = _STYLES[finding.status]
    said = f"  {finding.said}" if finding.status == "ok" and finding.said else f": {finding.said}"
    told = said if finding.said else ""
    out.print(f"[{style}]{finding.status:7}[/{style}] {escape(finding.question + told)}")


def _watched(what: str) -> Progress:
    """Tells of the rounds of a cell that is run, four times."""
    from rich.markup import escape

    from thiefbench.cli import err

    def told(done: int, total: int) -> None:
        if done == total or done % max(1, total // 4) == 0:
            err.print(f"  {escape(what)}: round {done} of {total}")

    return told
