"""Locks between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thiefbench import locks
from thiefbench.locks import LockedError, locked

HOLDER = """
import sys
from pathlib import Path
from thiefbench.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "a" / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_process_holds_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    path = tmp_path / "a" / "lock"
    with pytest.raises(LockedError, match="another process holds"), locked(path):
        pytest.fail("it was held by two")
    holder.communicate()
    with locked(path):
        assert path.exists()
    with locked(path):
        pass


def test_who_waits_gets_it(tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.1)
    calls = []

    def waiting() -> None:
        calls.append(holder.poll())
        if len(calls) == 3:
            holder.communicate()

    with locked(tmp_path / "a" / "lock", waiting):
        assert holder.poll() is not None, "the other one has let go"
    assert calls[:3] == [None] * 3, "it is called while another process holds the lock"


def test_the_wait_ends_with_what_is_raised(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a" / "lock", stop):
        pytest.fail("it was held by two")
    holder.communicate()


def test_an_error_in_the_block_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        _ = 1 / 0
    with locked(tmp_path / "lock"):
        pass
