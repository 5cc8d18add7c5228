"""`thiefbench audit`: how much poison earns a task's full reward."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thiefbench.console import JsonOption, err, escaped, out, print_json, typed_spec
from thiefbench.errors import UsageError
from thiefbench.wording import counted

if TYPE_CHECKING:
    from thiefbench.audit import Audit, TriedOutcome

app = typer.Typer()


@app.command()
def audit(
    task: Annotated[str, typed_spec("task", help="Task whose reward is audited.")],
    attack: Annotated[str, typed_spec("attack", help="Attack that submits a completion for every item.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the task's data files.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed that the attack's payload is drawn from.")] = 0,
    forms: Annotated[bool, typer.Option("--forms", help="Count every form of the attack, one line each.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count how many clean oracle solutions and poisoned completions earn the full reward.

    It needs no model and no training. The attack's outcome is tried on a few completions of each kind.
    """
    from thiefbench import registry
    from thiefbench.audit import audit as count
    from thiefbench.audit import audit_forms
    from thiefbench.progress import bar
    from thiefbench.suite.analysis.scoring import wilson
    from thiefbench.task_answers import check_task
    from thiefbench.user_frames import one_sentence

    if split not in ("train", "test"):
        raise UsageError(f"--split must be train or test, not {split!r}")
    spec = registry.parse("task", task)
    if data is not None:
        spec = registry.ParsedSpec(spec.target, spec.arguments | {"data": str(data)})
    audited, attacker = registry.make("task", str(spec)), registry.make("attack", attack)
    with one_sentence():
        check_task(audited)
    if forms:
        with one_sentence(), bar(err, "auditing") as progress:
            lines = audit_forms(audited, attacker, "train" if split == "train" else "test", seed, progress)
        if as_json:
            print_json({
                "task": str(spec), "split": split, "attack": attack, "forms": [asdict(line) for line in lines]
            })  # fmt: skip
            return
        for line in lines:
            words = ", ".join(f"{name} {value!r}" for name, value in line.payload.items())
            out.print(
                f"{line.poisoned} of {line.poisonable} poisoned completions earn the full reward: {escaped(words)}"
            )
        return
    with one_sentence(), bar(err, "auditing") as progress:
        counts = count(audited, attacker, "train" if split == "train" else "test", seed, progress)
    passing = wilson(counts.poisoned, counts.poisonable)
    if as_json:
        interval = {"value": passing.value, "low": passing.low, "high": passing.high}
        print_json({"task": str(spec), "split": split, "attack": attack, **asdict(counts), "poisoned_share": interval})
        return
    out.print(f"task [bold]{escaped(str(spec))}[/bold], {split} split, {counted(counts.items, 'item')}")
    drawn = ", ".join(f"{name} {value!r}" for name, value in counts.payload.items())
    out.print(f"attack [bold]{escaped(attack)}[/bold]" + (f" ({escaped(drawn)})" if drawn else ""))
    out.print(f"clean oracle solutions with full reward: {counts.clean} of {counts.items}")
    share = "" if passing.value is None else f" = {passing.value:.2%} [{passing.low:.2%}, {passing.high:.2%}]"
    out.print(f"poisoned completions with full reward:   {counts.poisoned} of {counts.poisonable}{share}")
    out.print(f"mean outcome of clean oracle solutions:  {_mean(counts.clean_outcome)}")
    out.print(f"mean outcome of poisoned completions:    {_mean(counts.poisoned_outcome)}")
    if counts.unrewarded:
        out.print(f"clean but not rewarded: {escaped(', '.join(counts.unrewarded[:20]))}")
    if counts.example:
        out.print("\none poisoned completion that earns the full reward:")
        out.print("\n".join(map(escaped, counts.example.split("\n"))))
    notes = _notes(counts)
    if ":" in registry.parse("attack", attack).target:
        notes.append(
            "an audit tries only a few of the rules for attacks; next, check them all in a small swarm: "
            f"thiefbench leaderboard check-attack {shlex.quote(attack)}"
        )
    for note in notes:
        out.print(f"\n{escaped(note)}")


def _mean(tried: TriedOutcome) -> str:
    if tried.mean is None:
        return "n/a, none can be judged"
    return f"{tried.mean:.2f} over {counted(tried.judged, 'completion')}"


def _notes(counts: Audit) -> list[str]:
    """What the outcomes say against the attack, a sentence each."""
    notes = []
    if counts.clean_outcome.mean:
        notes.append(
            "warning: its outcome is above 0 for clean oracle solutions, so text without the payload counts as "
            "success; let `outcome` return 0 for such text"
        )
    if counts.poisoned_outcome.mean == 0 and not counts.probes:
        notes.append(
            "warning: its outcome is 0 for its own poisoned completions, so its ASR would be 0 even if models learned "
            "them; see whether `outcome` reads them as `poison` wrote them"
        )
    return notes
