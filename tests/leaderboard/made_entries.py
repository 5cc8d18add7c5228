"""Entries made of numbers: no swarm, no archive, only what scores.json says, on a released suite."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from tests.bench import handmade
from tests.bench.handmade import Numbers
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.cell_scores import CURVES, Scores, trimmed
from thiefbench.leaderboard.entry import Entry, write_entry
from thiefbench.leaderboard.manifest import GROWN_SCHEMA, Delivery, Manifest, Numerics, Packed, SuiteName
from thiefbench.leaderboard.verification.verdict import Verdict, Verification, write_verification
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Point, identify
from thiefbench.suite.suite_yaml import load_suite

NUMERICS = Numerics(device="cpu", dtype="float32", threads=2)
SOURCE = (
    b'"""A defense."""\n\nfrom thiefbench.defenses.base import ACCEPT, Defense\n\n\nclass Mine(Defense):\n    pass\n'
)
UNDEFENDED = 0.8
"""The undefended headline ASR of every attack; `dos`, whose outcome is a length, grows by as much."""
_MACHINE = {
    "processor": "Example CPU", "capability": "AVX2", "cores": 2, "threads": 2, "device_name": "CPU",
    "git_commit": "0" * 40,
}  # fmt: skip
_LENGTH = 40.0
_NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)

Says = Callable[[CellSpec], Numbers]
"""What an own cell says; the shared ones are the same for every entry."""


def prevents(share: float | Mapping[str, float] = 0.9, utility: float = 1.0, **changes: Any) -> Says:
    """Own cells of a defense that prevents so much harm, give or take a seed's noise.

    Args:
        share: of every attack, or by a word that the attack's spec string begins with or holds; the first that fits.
        utility: with an attack and without.
        changes: other fields of `Numbers`.
    """

    def said(cell: CellSpec) -> Numbers:
        named = share if isinstance(share, Mapping) else {"": share}
        prevented = next(value for word, value in named.items() if word in cell.attack)
        left = max(0.0, UNDEFENDED * (1 - prevented) + _NOISE[cell.seed % 5]) if cell.role == "attack" else 0.0
        fields = {"stop": max(0.0, prevented) if cell.role == "attack" else None, "rejected": 0.01} | changes
        return Numbers(asr=left, reward=handmade.START + utility * 0.5, **fields)

    return said


def shared(cell: CellSpec) -> Numbers:
    """What shared cells say: the undefended attack works, the oracle stops it, nothing hurts learning."""
    if cell.role != "attack":
        return Numbers()
    if cell.defense == "none":
        return Numbers(asr=UNDEFENDED + _NOISE[cell.seed % 5] / 2, stop=0.0)
    return Numbers(asr=0.0, stop=1.0)


def entry(
    folder: Path,
    slug: str = "mine",
    says: Says | None = None,
    suite: str = "trial",
    others: Says = shared,
    drift: Callable[[CellSpec], float] | None = None,
    **changes: Any,
) -> Entry:
    """Write an entry into a folder of entries and read it back.

    Args:
        folder: of entries.
        slug: its name.
        says: what its own cells say.
        suite: a released one.
        others: what the shared cells say.
        drift: of every cell, as an entry says it; None of entries that were made before it was measured.
        changes: fields of its manifest; `seeds` makes the cells of these alone. A `defense` without a file has no
            source.
    """
    of = load_suite(suite)
    defense = changes.get("defense", "defense/mine.py:Mine")
    seeds = tuple(changes.get("seeds", of.seeds))
    source = {"defense/mine.py": SOURCE} if defense.startswith("defense/") else {}
    own = says or prevents()
    cells = []
    for cell in rows.wanted(of, seeds, NUMERICS, defense):
        mine = cell.defense == defense
        record = _record(cell, (own if mine else others)(cell))
        measured = {"drift": handmade.exact(drift(cell))} if drift else None
        part = of.part_of(replace(cell, defense="none"))
        cells.append(trimmed(record, part, mine, _digest(slug, record.cell_id), measured))
    fields: dict[str, Any] = {
        "slug": slug, "name": defense if anchor_of(defense) else slug.title(), "authors": ("A. Author",),
        "defense": defense, "seeds": seeds,
        "suite": SuiteName(name=of.name, version=of.version, fingerprint=of.fingerprint()),
        "submitted": date(2026, 11, 20), "numerics": NUMERICS, "source_sha256": _digest(slug),
        "files": {"scores.json": _digest()},
        "versions": {"python": "3.12.3", "thiefbench": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"},
        "machine": _MACHINE,
        "archive": Packed(name=f"{slug}.tar", sha256=_digest("archive", slug), bytes=12_345_678),
    }  # fmt: skip
    return write_entry(folder / slug, Manifest(**fields | changes), Scores(cells=tuple(cells)), source)


def grown(folder: Path, slug: str = "mine", suite: str = "standard-v2", **changes: Any) -> Entry:
    """As `entry`, with its first seed in one delivery and its second in another."""
    first, second = load_suite(suite).seeds[:2]
    archive = Packed(name=f"{slug}.seed-{second}.tar", sha256=_digest("later", slug), bytes=12_345_679)
    machine = dict(_MACHINE)
    versions = {"python": "3.12.3", "thiefbench": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"}
    later = Delivery(seeds=(second,), submitted=date(2026, 11, 21), versions=versions, machine=machine, archive=archive)
    fields: dict[str, Any] = {"seeds": (first, second), "later": (later,), "schema_version": GROWN_SCHEMA}
    return entry(folder, slug, suite=suite, **fields | changes)


def verified(folder: Path, of: Entry, verdict: Verdict = "re-executed", **changes: Any) -> Verification:
    """Write a verification of an entry into a folder of them."""
    fields: dict[str, Any] = {
        "slug": of.manifest.slug, "entry_sha256": of.sha256, "verdict": verdict, "verified": date(2026, 11, 21),
        "engine_revision": 1,
    }  # fmt: skip
    made = Verification(**fields | changes)
    write_verification(folder, made)
    return made


def tiny(of: Suite, monkeypatch: Any) -> None:
    """Let a suite count as released while a test runs."""
    known = rows.released()
    monkeypatch.setattr(rows, "released", lambda: {**known, of.title: of})


def _record(cell: CellSpec, numbers: Numbers) -> Any:
    """A cell's record, with an evaluation every ten rounds whose last three say what `numbers` does."""
    record = handmade.record(identify(cell.as_dict()), cell, numbers)
    if numbers.error:
        return record
    lengths = "dos" in cell.attack
    rounds = list(range(0, cell.rounds + 1, cell.evaluation.every))
    grown = [min(1.0, number / max(1, rounds[-3])) ** 2 for number in rounds]

    def outcome(value: float) -> float:
        return _LENGTH * (1 + value) if lengths else value

    start = handmade.START
    curves = {
        "eval_asr": [Point(round=r, value=outcome(numbers.asr * g)) for r, g in zip(rounds, grown, strict=True)],
        "eval_reward": [
            Point(round=r, value=start + (numbers.reward - start) * g) for r, g in zip(rounds, grown, strict=True)
        ],
        "eval_length": [Point(round=r, value=numbers.length) for r in rounds],
    }
    assert set(curves) == set(CURVES), "an entry keeps these"
    found = record.scores["asr"]
    middle, half = outcome(numbers.asr), 0.01 * (_LENGTH if lengths else 1)
    asr = found.model_copy(
        update={
            "value": middle,
            "low": max(0.0, middle - half),
            "high": middle + half if lengths else min(1.0, middle + half),
        }
    )
    return record.model_copy(update={"curves": curves, "scores": record.scores | {"asr": asr}})


def _digest(*of: str) -> str:
    return hashlib.sha256(" ".join(of).encode()).hexdigest()
