"""The values of the template of an attack's page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from thiefbench.leaderboard.attacking.measured import Against
from thiefbench.leaderboard.attacking.scores import AttackCell, Example, cost_in_words
from thiefbench.leaderboard.cell_scores import untrimmed
from thiefbench.leaderboard.site.attacks import JudgedAttack
from thiefbench.leaderboard.site.entry_page import listed_versions, lock_of, shown_rerun
from thiefbench.leaderboard.verification.verdict import kinds_of
from thiefbench.suite.analysis.comparison import Cell, Comparison, Line, Result
from thiefbench.suite.report import plots
from thiefbench.suite.report.drawing import Plot, embed
from thiefbench.suite.report.tables import show_summary
from thiefbench.suite.store.records import CellDir

_TITLES = {"asr": "Outcome of the attack by round", "reward": "Clean reward by round"}
_BESIDE = "Thin: undefended, and without an attack."

_MOST_MARKED = 1000
"""Characters of a payload's strings that are marked; those of the built-in attacks have at most some hundred."""
_ABOUT_THE_ATTACK = (
    "position", "member", "rehearsal", "steps", "opening", "rule", "imports", "replaced", "functions", "trigger",
)  # fmt: skip
"""What payloads say of where and how they are put in. It is no string that a text contains because of the attack."""


def shown_attack(judged: JudgedAttack) -> dict[str, Any]:
    """The values of the page's template, except those that depend on the defenses' entries."""
    entry, manifest, verification = judged.entry, judged.entry.manifest, judged.verification
    known = [each for each in verification.reruns if each.kind is not None] if verification else []
    folder = f"leaderboard/entries/{manifest.slug}"
    return {
        "name": manifest.name,
        "slug": manifest.slug,
        "authors": manifest.authors,
        "paper": manifest.paper,
        "about": manifest.about,
        "suite": judged.suite.title,
        "trust": judged.trust,
        "reasons": verification.reasons if verification else (),
        "flags": verification.flags if verification else (),
        "verification": verification,
        "verified_on": listed_versions(verification.versions) if verification else "",
        "reruns": [shown_rerun(each) for each in verification.reruns] if verification else [],
        "kinds": kinds_of(known) if known else "",
        "facts": [
            ("Attack", manifest.attack),
            ("Suite", f"{judged.suite.title}, seeds {', '.join(map(str, manifest.seeds))}"),
            ("Submitted", manifest.submitted.isoformat()),
        ],
        "threat": manifest.threat.in_words(),
        "reference": manifest.reference,
        "outside": judged.brings_code,
        "examples": [_example(each) for each in entry.examples],
        "curves": [shown for part in manifest.parts if (shown := _curves(judged, part))["plots"]],
        "files": [
            {
                "name": path.relative_to(entry.folder).as_posix(),
                "lines": path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n").split("\n"),
            }
            for path in entry.source
        ],
        "verifying": shlex.join(
            ["thiefbench", "leaderboard", "verify", folder, "--archive", manifest.archive.name]
        ),
        "archive": manifest.archive,
        "making": [
            ("Archive of raw completions", f"{manifest.archive.name}, SHA-256 {manifest.archive.sha256}, "
             f"{manifest.archive.bytes:,} bytes"),
            ("Source of the attack", f"SHA-256 {manifest.source_sha256}"),
            ("Fingerprint of the suite", manifest.suite.fingerprint),
            *((name.replace("_", " "), str(value)[:300]) for name, value in sorted(manifest.machine.items())),
        ],
        "lock": lock_of(manifest.versions),
    }  # fmt: skip


def shown_result(result: Against) -> dict[str, Any]:
    """One result of an attack, for its page and the front page."""
    return {
        "part": result.part,
        "target": result.target,
        "prevented": result.prevented and show_summary(result.prevented, "ratio"),
        "undefended": result.undefended,
        "defended": result.defended,
        "placebo": result.placebo,
        "problem": result.problem,
        "cost": cost_in_words(result.cost) or "nothing",
    }


def _example(example: Example) -> dict[str, Any]:
    who = "What the attacker sent" if example.kind == "sent" else "What an honest model answered"
    where = f"against {example.target}" if example.target else "undefended"
    part = f"{example.part}, " if example.part else ""
    parts = marked(example.text, example.payload)
    drawn = [f"{name}: {value}" for name, value in example.payload.items() if name not in _ABOUT_THE_ATTACK]
    return {
        "title": f"{who}, {where}",
        "where": f"{part}seed {example.seed}, round {example.round}, reward {example.reward:g}",
        "question": example.question,
        "parts": parts,
        "drawn": "" if any(is_payload for _, is_payload in parts) else "; ".join(drawn),
    }


def marked(text: str, payload: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """Cut a text into pieces, each with whether it is one of the payload's strings, in any case.

    As attacks count a phrase without its first word, so does this. The attack itself is a stranger's and is not loaded
    for a page, so a payload that it words anew each time is not marked. Of more than `_MOST_MARKED` characters, only
    some strings are looked for: for all of them, one page could take minutes.
    """
    needles = _needles(payload)
    if not needles:
        return ((text, False),)
    longest_first = sorted(needles, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(re.escape(needle) for needle in longest_first)})", text, flags=re.IGNORECASE)
    return tuple((piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece)


def _needles(payload: Mapping[str, str]) -> list[str]:
    """A payload's strings, and each without its first word."""
    needles: dict[str, None] = {}
    left = _MOST_MARKED
    for name, value in payload.items():
        if name not in _ABOUT_THE_ATTACK and value.strip() and len(value) <= left:
            left -= len(value)
            needles |= {value: None, value.split(" ", 1)[1] if " " in value.strip() else value: None}
    return [needle for needle in needles if needle]


def _curves(judged: JudgedAttack, part: str) -> dict[str, Any]:
    manifest = judged.entry.manifest
    cells = tuple(_cell(judged, cell) for cell in judged.entry.cells if cell.part == part)
    names = dict.fromkeys((cell.role, cell.defense) for cell in cells)
    lines = []
    for role, defense in names:
        those = [cell for cell in cells if (cell.role, cell.defense) == (role, defense)]
        results = tuple(
            Result(cell.seed, cell.cell_id, cell.record.scores if cell.record else {}, cell.problem) for cell in those
        )
        lines.append(Line(those[0].name, "trained", role, defense, results))
    comparison = Comparison(manifest.name, cells, tuple(lines), part, judged.suite.ranking)
    drawn = plots.draw_all(comparison, f"ThiefBench {judged.suite.title}, {manifest.name}", png=False)
    number = manifest.parts.index(part)
    shown = [each for plot in drawn if plot.name in _TITLES for each in _drawings(plot, f"a{number}-{plot.name}")]
    return {"part": part, "plots": shown}


def _drawings(plot: Plot, prefix: str) -> Iterator[dict[str, Any]]:
    """A plot's drawing, or those of its panels: with many defenses each has one of its own."""
    title = _TITLES[plot.name]
    if plot.svg:
        yield {"title": title, "svg": Markup(embed(plot, prefix)), "note": plot.note, "small": False}
    for place, panel in enumerate(plot.panels):
        drawing = Markup(embed(panel, f"{prefix}-{place}"))
        note = f"{plot.note} {_BESIDE}".strip()
        yield {"title": f"{title}: {panel.name}", "svg": drawing, "note": note, "small": True}


def _cell(judged: JudgedAttack, cell: AttackCell) -> Cell:
    problem = f"failed: {cell.error}" if cell.status == "error" else ""
    record = untrimmed(cell, {"attack": cell.attack}, {})
    return Cell(
        cell.cell_id, cell.part, cell.role, judged.entry.manifest.name, cell.target or "none", cell.seed,
        CellDir(Path(cell.cell_id)), None if problem else record, problem,
    )  # fmt: skip
