"""The values of the template of an entry's page."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from thiefbench.leaderboard.deliveries import apart_from_published, named, of_all
from thiefbench.leaderboard.published import all_made_with
from thiefbench.leaderboard.rows import released
from thiefbench.leaderboard.site.judging import JudgedEntry
from thiefbench.leaderboard.verification.verdict import Rerun, kinds_of
from thiefbench.suite.analysis.comparison import Comparison, Line, Result
from thiefbench.suite.analysis.line_scores import without_interval
from thiefbench.suite.analysis.measures import Unit
from thiefbench.suite.analysis.ranking_inputs import line_of
from thiefbench.suite.report import plots
from thiefbench.suite.report.drawing import embed
from thiefbench.suite.report.overview import chosen
from thiefbench.suite.report.shades import shade
from thiefbench.suite.report.tables import columns_of, minus, short_names, show
from thiefbench.suite.report.unseen_notice import shown_unseen
from thiefbench.suite.scenario import Suite, heading
from thiefbench.suite.store.records import NOTHING
from thiefbench.tasks.text import printable
from thiefbench.wording import counted

_MAPS: tuple[tuple[str, str, Unit, str], ...] = (
    ("harm_prevented", "Harm prevented", "ratio", "Darker is better; the colour scale ends at 0 and 1."),
    (
        "drift",
        "Drift",
        "rate",
        "Share of held-out answers with a word that the control never writes. Darker is worse.",
    ),
    ("stop_rate", "Stop rate", "rate", "Share of rewarded poisoned completions that it rejects. Darker is better."),
    (
        "false_rejection_rate",
        "False rejection",
        "rate",
        "Share of rewarded honest completions that it rejects. Darker is worse.",
    ),
    (
        "vector_stop_rate",
        "Vectors stopped",
        "rate",
        "Share of malicious nodes' vectors that it rejects, or that are refused before it. Darker is better.",
    ),
    (
        "vector_clip_rate",
        "Vectors clipped",
        "rate",
        "Share of malicious nodes' vectors that count with a changed length.",
    ),
    (
        "vector_false_rejection_rate",
        "Honest vectors rejected",
        "rate",
        "Share of honest nodes' vectors that it rejects. Darker is worse.",
    ),
    (
        "stage_false_rejection_rate",
        "Honest stages rejected",
        "rate",
        "Share of verdicts on honest stages that reject. Darker is worse.",
    ),
    ("recomputed_share", "Work repeated", "rate", "Share of the stages' rounds that another participant repeats."),
    ("utility", "Utility", "ratio", "Gain in clean reward, as a share of the control's. Darker is better."),
)
_TITLES = {"asr": "Outcome of the attack by round", "reward": "Clean reward by round"}
_SHORTER = 300
"""So many characters of a version or machine name, which may be a stranger's, are shown."""


def shown_entry(judged: JudgedEntry) -> dict[str, Any]:
    """The values of the page's template, except those that depend on other entries."""
    manifest, verification = judged.entry.manifest, judged.verification
    titles, names = zip(*((c.title, c.attack) for c in judged.comparisons), strict=True)
    headings = dict(zip(titles, short_names(names), strict=True))
    columns = columns_of(judged.comparisons)
    return {
        "name": manifest.name,
        "slug": manifest.slug,
        "authors": manifest.authors,
        "paper": manifest.paper,
        "suite": judged.suite.title,
        "trust": judged.trust,
        "reasons": verification.reasons if verification else (),
        "unseen": [
            shown for c in judged.comparisons for shown in shown_unseen(c, headings[c.title], (judged.label, "none"))
        ],
        "facts": _facts(judged),
        "verification": verification,
        "verified_on": listed_versions(verification.versions) if verification else "",
        "reruns": [shown_rerun(each) for each in verification.reruns] if verification else [],
        "kinds": _kinds(judged),
        "deliveries": [
            {"seeds": named(each.seeds), "trust": trust, "verified": verified or "", "submitted": each.submitted}
            for each, trust, verified in judged.deliveries
        ],
        "seeds": sorted(manifest.seeds),
        "maps": [shown for one in _MAPS if (shown := _map(judged, headings, *one))["rows"]],
        "columns": columns,
        "groups": [
            {
                "heading": name,
                "part": part,
                "points": [
                    {
                        "seed": result.seed,
                        "problem": result.problem,
                        "shown": [show([result.scores.get(c.measure, NOTHING)], c.unit) for c in columns],
                    }
                    for result in line.results
                ],
            }
            for name, part, line in _lines(judged, headings)
        ],
        "curves": [
            shown
            for n, c in enumerate(judged.comparisons)
            if (shown := _curves(judged, c, headings[c.title], n))["plots"]
        ],
        "files": [
            {
                "name": path.relative_to(judged.entry.folder).as_posix(),
                "lines": path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n").split("\n"),
            }
            for path in judged.entry.source
        ],
        "verifying": _verifying(judged),
        "running": _running(judged),
        "making": _making(judged),
        "archive": manifest.archive,
        "versions": manifest.versions,
        "locks": [
            (f" with which {named(each.seeds)} were run" if manifest.later else "", lock_of(each.versions))
            for each in manifest.deliveries
        ],
    }


def _facts(judged: JudgedEntry) -> list[tuple[str, str]]:
    manifest = judged.entry.manifest
    seeds = named(manifest.seeds)
    if judged.partial:
        seeds += f" ({of_all(judged.suite, manifest.seeds)})"
    facts = [
        ("Defense", manifest.defense),
        ("Suite", f"{judged.suite.title}, {seeds}"),
        ("Submitted", manifest.submitted.isoformat()),
    ]
    if published := judged.entry.published:
        how = all_made_with(published.values())
        facts.append(("Measured against", f"{counted(len(published), 'published cell')}, made with {how}"))
        if apart := apart_from_published(judged.entry):
            facts.append(("Processors", apart))
    elif manifest.own_shared:
        facts.append(("Measured against", f"shared cells of its own: {manifest.own_shared}"))
    return facts


def _lines(judged: JudgedEntry, headings: dict[str, str]) -> list[tuple[str, str, Line]]:
    """The entry's own lines, under every attack and without one in each part, each with its name and part."""
    attacked = [(headings[c.title], c.part, line_of(c, "attack", judged.label)) for c in judged.comparisons]
    free = [("no attack", c.part, line_of(c, "control", judged.label)) for c in judged.comparisons]
    return [(name, part, line) for name, part, line in (*attacked, *free) if line is not None]


def _map(
    judged: JudgedEntry, headings: dict[str, str], measure: str, title: str, unit: Unit, note: str
) -> dict[str, Any]:
    rows = []
    for name, part, line in _lines(judged, headings):
        by_seed = {result.seed: _field(result, measure, unit) for result in line.results}
        if any(by_seed.values()):
            rows.append((name, part, [by_seed.get(seed) for seed in sorted(judged.entry.manifest.seeds)]))
    return {"title": title, "note": note, "rows": rows}


def _field(result: Result, measure: str, unit: Unit) -> dict[str, str] | None:
    value = result.scores.get(measure, NOTHING).value
    shown = None if value is None else show([without_interval(value)], unit)
    if value is None or shown is None:
        return None
    return {"text": shown.value, "style": shade(min(max(value, 0.0), 1.0))}


def _curves(judged: JudgedEntry, comparison: Comparison, name: str, number: int) -> dict[str, Any]:
    """The plots of one attack: the entry's lines and those they are measured against, without the oracles'."""
    shown = [line for line in comparison.lines if line.defense in (judged.label, "none")]
    shown_comparison = replace(comparison, lines=tuple(shown))
    footer, names = f"ThiefBench {judged.suite.title}, {comparison.title}", {judged.label: judged.entry.manifest.name}
    drawn = plots.draw_all(shown_comparison, footer, png=False, names=names)
    return {
        "heading": name,
        "part": comparison.part,
        "chosen": printable(", ".join(chosen(comparison, judged.label, sorted(judged.entry.manifest.seeds)))),
        "plots": [
            {"title": _TITLES[plot.name], "svg": Markup(embed(plot, f"c{number}-{plot.name}")), "note": plot.note}
            for plot in drawn
            if plot.name in _TITLES
        ],
    }


def _kinds(judged: JudgedEntry) -> str:
    """Which kinds of submitted cells were run again, in words; empty where the verification does not say it."""
    reruns = judged.verification.reruns if judged.verification else ()
    known = [each for each in reruns if each.seed is not None and each.kind is not None]
    return kinds_of(known) if known else ""


def shown_rerun(rerun: Rerun) -> dict[str, Any]:
    """A cell that was run again, as a line of the page's table."""
    unattacked = {"control": f"no attack (control of {rerun.attack})", "placebo": f"placebo of {rerun.attack}"}.get(
        rerun.role
    )
    cell = unattacked or rerun.attack
    low, high = rerun.submitted
    submitted = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
    completions = {None: "new seed", True: "identical", False: "different"}[rerun.equal]
    return {
        "cell": heading(rerun.part, cell),
        "seed": "fresh, secret" if rerun.seed is None else rerun.seed,
        "measure": rerun.measure.replace("_", " "),
        "submitted": submitted,
        "found": _number(rerun.found),
        "completions": completions,
        "agrees": rerun.agrees,
    }


def _number(value: float | None) -> str:
    return "none" if value is None else minus(f"{value:z.3f}")


def _verifying(judged: JudgedEntry) -> str:
    """The command that checks the entry; the defense runs in the sandbox only."""
    manifest = judged.entry.manifest
    folder = f"leaderboard/entries/{manifest.slug}"
    archives = [word for each in manifest.deliveries for word in ("--archive", each.archive.name)]
    return shlex.join(["thiefbench", "leaderboard", "verify", folder, *archives])


def _running(judged: JudgedEntry) -> str:
    """The command that runs all cells of the entry, and with them its file, unprotected."""
    manifest = judged.entry.manifest
    numerics, folder = manifest.numerics, f"leaderboard/entries/{manifest.slug}"
    run = ["thiefbench", "run", _declared(judged.suite), "--defense", manifest.defense, "--device", numerics.device]
    run += ["--dtype", numerics.dtype, "--threads", str(numerics.threads)]
    return f"(cd {folder} && {shlex.join(run)})"


def _declared(suite: Suite) -> str:
    """The name that a released suite is run by."""
    return next((name for name, known in released().items() if known == suite), suite.title)


def _making(judged: JudgedEntry) -> list[tuple[str, str]]:
    manifest = judged.entry.manifest
    packed = [(f"Weights {each.name}", f"SHA-256 {each.sha256}, {each.bytes:,} bytes") for each in manifest.weights]
    brought = []
    for each in manifest.deliveries:
        of = f" of {named(each.seeds)}" if manifest.later else ""
        archive = f"{each.archive.name}, SHA-256 {each.archive.sha256}, {each.archive.bytes:,} bytes"
        brought.append((f"Archive of raw completions{of}", archive))
        machine = ((name.replace("_", " ") + of, str(value)[:_SHORTER]) for name, value in sorted(each.machine.items()))
        brought += list(machine)
    return [
        *packed,
        ("Source of the defense", f"SHA-256 {manifest.source_sha256}"),
        ("Fingerprint of the suite", manifest.suite.fingerprint),
        ("Numerics", f"{manifest.numerics.device}, {manifest.numerics.dtype}, {manifest.numerics.threads} threads"),
        *brought,
    ]


def lock_of(versions: dict[str, str]) -> str:
    """Versions as lines of a lock file."""
    return "\n".join(f"{name}=={value}"[:_SHORTER] for name, value in sorted(versions.items()))


def listed_versions(versions: dict[str, str]) -> str:
    """Versions in one line."""
    return ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))[:_SHORTER]
