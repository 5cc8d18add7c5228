"""The allocator's settings for a training process."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let glibc reuse large freed blocks instead of returning them to the kernel.

    A round on the CPU allocates and frees the same large tensors again and again; the page faults take about a tenth of
    its time. Without glibc, this function does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
