"""Locks between processes: files that one process holds at a time, on any machine that shares the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 1.0


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock in the wrapped block.

    Args:
        path: the lock's file; its directory is created. The file is not removed, because then two processes could get
            in.
        waiting: called before every second of waiting for another process; an exception ends the wait. None: do not
            wait.

    Raises:
        LockedError: another process holds the lock, and `waiting` is None.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # in a folder that somebody else made; some versions of filelock empty what it leads to
        path.unlink(missing_ok=True)
    lock = FileLock(path)
    seconds = 0.0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=seconds)
        except Timeout as error:
            if waiting is None:
                raise LockedError(f"another process holds {path}") from error
            waiting()
            seconds = POLL_SECONDS
    try:
        yield
    finally:
        lock.release()
