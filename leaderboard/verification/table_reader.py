"""The limited process that reads a stranger's tables first (`_tables_worker`), from the side that asks it.

It starts in half a second, so it is kept for the next archive, as long as what it has read leaves no traces. A table
that it cannot read within its limits of time and memory ends it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from thiefbench.leaderboard.verification import _tables_worker
from thiefbench.suite.store.tables import TableLimit

SECONDS = 120
"""Processor time for one table."""

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def problems_of(limits: Mapping[Path, TableLimit]) -> list[str | None]:
    """What is wrong with each table, empty if nothing; None for the first that cannot be read, and for all after it.

    Args:
        limits: what each table may have, by file.
    """
    problems: list[str | None] = []
    with _lock:
        for file, limit in limits.items():
            problems.append(_problem(file, limit))
            if problems[-1] is None:
                break
    return [*problems, *[None] * len(limits)][: len(limits)]


def close() -> None:
    """End the process; the next question starts another."""
    global _process
    process, _process = _process, None
    if process is not None:
        with process:  # waits for its end and closes its streams
            process.kill()


def _problem(file: Path, limit: TableLimit) -> str | None:
    asked = json.dumps([limit.rows, limit.tokens, limit.bytes, str(file.resolve())]).encode()
    kept = _process is not None
    if (problem := _answer(asked)) is None and kept:
        problem = _answer(asked)  # of a fresh process: the other one may have been dying already
    return problem


def _answer(asked: bytes) -> str | None:
    """The answer of the process to a question; None if it has none, and then the process is ended."""
    goes_on = False
    try:
        process = _running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(asked + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if not answer.endswith(b"\n"):
            return None
        problem, goes_on = json.loads(answer)
        return str(problem)
    finally:
        if not goes_on:  # also where it was interrupted: its answer to this question is none to the next one
            close()


def _running() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        close()
        command = [sys.executable, "-P", _tables_worker.__file__, str(SECONDS)]
        _process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
    return _process


def _forget() -> None:
    """After a fork the process is the parent's; the child starts its own."""
    global _lock, _process
    _lock = threading.Lock()
    if _process is not None:
        for stream in (_process.stdin, _process.stdout):
            assert stream is not None
            stream.close()  # otherwise the process would outlive the parent
        _process.returncode = 0  # it is no child of this process, which cannot wait for it
        _process = None


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
