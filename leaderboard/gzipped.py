"""Files of the leaderboard that are kept compressed, each as one gzip stream; hashes are of their content."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

_HEADER: Final = bytes.fromhex("1f8b08 00 00000000 02 03")
"""Of every file: no optional field (name, comment, extra), no time, the best compression, and one operating system,
whichever it is. No hash covers the header, so nothing may be said there."""


class GzipError(ValueError):
    """A file is not a single, complete gzip stream, or holds too much. One sentence for the user."""


def compressed(content: bytes) -> bytes:
    """One gzip stream; equal content gives equal bytes, as no time is in it."""
    return _HEADER + gzip.compress(content, 9, mtime=0)[len(_HEADER) :]


def decompressed(path: Path, stream: bytes, most: int) -> bytes:
    """The content of one gzip stream; its size is limited before it is in memory.

    Args:
        path: of the file, for errors.
        stream: what the file holds.
        most: bytes of content.

    Raises:
        GzipError: it cannot be decompressed, is incomplete, is followed by something, holds more, or has a header that
            `compressed` does not write.
    """
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)
    try:
        content = reader.decompress(stream, most + 1)
    except zlib.error as error:
        raise GzipError(f"{path} cannot be decompressed: {error}") from error
    if len(content) > most:
        raise GzipError(f"{path} holds more than {most:,} bytes")
    if not reader.eof or reader.unused_data:
        raise GzipError(f"{path} is damaged: {'something follows its end' if reader.eof else 'its end is missing'}")
    if not stream.startswith(_HEADER):
        raise GzipError(f"{path} has a gzip header that thiefbench does not write, as with a name or a time in it")
    return content
