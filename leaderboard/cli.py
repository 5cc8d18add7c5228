"""`thiefbench leaderboard`: check and submit defenses and attacks, verify an entry, publish cells, build the board."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thiefbench.console import (
    DONE,
    FAILED,
    DeviceOption,
    DtypeOption,
    JsonOption,
    Other,
    StoreOption,
    ThreadsOption,
    WorkersOption,
    check_device,
    err,
    escaped,
    numerics,
    out,
    print_hanging,
    print_json,
    stoppable,
    stranger_s,
    suite_argument,
    suite_option,
    typed_spec_argument,
)
from thiefbench.errors import UsageError
from thiefbench.leaderboard import CURRENT
from thiefbench.limits import MOST_SEEDS, MOST_THREADS
from thiefbench.wording import counted, one_of

if TYPE_CHECKING:
    from thiefbench.leaderboard.checking.check import Subject
    from thiefbench.leaderboard.checking.check_rule import RuleSubject
    from thiefbench.leaderboard.checking.findings import Finding
    from thiefbench.leaderboard.checking.samples import Sample
    from thiefbench.leaderboard.submit import Submission
    from thiefbench.suite.execution.cell_run import Progress
    from thiefbench.suite.scenario import Suite

app = typer.Typer(no_args_is_help=True, help="Compare defenses on equal terms.")

SharedOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder of the board's published shared cells. Default: those of the installed package.",
    ),
]

PlanOption = Annotated[
    bool,
    typer.Option("--plan", help="Check and run nothing; say how many cells are missing, and how long they take."),
]

_STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red"}


@app.callback()
def root() -> None:
    """Compare defenses on equal terms."""


@app.command()
def check(
    defense: Annotated[
        str,
        typed_spec_argument(
            "defense",
            other=Other("attack", "thiefbench leaderboard check-attack"),
            help="mine.py:Mine(key=value), a name, or several defenses as a+b.",
        ),
    ],
    suite: Annotated[
        str,
        suite_option(help="Suite (or YAML file) that the defense is meant for; it is checked in swarms like its own."),
    ] = CURRENT,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe", help="Run the defense without a sandbox, in this process. Only for code that you trust."
        ),
    ] = False,
) -> None:
    """Check in about a minute whether a defense may be submitted; if not, say what to change.

    Aggregations and stage checks count as defenses.
    """
    from thiefbench.leaderboard.isolation.sandbox_paths import files

    files(defense)  # a mistake in the spec string is reported before torch is loaded
    from thiefbench.leaderboard.checking.check import POISON_STOPPED, Subject
    from thiefbench.leaderboard.checking.check_rule import RuleSubject
    from thiefbench.leaderboard.defense_kinds import check_kind, kind_named, rankable, why_not_rankable
    from thiefbench.suite.suite_yaml import load_suite
    from thiefbench.tasks.sandbox import SandboxUnavailable, backend

    kind, chosen = kind_named(defense), load_suite(suite)
    if not why_not_rankable(suite, chosen):
        check_kind(chosen, kind, defense)
    if not unsafe:
        try:
            err.print(f"in the sandbox ({backend()}) ...")
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error} --unsafe runs the defense without a sandbox, if you trust it.") from None
    else:
        err.print("[yellow]unsafe:[/yellow] the defense runs in this process, without a sandbox")
    if kind != "defense":
        findings = _ask(RuleSubject(defense, kind, unsafe))
    else:
        swarms = [part.swarm for part in chosen.scenes]
        pools = partial(_samples, chosen)
        findings = _ask(Subject(defense, pools, unsafe, suite=chosen.title, swarms=swarms, rounds=chosen.longest))
    if failed := sum(finding.status == "FAILED" for finding in findings):
        out.print(f"{escaped(defense)} is not ready: {failed} of these rules {'is' if failed == 1 else 'are'} broken")
    elif why := why_not_rankable(suite, chosen):
        fitting = one_of(rankable(kind))
        out.print(f"{escaped(defense)} keeps these rules, but {escaped(why)}; check it with --suite {fitting} too")
    else:
        lets_through = any(finding.question == POISON_STOPPED and finding.status == "warning" for finding in findings)
        but = ", but see what it does not stop" if lets_through else ""
        out.print(f"{escaped(defense)} may be submitted{but}")
    raise typer.Exit(FAILED if failed else DONE)


@app.command("check-attack")
def check_attack(
    attack: Annotated[
        str,
        typed_spec_argument(
            "attack",
            other=Other("defense", "thiefbench leaderboard check"),
            help="mine.py:Attack(key=value), or a name.",
        ),
    ],
) -> None:
    """Check in about a minute whether an attack may be submitted; if not, say what to change."""
    from thiefbench.leaderboard.attacking.submit import checked_spec

    checked_spec(attack)  # a mistake is reported before torch is loaded
    from thiefbench.tasks.sandbox import backend

    err.print(f"in the sandbox ({backend()}); running a few rounds of a small swarm ...")
    failed = _ask_attack(attack)
    if failed:
        out.print(f"{escaped(attack)} is not ready: {failed} of these rules {'is' if failed == 1 else 'are'} broken")
    else:
        out.print(f"{escaped(attack)} may be submitted")
    raise typer.Exit(FAILED if failed else DONE)


@app.command()
def attack(
    entry: Annotated[Path, typer.Argument(help="Folder of the entry of a listed defense.")],
    attack: Annotated[
        str,
        typed_spec_argument(
            "attack",
            other=Other("defense", "thiefbench leaderboard submit"),
            help="mine.py:Attack(key=value), or a name.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the attack on the leaderboard.")] = "",
    authors: Annotated[str, typer.Option(help="Authors of the attack, separated by commas.")] = "",
    paper: Annotated[str, typer.Option(help="Address of a paper about it: https://...")] = "",
    store: StoreOption = None,
    directory: Annotated[
        Path, typer.Option("--out", help="Folder of entries, to which the attack's entry is written.")
    ] = Path("leaderboard/entries"),
    archive: Annotated[
        Path | None, typer.Option(help="Archive of the defense's entry; needed only where the defense has weights.")
    ] = None,
    shared: SharedOption = None,
    plan: PlanOption = False,
) -> None:
    """Check an attack, run it against a listed defense and write an entry of its own.

    The attack runs in the sandbox, at the suite's seeds and with the numerical settings of the defense's entry, beside
    its own control, placebo and undefended cells. Stop it at any time; the same command continues. The same command
    with another entry adds that defense.
    """
    from thiefbench.leaderboard.attacking import submit as attacking
    from thiefbench.leaderboard.isolation.isolated import DefenseError
    from thiefbench.leaderboard.isolation.isolated_attack import AttackError
    from thiefbench.leaderboard.places import entry_folder
    from thiefbench.leaderboard.published import given
    from thiefbench.leaderboard.submit import credits_of

    credits = credits_of(name, authors, paper)
    attacking.checked_spec(attack)
    try:
        own = attacking.prepare_attack(
            entry_folder(entry), attack, credits, store, directory, target_archive=archive, shared=given(shared)
        )
        for line in (*attacking.replaced(own), *attacking.estimate(own)):
            (out if plan else err).print(escaped(line))
        if plan:
            return
        err.print("first the rules of `thiefbench leaderboard check-attack`, about a minute ...")
        if _ask_attack(own.spec):
            out.print(f"{escaped(attack)} is not ready: fix the rules marked FAILED")
            raise typer.Exit(FAILED)
        err.print(escaped(attacking.limits(own.isolated)))
        with stoppable():
            records = attacking.run_attack(own, _print_rounds)
    except (AttackError, DefenseError) as error:
        out.print(f"[bold red]failed[/bold red]: {stranger_s(str(error))}")
        raise typer.Exit(FAILED) from None
    written = attacking.write_attack(own, records)
    for line in (*attacking.summary(written, own.suite), *attacking.next_steps(own, written)):
        out.print(escaped(line))


@app.command()
def submit(
    defense: Annotated[
        str,
        typed_spec_argument(
            "defense",
            other=Other("attack", "thiefbench leaderboard attack ENTRY"),
            help="mine.py:Mine(key=value), a name, or several defenses as a+b.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the entry on the leaderboard.")] = "",
    authors: Annotated[str, typer.Option(help="Authors of the defense, separated by commas.")] = "",
    paper: Annotated[str, typer.Option(help="Address of a paper about it: https://...")] = "",
    suite: Annotated[str, suite_option(help="Released suite to be ranked on.")] = CURRENT,
    store: StoreOption = None,
    directory: Annotated[Path, typer.Option("--out", help="Folder of entries, to which the entry is written.")] = Path(
        "leaderboard/entries"
    ),
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    threads: ThreadsOption = None,
    workers: WorkersOption = 1,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Make one of ThiefBench's own entries. It may be an anchor, and it may reject nearly everything.",
        ),
    ] = False,
    own_shared: Annotated[
        str,
        typer.Option(
            metavar="REASON",
            help="Run and bring control, undefended, placebo and oracle cells of your own although the board has "
            "published them, and say why. The entry is self-reported until a verifier has run all of these again.",
        ),
    ] = "",
    shared: SharedOption = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_SEEDS,
            metavar="N",
            help="Give the entry the first N seeds of the suite. Those that it has already stay as they are, and only "
            "the others are run and added, with the defense, version and kind of machine that it was begun with. With "
            "fewer than all seeds it is listed, never ranked. Default: all seeds, in place of what it has.",
        ),
    ] = None,
    plan: PlanOption = False,
) -> None:
    """Check a defense, run the suite with it and write a leaderboard entry.

    Stop it at any time; the same command continues. Where the board has published the cells that every defense is
    measured against, only the defense's own are run. With --seeds, an entry can grow from day to day.
    """
    from thiefbench.leaderboard import growing
    from thiefbench.leaderboard import submit as submitting
    from thiefbench.leaderboard.defense_kinds import kind_named
    from thiefbench.leaderboard.deliveries import named, why_partial
    from thiefbench.leaderboard.manifest import Numerics
    from thiefbench.leaderboard.names import OWN
    from thiefbench.leaderboard.published import given
    from thiefbench.leaderboard.referring import published_threads
    from thiefbench.progress import watch

    if baseline:
        name, authors = name or defense, authors or OWN
    credits = submitting.credits_of(name, authors, paper)
    chosen = submitting.released(suite, kind_named(defense))
    board_cells = given(shared)
    if threads is None and seeds is not None and (earlier := growing.begun(directory / credits.slug)):
        threads = earlier.numerics.threads
    if threads is None and not own_shared:
        threads = published_threads(chosen, board_cells)
    where, precision, share = numerics(device, dtype, threads, workers)
    numbers = Numerics(device=where, dtype=precision, threads=share)
    results = store or Path("runs") / chosen.name
    submission = submitting.prepare(
        defense, credits, chosen, numbers, results, directory,
        baseline=baseline, own_shared=own_shared, shared=board_cells, seeds=seeds,
    )  # fmt: skip
    if not submission.seeds:
        out.print(f"nothing to run: {escaped(str(submission.folder))} has {counted(seeds or 0, 'seed')} already")
        return
    for each in submission.staged.left_out:
        err.print(f"left out: {stranger_s(each)}, which neither the file nor the spec string names")
    if submission.earlier:
        added, there = named(submission.seeds), named(submission.earlier.manifest.seeds)
        err.print(f"{added} will be added to {escaped(str(submission.folder))}, which has {there}")
    with stoppable():
        size = submitting.estimate(submission, workers)
        for line in (*submitting.replaced(submission), *submitting.measured_against(submission), *size):
            (out if plan else err).print(escaped(line))
        if plan:
            return
        if submission.checkable:
            _check_once(submission, baseline)
        err.print(submitting.caps(chosen))
        with watch(err, workers) as listener:
            records = submitting.run(submission, listener, workers)
    if errors := [record for record in records if record.status == "error"]:
        for record in errors:
            out.print(f"failed: {escaped(str(record.cell['defense']))} against {escaped(str(record.cell['attack']))}, "
                      f"seed {record.cell['seed']}: {stranger_s(record.error)}")  # fmt: skip
        out.print("An entry needs all of its cells; the same command tries these again")
        raise typer.Exit(FAILED)
    entry = submitting.write(submission, records)
    partly = why_partial(chosen, entry.manifest.seeds)
    for line in (*submitting.row_summary(submitting.row_of(entry), partly), *submitting.next_steps(submission, entry)):
        out.print(escaped(line))


@app.command()
def verify(
    entry: Annotated[Path, typer.Argument(help="Folder of the entry.")],
    archive: Annotated[
        list[Path] | None,
        typer.Option(
            help="Archive of the entry. Without it, only the entry is read; nothing is run. Repeat it for an "
            "entry whose seeds were brought in several deliveries; each archive is verified for the seeds it holds."
        ),
    ] = None,
    reruns: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of submitted comparisons (all cells of one attack at one seed) to run again, drawn at random. "
            "Default: as many as the verdict re-executed requires.",
        ),
    ] = None,
    fresh: Annotated[
        int, typer.Option(min=0, help="Number of secret seeds at which to run cells that were never submitted.")
    ] = 1,
    all_attacks: Annotated[
        bool, typer.Option("--all-attacks", help="With --fresh, run every attack of the suite instead of one.")
    ] = False,
    private: Annotated[
        Path | None, typer.Option(help="YAML file with seeds: [...] and attacks: [...] of your own, not published.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps the cells run here, so that the command can continue after a stop. Not the "
            "submitted store."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the verification to, such as leaderboard/verified. Seeds whose archive is not "
            "given keep the verdict that the verification there gave them, if nothing of them has changed since."
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(help="Repeat a verification: the key that it published. Default: a new one, drawn in secret.")
    ] = "",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the entry's device.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads. Default: as many as the entry's.")
    ] = None,
    shared: SharedOption = None,
) -> None:
    """Verify an entry of a defense or an attack: read it, compute its scores again, run some of its cells again."""
    from thiefbench.engine.keys import new_secret
    from thiefbench.leaderboard.attacking.entry import is_attack_entry, read_attack_manifest
    from thiefbench.leaderboard.deliveries import named
    from thiefbench.leaderboard.entry import EntryError, read_manifest
    from thiefbench.leaderboard.places import check_outside, entry_folder
    from thiefbench.leaderboard.published import given
    from thiefbench.leaderboard.verification.attack_verification import verify_attack
    from thiefbench.leaderboard.verification.held_out import HeldOut, read_held_out
    from thiefbench.leaderboard.verification.kept_secrets import check_own, forget_secret, kept_secret, manifest_sha256
    from thiefbench.leaderboard.verification.verdict import check_writable, write_verification
    from thiefbench.leaderboard.verification.verify import VerifyOptions
    from thiefbench.leaderboard.verification.verify import verify as verify_entry

    archives, entry = tuple(archive or ()), entry_folder(entry)
    for path in archives:
        if not path.exists():
            raise UsageError(f"there is no archive {path}")
    if not entry.is_dir():
        raise UsageError(f"{entry} is a file; name the folder of an entry")
    if len(archives) > 1 and is_attack_entry(entry):
        raise UsageError("an attack's entry has one archive; name one with --archive")
    for option, folder in (("--write", write), ("--store", store)):
        if folder is not None:
            check_outside(f"{option} {folder}", folder)
    if write is not None:
        check_writable(write)
    if store is not None:
        check_own(store)
    known = HeldOut() if private is None else read_held_out(private)

    options = VerifyOptions(
        archives[0] if archives else None, reruns=reruns, fresh=fresh, all_attacks=all_attacks, held_out=known,
        store=store, device=device, threads=threads, shared=given(shared), further=archives[1:], earlier=write,
        judged=True,
        secret=_secret(key) if key else kept_secret(store, entry) if store else new_secret(),
    )  # fmt: skip
    try:
        if options.runs and archives:
            manifest = read_attack_manifest(entry) if is_attack_entry(entry) else read_manifest(entry)
            check_device(device or manifest.numerics.device)
        with stoppable(kept=store is not None or not options.archives):
            if is_attack_entry(entry):
                verification = verify_attack(entry, options, _print, _print_rounds)
            else:
                verification = verify_entry(entry, options, _print, _print_rounds, _samples)
    except EntryError as error:
        out.print(f"[bold red]rejected[/bold red]: {stranger_s(str(error))}")
        raise typer.Exit(FAILED) from None
    flags = f" ({', '.join(verification.flags)})" if verification.flags else ""
    out.print(f"[bold]{verification.slug}: {verification.verdict}[/bold]{flags}")
    if len(verification.deliveries) > 1:
        for each in verification.deliveries:
            out.print(f"  {named(each.seeds)}: {each.verdict}, {each.verified.isoformat()}")
    for reason in verification.reasons:
        out.print(f"  {stranger_s(reason)}")
    if verification.key:
        out.print(f"  what was drawn follows from --key {verification.key}", soft_wrap=True)
    if write is not None:
        err.print(f"verification: {escaped(str(write_verification(write, verification)))}", soft_wrap=True)
    if store is not None:
        forget_secret(store, verification.entry_sha256)
    if manifest_sha256(entry) != verification.entry_sha256:
        err.print(f"{escaped(str(entry))} has changed since it was read: this is the verdict of what it was before")
    raise typer.Exit(FAILED if verification.verdict == "rejected" else DONE)


@app.command("publish-shared")
def publish_shared(
    suite: Annotated[str, suite_argument(help="Released suite whose shared cells are published.")],
    store: StoreOption = None,
    directory: Annotated[
        Path, typer.Option("--out", help="Folder of published shared cells, which they are written to.")
    ] = Path("leaderboard/shared"),
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_THREADS,
            help="CPU threads of the cells. Needed where the store has several numbers of them.",
        ),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help="Publish them as a further set if those that are published were computed with another version of "
            "torch, other vector instructions or settings, so that machines that compute as this one can submit.",
        ),
    ] = False,
) -> None:
    """Publish the control, undefended, placebo and oracle cells of a finished store, for every entry to refer to.

    Their completions are computed again from the recorded tokens first. What is published already stays as it is and
    must be equal; the same command goes on after a stop, and adds the cells of further seeds.
    """
    from thiefbench.leaderboard.publishing import publish
    from thiefbench.leaderboard.submit import released

    chosen = released(suite)
    with stoppable():
        outcome = publish(
            chosen,
            store or Path("runs") / chosen.name,
            directory,
            threads,
            lambda line: err.print(stranger_s(line)),
            beside,
        )
    for line in outcome.lines():
        out.print(stranger_s(line))
    raise typer.Exit(FAILED if outcome.failed else DONE)


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(help="Folder of an entry (A).")],
    other: Annotated[Path, typer.Argument(help="Folder of another entry on the same suite (B).")],
    directory: Annotated[
        Path | None, typer.Option("--out", help="Folder to write compare.html and compare.csv to.")
    ] = None,
    shared: SharedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why two rows differ: what made their cells, the shared cells, and their own, with every measure paired."""
    from thiefbench.leaderboard.entry import read_entry
    from thiefbench.leaderboard.entry_differences import difference
    from thiefbench.leaderboard.places import entry_folder
    from thiefbench.leaderboard.published import given
    from thiefbench.suite.report.compare import comparison_as_data, write_comparison
    from thiefbench.suite.report.terminal import print_comparison

    board_cells = given(shared)
    found = difference(*(read_entry(entry_folder(each), board_cells) for each in (one, other)))
    if as_json:
        print_json(comparison_as_data(found.comparison) | {"reasons": list(found.reasons)})
    else:
        print_comparison(out, found.comparison)
        out.print("\n[bold]why[/bold]")
        for reason in found.reasons:
            out.print(f"- {stranger_s(reason)}")
    if directory is not None:
        page = write_comparison(found.comparison, directory, found.reasons)
        err.print(f"page: {escaped(str(page))}", soft_wrap=True)


@app.command()
def build(
    site: Annotated[Path, typer.Argument(help="Folder to write the site to.")],
    entries: Annotated[Path, typer.Option(help="Folder of entries.")] = Path("leaderboard/entries"),
    verified: Annotated[
        Path | None,
        typer.Option(help="Folder of verifications. Default: verified, beside the folder of entries."),
    ] = None,
    shared: SharedOption = None,
    readme: Annotated[
        bool, typer.Option("--readme", help="Also write the tables as README.md, beside the folder of entries.")
    ] = False,
) -> None:
    """Write the leaderboard as a static site: a ranked table per suite, a page per entry, and the data as files."""
    from thiefbench.leaderboard.entry import EntryError
    from thiefbench.leaderboard.places import check_outside
    from thiefbench.leaderboard.published import given
    from thiefbench.leaderboard.site.markdown import page_beside
    from thiefbench.leaderboard.site.writing import write_site
    from thiefbench.progress import bar
    from thiefbench.writable import unwritable

    check_outside(str(site), site)
    if wrong := unwritable(site):
        raise EntryError(f"no site can be written to {site} ({wrong})")
    if verified is not None and not verified.is_dir():
        raise UsageError(f"there is no folder {verified}; name the folder of verifications with --verified DIR")
    judged = verified or entries.parent / "verified"
    page = page_beside(entries) if readme else None
    with bar(err, "steps (each entry is read, then shown)") as progress:
        written = write_site(site, entries, judged, given(shared), progress, page)
    for suite in written.suites:
        entered = sum(row.own for row in suite.rows)
        with_row = counted(entered, "entry", "entries")
        attacked = f", {counted(len(suite.attacks), 'submitted attack')}" if suite.attacks else ""
        out.print(f"{stranger_s(suite.suite.title)}: {with_row} with a row, {len(suite.apart)} without{attacked}")
    for _, reason in written.broken:
        err.print(f"[bold red]not shown:[/bold red] {stranger_s(reason)}")
    out.print(f"site: {escaped(str(site / 'index.html'))}", soft_wrap=True)
    if page is not None:
        out.print(f"readme: {escaped(str(page))}", soft_wrap=True)
    raise typer.Exit(FAILED if written.broken else DONE)


def _secret(key: str) -> bytes:
    """The secret of a published key; raises UserError."""
    from thiefbench.engine.keys import SECRET_BYTES
    from thiefbench.errors import UserError

    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", key):
        raise UserError(
            f"--key takes the {2 * SECRET_BYTES} hexadecimal digits that a verification published as its key"
        )
    return bytes.fromhex(key)


def _samples(suite: Suite) -> list[Sample]:
    """The pools that a defense for a suite is checked on, generated and inspected on one thread.

    Such small models gain little from a second thread, and if other work shares the cores, waiting threads cost a lot:
    up to seven times the processor time.
    """
    import torch

    from thiefbench.leaderboard.checking.samples import recipes_for, samples

    torch.set_num_threads(1)
    err.print(escaped(f"running two rounds of small swarms like those of {suite.title} ..."))
    return samples(recipes_for([part.swarm for part in suite.scenes]))


def _check_once(submission: Submission, baseline: bool) -> None:
    """Check a submission, unless the same bytes have passed the check here before; exit if it fails."""
    from thiefbench.leaderboard.checking.check import Subject
    from thiefbench.leaderboard.checking.check_rule import RuleSubject
    from thiefbench.leaderboard.checking.passed import read_pass, write_pass
    from thiefbench.leaderboard.defense_kinds import kind_of

    swarms = [part.swarm for part in submission.suite.scenes]
    if (findings := read_pass(submission.store, submission.staged, baseline, swarms)) is not None:
        err.print("not checked again: the same files passed `thiefbench leaderboard check` with these versions")
        _printed(finding for finding in findings if finding.status == "warning")
        return
    err.print("first the rules of `thiefbench leaderboard check`, about a minute ...")
    subject: Subject | RuleSubject
    if (kind := kind_of(submission.suite)) != "defense":
        subject = RuleSubject(submission.checkable, kind)
    else:
        pools, title = partial(_samples, submission.suite), submission.suite.title
        longest = submission.suite.longest
        subject = Subject(submission.checkable, pools, baseline=baseline, suite=title, swarms=swarms, rounds=longest)
    findings = _ask(subject)
    if any(finding.status == "FAILED" for finding in findings):
        out.print(f"{escaped(submission.defense)} is not ready: fix the rules marked FAILED")
        raise typer.Exit(FAILED)
    write_pass(submission.store, submission.staged, baseline, swarms, findings)


def _ask(subject: Subject | RuleSubject) -> list[Finding]:
    """Print the check's findings, one line for each rule."""
    from thiefbench.leaderboard.checking.check import Subject
    from thiefbench.leaderboard.checking.check import check as check_rules
    from thiefbench.leaderboard.checking.check_rule import check_rule

    return _printed(check_rules(subject) if isinstance(subject, Subject) else check_rule(subject))


def _ask_attack(attack: str) -> int:
    """Print the findings of an attack's check, one line for each rule; returns how many rules are broken."""
    import torch

    from thiefbench.leaderboard.checking.check_attack import AttackSubject
    from thiefbench.leaderboard.checking.check_attack import check_attack as check_rules
    from thiefbench.leaderboard.checking.check_tensor_attack import TensorAttackSubject, check_tensor_attack
    from thiefbench.leaderboard.isolation.sandbox_paths import attack_kind

    torch.set_num_threads(1)  # such small models gain nothing from a second one
    kind = attack_kind(attack)
    findings = _printed(
        check_rules(AttackSubject(attack))
        if kind == "attack"
        else check_tensor_attack(TensorAttackSubject(attack, kind))
    )
    return sum(finding.status == "FAILED" for finding in findings)


def _printed(asked: Iterable[Finding]) -> list[Finding]:
    """Print findings as they come; a fault that several questions run into is written out once."""
    findings: list[Finding] = []
    for finding in asked:
        _print(finding, findings)
        findings.append(finding)
    return findings


def _print(finding: Finding, earlier: Sequence[Finding] = ()) -> None:
    from thiefbench.leaderboard.checking.findings import shortened

    style, detail = _STYLES[finding.status], shortened(finding, earlier)
    separator = "" if not detail else "  " if finding.status == "ok" else ": "
    said = f"{escaped(finding.question)}{separator}{stranger_s(detail)}"
    print_hanging(out, f"[{style}]{finding.status:7}[/{style}] ", said)


def _print_rounds(cell: str) -> Progress:
    """Prints how many rounds of a cell are done, four times in all."""

    def progress(done: int, total: int) -> None:
        if done == total or done % max(1, total // 4) == 0:
            err.print(f"  {stranger_s(cell)}: round {done} of {total}")

    return progress
