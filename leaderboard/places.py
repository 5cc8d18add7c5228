"""Where a submission will write its entry and its archive: what is wrong there is said before anything runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from thiefbench.error_messages import nearest
from thiefbench.leaderboard.attacking.entry import is_attack_entry
from thiefbench.leaderboard.entry import EntryError
from thiefbench.leaderboard.manifest import MANIFEST, STORED_SCORES
from thiefbench.writable import check_store, unwritable

_ENTRIES: Final = Path("leaderboard/entries")
"""Where a checkout has its entries."""
FOLDER_OF_ONE: Final = f"the folder of one, such as {_ENTRIES}/guard-on-trial in a checkout of the repository"
"""What to name, for messages."""
_OF_STORE: Final = ("cells", "checks", "drawn", "listed", "shared", "submissions")
"""Folders of a store that hold its own files."""
_BEGINS: Final = (b"cells/", b"weights/")
"""What the first name in an archive begins with."""


def entry_folder(named: Path) -> Path:
    """The folder of an entry that a user named: by its path or, at the top of a checkout, by its own name alone.

    Raises:
        EntryError: there is none.
    """
    if named.exists():
        return named
    if (of_checkout := _ENTRIES / named).is_dir() and len(named.parts) == 1:
        return of_checkout
    known = [each.name for each in _ENTRIES.glob("*") if each.is_dir()]
    hint = f"{nearest(named.name, known)}name" if known else "name"
    raise EntryError(f"there is no entry {named}; {hint} {FOLDER_OF_ONE}")


def check_folder(folder: Path, store: Path) -> None:
    """See that an entry can be written, and that neither it nor the store takes the place of the other.

    Args:
        folder: of the entry; it need not be there.
        store: of records.

    Raises:
        EntryError: it cannot be, one would, or one lies in another entry.
        UsageError: no cell can be stored in the store.
    """
    real, real_store = Path(os.path.realpath(folder)), Path(os.path.realpath(store))
    _check_apart(real, real_store)
    for option, place in (("--out", real.parent), ("--store", real_store)):
        check_outside(f"{option} {place}", place)
    if real.parent in (real_store, real_store.parent):
        raise EntryError(f"--store {real_store} lies among the entries of --out, where entries alone are")
    if wrong := unwritable(real.parent) or unwritable(folder.parent) or (unwritable(folder) if folder.exists() else ""):
        raise EntryError(f"--out: no entry can be written to {folder.parent} ({wrong})")
    check_store(real_store)


def check_outside(named: str, place: Path) -> None:
    """See that a path, which need not be there, neither is the folder of an entry nor lies in one.

    Args:
        named: what the message calls it.
        place: the path.

    Raises:
        EntryError: it does.
    """
    real = Path(os.path.realpath(place))
    if inside := next((each for each in (real, *real.parents) if _is_entry(each)), None):
        raise EntryError(f"{named} lies in the entry {inside}, which holds the entry's files alone")


def _is_entry(folder: Path) -> bool:
    """Whether a folder holds an entry, and not just a file of that name."""
    return (folder / STORED_SCORES).is_file() and ((folder / MANIFEST).is_file() or is_attack_entry(folder))


def _check_apart(folder: Path, store: Path) -> None:
    if folder == store or folder in store.parents:
        raise EntryError(
            f"--store {store} lies in the folder of the entry, {folder}, which holds the entry's files alone; give "
            "another --store or --out"
        )
    if store in folder.parents and (within := folder.relative_to(store)).parts[0] in _OF_STORE:
        raise EntryError(f"--out names {within.parts[0]} in the store {store}, which holds the store's own files")


def check_archive(archive: Path) -> None:
    """See that an entry's archive replaces nothing but an archive.

    Args:
        archive: its path; it need not be there.

    Raises:
        EntryError: something else is there.
    """
    try:
        mode = archive.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise EntryError(f"the entry's archive cannot be written to {archive}: {error.strerror}") from error
    if stat.S_ISREG(mode):
        with archive.open("rb") as file:
            if file.read(max(map(len, _BEGINS))).startswith(_BEGINS):
                return
    raise EntryError(
        f"{archive}, where the entry's archive will be written, is not the archive of an entry; move it away, or give "
        "another --name or --store"
    )
