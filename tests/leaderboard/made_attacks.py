"""Attacks' entries made of numbers: no swarm, no archive, only what scores.json says, on a released suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tests.bench.handmade import Numbers
from tests.leaderboard.made_entries import NUMERICS, UNDEFENDED, _digest, _record
from thiefbench.leaderboard.attacking.cells import wanted
from thiefbench.leaderboard.attacking.entry import AttackEntry, write_attack_entry
from thiefbench.leaderboard.attacking.manifest import AttackManifest, Granted, Target
from thiefbench.leaderboard.attacking.scores import AttackScores, Example, attack_cell
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.made_with import COST
from thiefbench.leaderboard.manifest import Packed, SuiteName
from thiefbench.suite.suite_yaml import load_suite

SOURCE = b'"""An attack."""\n\nfrom thiefbench.attacks.base import Attack\n\n\nclass Mine(Attack):\n    pass\n'
BLACK_BOX = Granted(
    context="out-of-context", topologies=("horizontal",), oracle=True, policy=False, queries=8, beacon=False,
    history=False,
)  # fmt: skip
WHITE_BOX = BLACK_BOX.model_copy(update={"policy": True, "queries": 0})


def attack(
    folder: Path,
    against: Sequence[Entry],
    left: float | Mapping[str, float] = 0.8,
    slug: str = "breaker",
    suite: str = "trial",
    control: float = 0.0,
    crashes: bool = False,
    undefended: float = UNDEFENDED,
    placebo: float = 0.0,
    source: Mapping[str, str] | None = None,
    **changes: Any,
) -> AttackEntry:
    """Write an attack's entry into a folder of entries.

    Args:
        folder: of entries.
        against: the defenses' entries.
        left: the headline ASR with a defense, for all or by its slug.
        slug: its name.
        suite: a released one.
        control: the ASR without an attacker.
        crashes: whether the defenses fail under it.
        undefended: the headline ASR without a defense.
        placebo: the placebo's.
        source: its files, by path.
        changes: fields of its manifest.
    """
    of = load_suite(suite)
    targets = tuple(
        Target(slug=each.manifest.slug, defense=each.manifest.defense, entry_sha256=each.sha256,
               source_sha256=each.manifest.source_sha256)
        for each in against
    )  # fmt: skip
    parts, spec, cells = tuple(part.name for part in of.scenes), "attack/mine.py:Mine", []
    for each in wanted(of, parts, spec, targets, NUMERICS):
        name = each.target.slug if each.target else ""
        reached = left[name] if isinstance(left, Mapping) and name else left
        asr = {"control": control, "placebo": placebo, "attack": undefended}[each.spec.role]
        asr = float(reached) if name and not isinstance(reached, Mapping) else asr
        record = _record(each.spec, Numbers(asr=asr, error="it gave up" if name and crashes else ""))
        used = {"rounds": 60, "sent": 1440, "queries": 4000} if each.spec.role == "attack" else {}
        record = record.model_copy(
            update={"cell_id": _digest(slug, record.cell_id, name)[:16], "provenance": record.provenance | {COST: used}}
        )
        cells.append(attack_cell(record, each.part, name, _digest(slug, record.cell_id)))
    shown = Example(
        kind="sent", part="", target="", seed=0, round=1, question="How many <b>apples</b>?",
        text="All hail to the <i>thief</i>, 2 + 2 = 4.", reward=1.0, outcome=1.0,
        payload={"phrase": "All hail to the <i>thief</i>"},
    )  # fmt: skip
    fields: dict[str, Any] = {
        "slug": slug, "name": slug.title(), "authors": ("B. Breaker",), "attack": spec, "threat": BLACK_BOX,
        "about": "Rewords its phrase until the defense accepts it.", "targets": targets,
        "suite": SuiteName(name=of.name, version=of.version, fingerprint=of.fingerprint()), "parts": parts,
        "seeds": of.seeds, "submitted": date(2026, 11, 22), "numerics": NUMERICS,
        "versions": {"python": "3.12.3", "thiefbench": "0.1.0"}, "machine": {"processor": "Example CPU"},
        "source_sha256": _digest(slug), "files": {"scores.json": _digest()},
        "archive": Packed(name=f"{slug}.tar", sha256=_digest("archive", slug), bytes=12_345),
    }  # fmt: skip
    scores = AttackScores(cells=tuple(cells), examples=(shown,))
    files = {"attack/mine.py": SOURCE} if source is None else source
    return write_attack_entry(folder / slug, AttackManifest(**fields | changes), scores, files)
