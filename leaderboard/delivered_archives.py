"""The archives of an entry that are at hand: the delivery of each, and all of them unpacked into one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from thiefbench.leaderboard.archive import WrongArchiveError, unpack
from thiefbench.leaderboard.deliveries import delivered, named
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.manifest import Delivery
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Store, file_sha256


def at_hand(entry: Entry, archives: Sequence[Path]) -> dict[Path, Delivery]:
    """The delivery that every archive belongs to, in the entry's order.

    Raises:
        WrongArchiveError: an archive is of no delivery, or of the same one as another.
    """
    deliveries = entry.manifest.deliveries
    found: dict[Path, Delivery] = {}
    for archive in archives:
        delivery = delivery_of(entry, archive)
        if delivery in found.values():
            raise WrongArchiveError(f"{archive} is the archive of its {named(delivery.seeds)}, which was given twice")
        found[archive] = delivery
    return dict(sorted(found.items(), key=lambda pair: deliveries.index(pair[1])))


def delivery_of(entry: Entry, archive: Path) -> Delivery:
    """The delivery of an entry that an archive belongs to.

    Raises:
        WrongArchiveError: it belongs to none.
    """
    size = archive.stat().st_size if archive.is_file() else -1
    alike = [each for each in entry.manifest.deliveries if each.archive.bytes == size]
    digest = file_sha256(archive) if alike else ""
    for each in alike:
        if each.archive.sha256 == digest:
            return each
    names = ", ".join(f"{each.archive.name} ({named(each.seeds)})" for each in entry.manifest.deliveries)
    if size < 0:
        raise WrongArchiveError(f"{archive} is not a regular file; the entry's is {names}")
    has = f"it has {size:,} bytes" if not alike else "its SHA-256 differs"
    raise WrongArchiveError(f"{archive} is not an archive of the entry, which names {names}: {has}")


def unpacked(entry: Entry, archives: Mapping[Path, Delivery], folder: Path, specs: Sequence[CellSpec]) -> Store:
    """Unpack the archives of an entry into one store; see `archive.unpack`.

    Args:
        entry: with no other deliveries than those of the archives (`deliveries.delivered`).
        archives: each with its delivery.
        folder: will be created.
        specs: the suite's cells in the entry's order.

    Raises:
        EntryError: an archive does not belong to the entry, contains anything else, or a cell that another has too.
    """
    for number, (archive, delivery) in enumerate(archives.items()):
        part = delivered(entry, [delivery])
        shapes = [spec for spec in specs if spec.seed in delivery.seeds]
        target = folder if number == 0 else folder.with_name(f"{folder.name}-{number}")
        unpack(archive, part, target, shapes)
        if number == 0:
            continue
        for cell in part.brought:
            place = Store(folder).cell(cell.cell_id).path
            if place.exists():
                raise EntryError(f"the entry lists the cell {cell.cell_id} at two seeds")
            Store(target).cell(cell.cell_id).path.rename(place)
    return Store(folder)
