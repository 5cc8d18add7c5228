"""Workers as they are: processes that are started afresh, told what to do, and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.bench.nursery import alive, until
from tests.bench.tiny import PLUGINS, Watcher, run, same, suite
from thiefbench.engine.model.policy import ModelError
from thiefbench.engine.spec import SpecError
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
        time.sleep(SECONDS)
        return [ACCEPT] * len(view.completions)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a plugin that is named relative to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.replace("SECONDS", "1.0"))
    return tmp_path


def pids(folder: Path) -> list[int]:
    log = folder / "log"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def test_ctrl_c_and_a_lost_parent_leave_a_store_to_go_on_from(folder: Path) -> None:
    file = tiny.suite_file(folder, defenses=["none", "mine.py:Mine"])
    words = ("run", str(file), "--store", "store", "--threads", "1", "--workers", "2")
    process = tiny.command(*words)
    until(lambda: len(pids(folder)) == 1)
    (worker,) = pids(folder)
    assert worker != process.pid, "the plugin works in another process, found by its relative path"
    for pid in (worker, process.pid):  # as a terminal sends it to all
        os.kill(pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.count("stopping after this round") == 1
    assert "Traceback" not in said
    assert f"Stopped; all finished work is kept. To continue: thiefbench {' '.join(words)}" in said
    assert len(pids(folder)) == 1, "the round under way is the last"

    process = tiny.command(*words)
    until(lambda: len(pids(folder)) == 2)
    process.kill()
    until(lambda: not alive(pids(folder)[-1]))
    process.communicate()
    assert len(pids(folder)) == 2, "without a parent the round under way is the last"

    watcher = Watcher()
    of = suite("none", "mine.py:Mine")
    run(of, folder / "store", watcher)
    assert len(pids(folder)) == 3, "both have left a checkpoint"
    run(of, folder / "other")
    same(of, folder / "store", folder / "other")


def test_workers_do_what_one_process_does(tmp_path: Path) -> None:
    of = suite("none", f"{PLUGINS}:Raises", recorded=(2,))
    watcher = Watcher()
    records = run(of, tmp_path / "many", watcher, workers=2)
    alone = run(of, tmp_path / "one")
    assert [record.status for record in records] == ["ok", "ok", "error"]
    assert [record.error for record in records] == [record.error for record in alone], "a failure is the same failure"
    same(of, tmp_path / "many", tmp_path / "one")
    assert [r.completions_sha256 for r in records] == [r.completions_sha256 for r in alone], "to the byte"
    assert {record.cell_id for record in watcher.ended} == {record.cell_id for record in records}
    assert watcher.rounds == 3 + 3 + 1, "progress of every cell reaches the listener"
    again = Watcher()
    run(of, tmp_path / "many", again, workers=2, retry_failed=False)
    assert (again.missing, again.cached) == ([], 3)
    assert any((tmp_path / "many").rglob("round-000002.safetensors")), "workers keep the weights that are wanted"


def test_a_user_s_mistake_in_a_worker_is_the_same_error(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    of = suite(model=str(tiny.unloadable_model(tmp_path / "model")))
    with pytest.raises(ModelError) as alone:
        run(of, tmp_path / "one")
    with pytest.raises(ModelError) as many:
        run(of, tmp_path / "many", workers=2)
    assert str(many.value) == str(alone.value)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\n"
        "from tests.bench.tiny import run, suite\n"
        "run(suite(model=sys.argv[2]), Path('store'), workers=2)\n"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, script, root, tiny.model()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{WorkerError.__module__}.{WorkerError.__qualname__}: worker processes cannot be started")
    assert 'behind if __name__ == "__main__":' in last, "and what to write"
    assert not Store(tmp_path / "store").records()


def test_a_file_that_was_edited_during_the_run_is_noticed(tmp_path: Path) -> None:
    (spec, job), *_ = jobs_of(suite("none"), tiny.cells(suite("none")), Store(tmp_path)).items()
    check_sources(job)
    edited = {**job.identity, "sources": {**job.identity["sources"], "task": "another hash"}}
    with pytest.raises(SpecError, match=f"the files of the task {spec.task} were edited during the run"):
        check_sources(replace(job, identity=edited))
