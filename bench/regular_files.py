"""Reading files whose path or content comes from strangers: plain files alone, and never more than is allowed.

A path may lead to a device that never ends, to a pipe that nobody writes to, or to a file of terabytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

_PART = 1 << 20


class NotRegularError(OSError):
    """A path leads to something other than a plain file, or to one that is too large. One sentence."""


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """A plain file, open for reading.

    Raises:
        OSError: it cannot be opened; as NotRegularError: it is a device, a pipe, a socket or a folder.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening some devices already does something
        raise NotRegularError(f"{path} is not a plain file")
    # Without O_NONBLOCK, a pipe that was put in the file's place meanwhile would be waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotRegularError(f"{path} is not a plain file")
        yield file


def read_regular(path: Path, most: int) -> bytes:
    """The content of a plain file of at most `most` bytes.

    Raises:
        OSError: it cannot be read; as NotRegularError: it is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NotRegularError(f"{path} has more than {most:,} bytes")
    return data


def parts_of(path: Path) -> Iterator[bytes]:
    """The content of a plain file in parts of at most 1 MiB.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as file:
        while part := file.read(_PART):
            yield part
