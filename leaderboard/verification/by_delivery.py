"""Verifying an entry whose seeds were brought in several deliveries: those whose archives are at hand, and the others.

What is at hand is verified together, as one experiment over all of its seeds: comparisons are drawn from all of them. A
delivery whose archive is not at hand keeps the verdict that an earlier verification gave it, if that names the same
hashes and was done with this engine revision, whose results it therefore compares with, if its cells are those of this
version, and if no more of its shared cells were published in place of theirs since; otherwise it is self-reported.
The verdict of the entry is the lowest of its deliveries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from datetime import date

from thiefbench.engine_revision import engine_revision
from thiefbench.leaderboard.deliveries import delivery_sha256s, named
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.manifest import Delivery
from thiefbench.leaderboard.verification.verdict import ORDER, DeliveryVerdict, Verdict, Verification
from thiefbench.suite.execution.cell_identity import Identities
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import identify


def verdicts(
    entry: Entry,
    found: Sequence[Delivery],
    verdict: Verdict,
    earlier: Verification | None,
    in_place: Collection[str],
    specs: Sequence[CellSpec],
    seen: Set[int],
    today: date,
) -> tuple[DeliveryVerdict, ...]:
    """The verdict of every delivery.

    Args:
        entry: that was verified.
        found: the deliveries whose archives were at hand; empty where nothing was.
        verdict: of these.
        earlier: the last verification of the entry as it was then.
        in_place: ids of the shared cells that it brings in place of published ones.
        specs: the suite's cells in the entry's order; empty where it was rejected before its cells were looked at.
        seen: seeds at which the defense's code gave its verdicts again.
        today: the date of this one.
    """
    kept = {} if earlier is None or earlier.engine_revision != engine_revision() else _by_hash(earlier)
    hashes = [delivery_sha256s(entry, delivery, in_place) for delivery in entry.manifest.deliveries]
    befores = [next((kept[each] for each in of_one if each in kept), None) for of_one in hashes]
    outdated = of_other_version(entry, specs) if any(befores) and specs else set()
    made = []
    for delivery, (today_sha256, *_), before in zip(entry.manifest.deliveries, hashes, befores, strict=True):
        now = DeliveryVerdict(
            seeds=delivery.seeds,
            sha256=today_sha256,
            verdict=verdict if delivery in found else "self-reported",
            verified=today,
            code_seen=bool(seen & {*delivery.seeds}) or (before is not None and bool(before.code_seen)),
        )
        made.append(now if before is None or delivery in found or outdated & {*delivery.seeds} else before)
    return tuple(made)


def of_other_version(entry: Entry, specs: Sequence[CellSpec]) -> set[int]:
    """The seeds whose undefended cells are not those of this version, as their ids say; published ones aside.

    The id of an own cell depends on the defense too, which is not loaded. All else that it depends on, the attack, the
    task's data and the model, an undefended cell has as well. A rescored cell has the id that its record gives.

    Args:
        entry: whose cells they are.
        specs: the suite's cells in the entry's order.
    """
    here = Identities()
    brought = [pair for pair in zip(entry.cells, specs, strict=True) if pair[0].cell_id not in entry.published]
    return {spec.seed for cell, spec in brought if spec.defense == "none" and cell.cell_id != identify(here.of(spec))}


def lowest(verdicts: Sequence[DeliveryVerdict]) -> Verdict:
    """The verdict of an entry, from those of its deliveries."""
    return min((each.verdict for each in verdicts), key=ORDER.index)


def doubts(entry: Entry, made: Sequence[DeliveryVerdict], found: Sequence[Delivery]) -> list[str]:
    """Of deliveries whose archives were not at hand: why their verdicts are no higher, a sentence each."""
    lines = []
    for delivery, each in zip(entry.manifest.deliveries, made, strict=True):
        if delivery in found or each.verdict == "re-executed":
            continue
        of, there = (f" of {named(each.seeds)}", "the scores there") if entry.manifest.later else ("", "its scores")
        if each.verdict == "self-reported":
            lines.append(f"no archive{of} was given, so {there} are those that its authors report")
        else:
            lines.append(f"no archive{of} was given; the verdict of {each.verified.isoformat()} was {each.verdict}")
    return lines


def _by_hash(earlier: Verification) -> dict[str, DeliveryVerdict]:
    return {each.sha256: each for each in earlier.deliveries}
