"""An entry that grows: its seeds may be brought in several deliveries, on other days and other machines.

Each delivery holds all cells of the next seeds of the suite, and names its own archive, machine and versions. All of
them are made by one defense and one version of the benchmark, with the same device, dtype, threads and version of
torch. All cells of a delivery are made with the same vector instructions; another delivery's may be others, as those of
the published cells may be (`thiefbench.suite.store.arithmetic`), unless the entry brings shared cells of its own: which
published ones these are compared with depends on how they were made. Cells of an earlier delivery stay as they stand in
the entry; nothing of its store or archive is needed to add another one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.made_with import wrong_statement
from thiefbench.leaderboard.manifest import SCORES, Delivery
from thiefbench.leaderboard.published import processors_apart
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.arithmetic import ARITHMETIC, arithmetic_in, arithmetic_of, comparable
from thiefbench.suite.store.records import Record
from thiefbench.wording import counted

_CAPABILITY = re.compile(r"[A-Z0-9]{1,20}( [A-Z0-9]{1,20})?")
"""What torch calls vector instructions, as in AVX2 or NO AVX."""


def why_partial(suite: Suite, seeds: Collection[int]) -> str:
    """Why an entry with these seeds of a suite is not ranked, in one clause; empty if it has all of them."""
    if len(seeds) == len(suite.seeds):
        return ""
    return f"it has {of_all(suite, seeds)}, and a partial suite is never ranked"


def of_all(suite: Suite, seeds: Collection[int]) -> str:
    """How many of a suite's seeds these are: "3 of 5 seeds"."""
    return f"{len(seeds)} of {counted(len(suite.seeds), 'seed')}"


def named(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0, 1"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def check_seeds(seeds: Sequence[int], suite: Suite) -> None:
    """Check that an entry's seeds are the first ones of its suite, so that nobody can choose the good ones.

    Raises:
        EntryError: they are not.
    """
    if tuple(seeds) != suite.seeds[: len(seeds)]:
        raise EntryError(
            f"it was run at the seeds {tuple(seeds)}, but an entry's seeds are the first ones of {suite.title}, which "
            f"has {suite.seeds}, in this order"
        )


def check_alike(entry: Entry) -> None:
    """Check that the deliveries of an entry say how they were computed, and that they can be put into one row.

    Raises:
        EntryError: they do not, or a published cell cannot be read.
    """
    first = entry.manifest.deliveries[0]
    with_shared = len(entry.manifest.deliveries) > 1 and bool(entry.further)
    for each in entry.manifest.deliveries:
        said = _arithmetic(entry, each)
        if entry.manifest.numerics.device == "cpu" and not _CAPABILITY.fullmatch(said.get("capability", "")):
            raise EntryError(
                f"its machine says {said.get('capability', 'nothing')!r:.60} of the vector instructions that torch used"
            )
        if apart := apart_in_row(said, _arithmetic(entry, first), with_shared):
            raise EntryError(f"its {named(each.seeds)} and its {named(first.seeds)} were not made alike: {apart}")


def check_made_alike(entry: Entry, records: Iterable[Record]) -> None:
    """Check that records were computed as their deliveries say: versions, machine and date too.

    Args:
        entry: whose seeds they are at.
        records: from its archives.

    Raises:
        EntryError: they were not.
    """
    of_delivery: dict[tuple[int, ...], list[Record]] = {}
    for record in records:
        delivery = entry.manifest.delivery_of(int(record.cell["seed"]))
        of_delivery.setdefault(delivery.seeds, []).append(record)
        if apart := difference(arithmetic_of(record), _arithmetic(entry, delivery)):
            raise EntryError(f"the cell {record.cell_id} was not made as its delivery says: {apart}")
    for delivery in entry.manifest.deliveries:
        made = of_delivery.get(delivery.seeds, [])
        if made and (wrong := wrong_statement(delivery.versions, delivery.machine, delivery.submitted, made, made)):
            raise EntryError(f"it does not say how its cells were made: {wrong}")


def made_with(entry: Entry) -> dict[str, str]:
    """The arithmetic with which the first cells of an entry were computed, by the names of a record's provenance."""
    return _arithmetic(entry, entry.manifest.deliveries[0])


def apart_from_published(entry: Entry) -> str:
    """How the processors of an entry's own cells differ from those of the published ones at their seeds, in words.

    Empty where they do not.
    """
    said: dict[str, list[int]] = {}
    for seed in entry.manifest.seeds:
        beside = [cell for cell in entry.published.values() if cell.record.cell["seed"] == seed]
        if apart := processors_apart(entry.manifest.delivery_of(seed).machine, beside):
            said.setdefault(apart, []).append(seed)
    if [*said.values()] == [list(entry.manifest.seeds)]:
        return next(iter(said))
    return "; ".join(f"{named(seeds)}: {apart}" for apart, seeds in said.items())


def apart_in_row(one: Mapping[str, str], other: Mapping[str, str], with_shared: bool) -> str:
    """How two arithmetics keep cells from standing in one row, in words; empty where they may.

    Args:
        one, other: of the cells.
        with_shared: whether the row brings shared cells of its own, which then have to be made alike.
    """
    return difference(one, other) if with_shared or not comparable(one, other) else ""


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """How two arithmetics differ, in words; empty where they do not."""
    return ", ".join(
        f"{ARITHMETIC[name]} {one.get(name, 'unknown'):.60} and {other.get(name, 'unknown'):.60}"
        for name in ARITHMETIC
        if one.get(name) != other.get(name)
    )


def delivered(entry: Entry, deliveries: Sequence[Delivery]) -> Entry:
    """An entry as if it had some of its deliveries alone, at least one."""
    seeds = tuple(seed for each in deliveries for seed in each.seeds)
    first, *later = deliveries
    made = {name: getattr(first, name) for name in ("submitted", "versions", "machine", "archive")}
    manifest = entry.manifest.model_copy(update={**made, "seeds": seeds, "later": tuple(later)})
    cells = [cell for cell in entry.cells if cell.seed in seeds]
    ids = {cell.cell_id for cell in cells}
    published = {cell_id: cell for cell_id, cell in entry.published.items() if cell_id in ids}
    part = Entry(entry.folder, manifest, cells, published, entry.shared_set, entry.sha256, entry.shared)
    part.refers = entry.refers
    return part


def delivery_sha256s(entry: Entry, delivery: Delivery, in_place: Collection[str] = ()) -> tuple[str, ...]:
    """Hashes of all that a verification of a delivery rests on: today's, then those of earlier versions.

    They cover the delivery itself, its cells, the content of published cells that it refers to, and of the rest of the
    entry the suite, the defense with every file of its source and its weights, and the numerics.

    Today's leaves out the fields of cells that have their default, so that a field which a later version adds does not
    change it. Earlier ones hashed every field: `chosen` as well, and, until it was added, all the others.

    Args:
        entry: that it belongs to.
        delivery: of it.
        in_place: ids of the cells that the entry brings in place of published ones. A verdict from before these were
            published is of another content.
    """
    part = delivered(entry, [delivery])
    manifest = entry.manifest
    content = {
        "suite": manifest.suite.model_dump(mode="json"),
        "defense": manifest.defense,
        "source_sha256": manifest.source_sha256,
        "source": {name: sha256 for name, sha256 in manifest.files.items() if name != SCORES},
        "weights": [each.model_dump(mode="json") for each in manifest.weights],
        "numerics": manifest.numerics.model_dump(mode="json"),
        "delivery": delivery.model_dump(mode="json"),
        "published": {cell_id: cell.sealed for cell_id, cell in sorted(part.published.items())},
        "in_place": sorted(cell.cell_id for cell in part.brought if cell.cell_id in in_place),
        "own_shared": bool(manifest.own_shared),
    }
    whole = [cell.model_dump(mode="json") for cell in part.brought]
    cells = (
        [cell.model_dump(mode="json", exclude_defaults=True) for cell in part.brought],
        whole,
        [{name: value for name, value in cell.items() if (name, value) != ("chosen", "")} for cell in whole],
    )
    return tuple(_sha256(content | {"cells": each}) for each in cells)


def _sha256(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _arithmetic(entry: Entry, delivery: Delivery) -> dict[str, str]:
    said = {"torch": delivery.versions.get("torch"), "capability": delivery.machine.get("capability")}
    return arithmetic_in(said, entry.manifest.numerics.device)
