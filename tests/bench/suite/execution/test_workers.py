"""Workers as they are: processes that are started afresh, told what to do, and stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import pytest

from tests.bench import tiny
from tests.bench.nursery import Nursery, alive, until
from tests.bench.tiny import PLUGINS, Watcher, run, same, suite
from thiefbench.engine.model.policy import ModelError
from thiefbench.engine.spec import SpecError
from thiefbench.suite.execution import workers
from thiefbench.suite.execution.runner import jobs_of
from thiefbench.suite.execution.worker_process import check_sources
from thiefbench.suite.execution.workers import WorkerError
from thiefbench.suite.store.records import Store

OWN = """
import os, time
from pathlib import Path
from thiefbench.defenses.base import ACCEPT, Defense

class Mine(Defense):
    name = "mine"
    def inspect(self, view):
        with Path("log").open("a") as log:
            log.write(f"{os.getpid()} {view.round}\\n")
        while not Path(f"gate-{view.round}").exists():
            time.sleep(0.02)
        return [ACCEPT] * len(view.completions)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a plugin that is named relative to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path


def pids(folder: Path) -> list[int]:
    log = folder / "log"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ctrl_c_and_a_lost_parent_leave_a_store_to_go_on_from(
    folder: Path, nursery: Nursery, method: Literal["fork", "spawn"]
) -> None:
    file = tiny.suite_file(folder, defenses=["none", "mine.py:Mine"], rounds=5)
    run(suite("none", rounds=5), folder / "store")  # so that one cell is left, and one worker starts
    words = ("run", str(file), "--store", "store", "--threads", "1", "--workers", "2")
    child = nursery.start(*words, method=method)
    until(lambda: len(pids(folder)) == 1)
    (worker,) = pids(folder)
    assert worker != child.pid, "the plugin works in another process, found by its relative path"
    for pid in (worker, child.pid):  # as a terminal sends it to all
        os.kill(pid, signal.SIGINT)
    until(lambda: "stopping after this round" in child.said)
    (folder / "gate-1").touch()
    # The worker is told a moment later; on a busy machine it has begun another round by then, and finishes that one.
    until(lambda: not alive(child.pid) or len(pids(folder)) == 2)
    (folder / "gate-2").touch()
    assert child.wait() == 130, child.said
    assert child.said.count("stopping after this round") == 1
    assert "Traceback" not in child.said
    assert f"Stopped; all finished work is kept. To continue: thiefbench {' '.join(words)}" in child.said
    played = len(pids(folder))
    assert played <= 2, "the round under way is the last"
    (folder / f"gate-{played + 1}").unlink(missing_ok=True)  # the next run is to wait in its first round

    child = nursery.start(*words, method=method)
    until(lambda: len(pids(folder)) == played + 1)
    child.kill()
    until(lambda: not alive(child.pid))  # else the worker may end its round before, and begin another
    (folder / f"gate-{played + 1}").touch()
    until(lambda: not alive(pids(folder)[-1]))
    assert len(pids(folder)) == played + 1, "without a parent the round under way is the last"

    for number in range(1, 6):
        (folder / f"gate-{number}").touch()
    of = suite("none", "mine.py:Mine", rounds=5)
    run(of, folder / "store")
    assert len(pids(folder)) == 5, "both have left a checkpoint"
    run(of, folder / "other")
    same(of, folder / "store", folder / "other")


@pytest.mark.slow  # it starts processes afresh; test_kills.py has workers that are forked
def test_workers_do_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a file adds a folder to Python's path: for workers before they read it, and not for the pool."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/far_from_mine.py").write_text("NOTHING = 0\n")
    mine = tmp_path / "mine.py"
    mine.write_text(
        f"import sys\nsys.path.append({str(tmp_path / 'elsewhere')!r})\nfrom far_from_mine import NOTHING\n"
        "from thiefbench.defenses.base import ACCEPT, Defense\n\nclass Mine(Defense):\n    name = 'mine'\n\n"
        "    def inspect(self, view):\n        return [ACCEPT] * len(view.completions)\n"
    )
    of = suite("none", f"{PLUGINS}:Raises", f"{mine}:Mine", recorded=(2,))
    watcher = Watcher()
    records = run(of, tmp_path / "many", watcher, workers=2)
    alone = run(of, tmp_path / "one")
    assert [record.status for record in records] == ["ok", "ok", "error", "ok"]
    assert [record.error for record in records] == [record.error for record in alone], "a failure is the same failure"
    same(of, tmp_path / "many", tmp_path / "one")
    assert [r.completions_sha256 for r in records] == [r.completions_sha256 for r in alone], "to the byte"
    assert {record.cell_id for record in watcher.ended} == {record.cell_id for record in records}
    assert watcher.rounds == 3 + 3 + 1 + 3, "progress of every cell reaches the listener"
    again = Watcher()
    run(of, tmp_path / "many", again, workers=2, retry_failed=False)
    assert (again.missing, again.cached) == ([], 4)
    assert any((tmp_path / "many").rglob("round-000002.safetensors")), "workers keep the weights that are wanted"


def test_a_user_s_mistake_in_a_worker_is_the_same_error(tmp_path: Path, nursery: Nursery) -> None:
    (tmp_path / "model").mkdir()
    model = str(tiny.unloadable_model(tmp_path / "model"))
    with pytest.raises(ModelError) as alone:
        run(suite(model=model), tmp_path / "one")
    file = tiny.suite_file(tmp_path, model=model)
    child = nursery.start("run", file, "--store", tmp_path / "many", "--threads", 1, "--workers", 2)
    assert child.wait() == 2, child.said
    assert child.said.strip().splitlines()[-1] == f"error: {alone.value}"


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\n"
        "from tests.bench.tiny import run, suite\n"
        "run(suite(model=sys.argv[2]), Path('store'), workers=2)\n"
    )
    root = Path(__file__).parent.parent.parent.parent.parent
    done = subprocess.run(
        [sys.executable, script, root, tiny.model()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{WorkerError.__module__}.{WorkerError.__qualname__}: {CANNOT_START}")
    assert not Store(tmp_path / "store").records()


CANNOT_START = (
    "worker processes cannot be started (the last one ended with exit code 1); write --workers 1, or in a script of "
    'your own call run_suite behind if __name__ == "__main__":'
)


def leaves(*_: object) -> None:
    """What a worker does whose script starts workers before it comes to serve."""
    sys.exit(1)


def test_workers_that_cannot_be_started_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CONTEXT", get_context("fork"))
    monkeypatch.setattr(workers, "serve", leaves)
    with pytest.raises(WorkerError, match=re.escape(CANNOT_START)):
        run(suite(), tmp_path, workers=2)
    assert not Store(tmp_path).records()


def test_a_file_that_was_edited_during_the_run_is_noticed(tmp_path: Path) -> None:
    (spec, job), *_ = jobs_of(suite("none"), tiny.cells(suite("none")), Store(tmp_path)).items()
    check_sources(job)
    edited = {**job.identity, "sources": {**job.identity["sources"], "task": "another hash"}}
    with pytest.raises(SpecError, match=f"the files of the task {spec.task} were edited during the run"):
        check_sources(replace(job, identity=edited))
