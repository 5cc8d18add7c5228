"""Whether files can be written to a folder, asked before anything runs."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from thiefbench.errors import UsageError


def unwritable(folder: Path) -> str:
    """Why no file can be written to a folder, which need not be there, in a clause; empty if one can."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not there.exists():
        return f"{there} is a broken link"
    if not there.is_dir():
        return f"{there} is a file"
    try:
        with TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_store(folder: Path) -> None:
    """See that cells can be stored in a folder, which need not be there.

    Raises:
        UsageError: they cannot.
    """
    if wrong := unwritable(folder):
        raise UsageError(f"no cell can be stored in {folder} ({wrong}); name the folder of a store with --store DIR")
