"""What a store's folder `shared` holds for cells yet to come, within a limit; users may delete it.

Its subfolders are named by first marks (see `thiefbench.suite.execution.sharing.marks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thiefbench.suite.execution.sharing.stored_rewards import REWARDS
from thiefbench.suite.store.records import (
    BrokenRecordError,
    file_sha256,
    half_written,
    read_sealed,
    write_atomically,
    write_sealed,
)

REHEARSALS = "rehearsals"
"""The name of the folder of rehearsals' rounds, see `thiefbench.suite.execution.sharing.rehearsals`."""
_SPARE = ".spare"
_LIMITED = ("*/states/*.safetensors", f"*/{REHEARSALS}/*.parquet", f"*/{REWARDS}/*.json")


class NotReproducedError(Exception):
    """Updates computed again from recorded rounds do not give the recorded weights on this machine."""


class States:
    """Stored weights and optimizer moments, by mark, for cells that differ from the others after it.

    Without them, a cell only takes longer, because it computes its state from the recorded rounds.

    Args:
        folder: the folder of cells with the same first mark; its parent holds those of others.
        cell: the id of the cell that keeps states; `usable` removes what it left half-written.
        most_bytes: the most bytes for all of them; spare ones are deleted first, the oldest before others.
    """

    def __init__(self, folder: Path, cell: str, most_bytes: int) -> None:
        self._folder, self._cell, self._most = folder / "states", cell, most_bytes

    def keep(self, mark: str, tensors: Mapping[str, torch.Tensor], spare: bool = False) -> None:
        """Store the state after a mark, unless it exists, is larger than `most_bytes`, or finds no room on the disk.

        Args:
            mark: the mark.
            tensors: the state.
            spare: whether it makes room for all that is not.
        """
        path = self._path(mark, spare)
        if path.exists() or sum(each.nbytes for each in tensors.values()) > self._most:
            return
        content = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
        # First the checksum: a state that exists is never written again, so a kill must not leave it without one.
        try:
            digest = hashlib.sha256(content).hexdigest()
            write_sealed(path.with_suffix(".json"), {"sha256": digest, "mark": mark}, self._cell)
            write_atomically(path, content, self._cell)
        except OSError:  # whatever a cell itself has to write will say so
            with suppress(OSError):
                if not path.exists():  # no other cell has written the same state meanwhile
                    path.with_suffix(".json").unlink(missing_ok=True)
            return
        make_room(self._folder.parent.parent, self._most)

    def load(self, mark: str) -> dict[str, torch.Tensor] | None:
        """The state after a mark; None if it is not stored, is damaged, or was kept for another mark."""
        for path in (self._path(mark), self._path(mark, spare=True)):
            try:
                about = read_sealed(path.with_suffix(".json"))
                if about.get("mark") == mark and file_sha256(path) == about.get("sha256"):
                    return load_file(path)
            except (OSError, BrokenRecordError, SafetensorError):
                continue
        return None

    def _path(self, mark: str, spare: bool = False) -> Path:
        return self._folder / f"{mark}{_SPARE if spare else ''}.safetensors"


def make_room(root: Path, most_bytes: int) -> None:
    """Delete states and rounds of rehearsals in a store's folder `shared` until the others fit.

    Spare states go first, the oldest before others.

    Args:
        root: the folder.
        most_bytes: the most bytes for all of them.
    """
    sizes: dict[Path, tuple[bool, float, int]] = {}
    for path in (path for pattern in _LIMITED for path in root.glob(pattern)):
        if path.parent.is_symlink() or path.parent.parent.is_symlink():
            continue  # what lies behind a link is not the store's
        with suppress(OSError):  # another process may have deleted it
            about = path.stat()
            sizes[path] = not path.stem.endswith(_SPARE), about.st_mtime, about.st_size
    total = sum(size for *_, size in sizes.values())
    for path, (*_, size) in sorted(sizes.items(), key=lambda each: each[1]):
        if total <= most_bytes:
            break
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        total -= size


def usable(cell: str, *folders: Path) -> bool:
    """Whether folders are the store's own and no links, which a store from somebody else could contain.

    If so, half-written files of a cell in them, left by a kill, are removed.

    Args:
        cell: the id of a cell whose lock is held.
        folders: the folder `shared` and what lies below it; they need not exist.
    """
    if any(folder.is_symlink() for folder in folders):
        return False
    for path in (path for folder in folders for path in half_written(folder)):
        if path.name.startswith(f".{cell}."):  # others may be writing theirs
            path.unlink(missing_ok=True)
    return True
