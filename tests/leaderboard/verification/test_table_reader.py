"""The limited process that reads tables first is kept while it answers, and answers nobody else's question."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thiefbench.leaderboard.verification import _tables_worker, table_reader
from thiefbench.leaderboard.verification.table_reader import problems_of
from thiefbench.suite.store.tables import TableLimit

LIMIT = TableLimit(rows=10)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    table_reader.close()
    yield
    table_reader.close()


def table(path: Path, rows: int = 1) -> Path:
    pq.write_table(pa.table({"text": ["a"] * rows}), path)
    return path


def process() -> subprocess.Popen[bytes]:
    assert table_reader._process is not None
    return table_reader._process


@pytest.mark.slow
def test_one_process_reads_what_follows(tmp_path: Path) -> None:
    good, long = table(tmp_path / "good.parquet"), table(tmp_path / "long.parquet", 11)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1")
    found = problems_of({good: LIMIT, long: LIMIT, damaged: LIMIT})
    assert found[0] == ""
    assert found[1] == "has 11 rows, and at most 10 are allowed"
    assert found[2]
    first = process()
    assert problems_of({good: LIMIT}) == [""]
    assert process() is first


def test_a_line_break_in_a_name_asks_one_question(tmp_path: Path) -> None:
    folder = tmp_path / 'a\n[1, 1, 1, "b"]\n'
    folder.mkdir()
    assert problems_of({table(folder / "one.parquet"): LIMIT, table(folder / "two.parquet", 11): LIMIT}) == [
        "",
        "has 11 rows, and at most 10 are allowed",
    ]


DYING = """import json, os, sys
for line in sys.stdin:
    if "2.parquet" in line:
        os.abort()
    print(json.dumps([str(os.getpid()), True]), flush=True)
"""


def test_a_table_that_ends_the_process_leaves_the_rest_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = table(tmp_path / "good.parquet")
    dying = tmp_path / "dying.py"
    dying.write_text(DYING)
    files = {table(tmp_path / f"{number}.parquet"): LIMIT for number in range(4)}
    with monkeypatch.context() as patch:
        patch.setattr(_tables_worker, "__file__", str(dying))
        found = problems_of(files)
    assert found[0] == found[1], "one process answers"
    assert found[0]
    assert found[2:] == [None, None], "a fresh one was asked, too"
    assert problems_of({good: LIMIT}) == [""], "the next question starts another process"


def test_a_dying_process_is_not_the_table_s_fault(tmp_path: Path) -> None:
    good = table(tmp_path / "good.parquet")
    for _ in range(3):
        assert problems_of({good: LIMIT}) == [""]
        process().send_signal(signal.SIGINT)
        assert problems_of({good: LIMIT}) == [""]


def test_a_process_with_traces_of_a_table_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, greedy = table(tmp_path / "good.parquet"), tmp_path / "greedy.py"
    greedy.write_text("import sys\nfor line in sys.stdin:\n    print('[\"\", false]', flush=True)\n")
    with monkeypatch.context() as patch:
        patch.setattr(_tables_worker, "__file__", str(greedy))
        assert problems_of({good: LIMIT}) == [""]
    assert table_reader._process is None


def test_a_process_that_was_killed_meanwhile_is_started_again(tmp_path: Path) -> None:
    good = table(tmp_path / "good.parquet")
    assert problems_of({good: LIMIT}) == [""]
    process().kill()
    process().wait()
    assert problems_of({good: LIMIT}) == [""]


def test_an_answer_that_nobody_waited_for_is_given_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, long = table(tmp_path / "good.parquet"), table(tmp_path / "long.parquet", 11)
    assert problems_of({good: LIMIT}) == [""]
    first = process()

    class Interrupted(io.RawIOBase):
        def readline(self, size: int | None = -1) -> bytes:
            raise KeyboardInterrupt

    kept, first.stdout = first.stdout, Interrupted()  # type: ignore[assignment]  # as Ctrl-C during the answer
    with pytest.raises(KeyboardInterrupt):
        problems_of({long: LIMIT})
    assert kept is not None
    kept.close()
    assert first.poll() is not None
    assert problems_of({good: LIMIT}) == [""]


def test_a_fork_has_a_process_of_its_own(tmp_path: Path) -> None:
    good = table(tmp_path / "good.parquet")
    assert problems_of({good: LIMIT}) == [""]
    first = process().pid
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if table_reader._process is None and problems_of({good: LIMIT}) == [""] else 2
            table_reader.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert problems_of({good: LIMIT}) == [""]
    assert process().pid == first
