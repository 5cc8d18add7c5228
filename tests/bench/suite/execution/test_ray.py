"""Cells as Ray tasks: as on one machine, whatever is killed; where Ray is not installed, only what is said then.

One test plays a whole suite on a cluster in `make test`, for every process that meets a cluster first starts one, and
every worker of it imports torch. What is rare on a cluster is marked slow.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.bench import tiny
from tests.bench.nursery import until
from tests.bench.tiny import PLUGINS, Attacked, Watcher, run, same, suite
from thiefbench import cli
from thiefbench.engine.model.policy import ModelError
from thiefbench.engine.spec import SpecError
from thiefbench.errors import UserError
from thiefbench.suite.execution import ray_executor
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.execution.executors import WorkerError
from thiefbench.suite.execution.ray_executor import OBJECT_STORE_BYTES, RayExecutor, Share
from thiefbench.suite.execution.ray_worker import Mailbox, check_node
from thiefbench.suite.execution.runner import jobs_of
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record, Store


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a Ray cluster with two CPUs, to which this process is connected."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'thiefbench[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # A worker that has imported everything is soon at work again.
    os.environ["RAY_idle_worker_killing_time_threshold_ms"] = "600000"  # noqa: SIM112  (so Ray spells it)
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def run_on_ray(of: tiny.Suite, store: Path, watcher: Watcher | None = None, **options: Any) -> list[Record]:
    """Run the suite's cells on the cluster to which this process is connected."""
    with RayExecutor(Share(1)) as executor:
        return run(of, store, watcher, executor=executor, **options)


def log_of(path: Path) -> list[tuple[int, int]]:
    """(process, round) by line of what `plugins.Logs` has written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(process), int(number)) for process, number in (line.split() for line in lines)]


def rounds(path: Path) -> Counter[int]:
    """How often each round was played."""
    return Counter(number for _, number in log_of(path))


@pytest.mark.slow
def test_ray_does_what_one_process_does(tmp_path: Path, address: str) -> None:
    of = suite("none", f"{PLUGINS}:Raises", recorded=(2,))
    watcher = Watcher()
    records = run_on_ray(of, tmp_path / "ray", watcher)
    alone = run(of, tmp_path / "alone")
    assert [record.status for record in records] == ["ok", "ok", "error"]
    assert [record.error for record in records] == [record.error for record in alone], "a failure is the same failure"
    same(of, tmp_path / "ray", tmp_path / "alone")
    assert [r.completions_sha256 for r in records] == [r.completions_sha256 for r in alone], "to the byte"
    assert {record.cell_id for record in watcher.ended} == {record.cell_id for record in records}
    assert watcher.rounds == 3 + 3 + 1, "progress of every cell reaches the listener"
    assert any((tmp_path / "ray").rglob("round-000002.safetensors")), "tasks keep the weights that are wanted"
    again = Watcher()
    run_on_ray(of, tmp_path / "ray", again, retry_failed=False)
    assert (again.missing, again.cached) == ([], 3), "a failure is recorded, and not tried again as a duplicate"


class Ordered(Watcher):
    """Remembers whose rounds came one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[CellSpec] = []

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        super().cell(spec, done, total)
        self.order.append(spec)


@pytest.mark.slow
def test_no_cell_begins_where_another_has_the_cpus(tmp_path: Path, address: str) -> None:
    of, watcher = suite("none", "random"), Ordered()
    with RayExecutor(Share(2)) as executor:
        run(of, tmp_path / "ray", watcher, executor=executor)
    turns = [spec for number, spec in enumerate(watcher.order) if not number or spec != watcher.order[number - 1]]
    assert len(turns) == len(set(watcher.order)) == 3, "each is played to its end before the next begins"


class Killer(Watcher):
    """Kills the process that works on a cell, once, in that cell's second round."""

    def __init__(self, log: Path, gate: Path) -> None:
        super().__init__()
        self.log, self.gate, self.killed = log, gate, 0

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        super().cell(spec, done, total)
        if not self.killed and str(self.log) in spec.defense and done == 1:
            until(lambda: len(log_of(self.log)) == 2)
            self.killed = log_of(self.log)[1][0]
            os.kill(self.killed, signal.SIGKILL)
            self.gate.touch()


@pytest.mark.slow
def test_a_killed_worker_costs_no_other_cell(tmp_path: Path, address: str) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    gate, never = tmp_path / "gate", 9
    of = suite(
        f"{PLUGINS}:Hasty(file={str(one)!r}, gate={str(gate)!r}, first=2)",
        f"{PLUGINS}:Hasty(file={str(other)!r}, gate={str(gate)!r}, first={never})",
    )
    killer = Killer(one, gate)
    records = run_on_ray(of, tmp_path / "ray", killer)
    assert killer.killed != os.getpid(), "cells run in other processes"
    assert [record.status for record in records] == ["ok"] * 3
    (line,) = killer.notes
    assert str(one) in line, "the line names the cell"
    assert line.endswith("its worker process died unexpectedly; another one goes on with the cell")
    assert rounds(one) == {1: 1, 2: 2, 3: 1}, "it goes on from its checkpoint: one round is played again"
    assert rounds(other) == {1: 1, 2: 1, 3: 1}, "no other cell is touched"
    for log in (one, other):
        log.unlink()
    run(of, tmp_path / "alone")
    same(of, tmp_path / "ray", tmp_path / "alone")


@pytest.mark.slow
def test_a_record_that_this_machine_sees_late_is_waited_for(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, see = [0], ray_executor.record_of

    def late(job: Any) -> Record | None:
        looks[0] += 1
        return None if looks[0] < 3 else see(job)

    monkeypatch.setattr(ray_executor, "record_of", late)
    watcher = Watcher()
    (record,) = run_on_ray(suite(kind=Attacked), tmp_path, watcher)
    assert (record.status, watcher.notes, looks[0] >= 3) == ("ok", [], True), "the cell is not taken for lost"


@pytest.mark.slow
def test_a_user_s_mistake_in_a_task_is_the_same_sentence(tmp_path: Path, address: str) -> None:
    (tmp_path / "model").mkdir()
    of = suite(model=str(tiny.unloadable_model(tmp_path / "model")))
    with pytest.raises(ModelError) as alone:
        run(of, tmp_path / "alone")
    with pytest.raises(UserError) as many:
        run_on_ray(of, tmp_path / "ray")
    assert str(many.value) == str(alone.value)


@pytest.mark.slow
def test_a_cell_that_no_node_can_hold_is_refused(tmp_path: Path, address: str) -> None:
    with RayExecutor(Share(3)) as executor, pytest.raises(WorkerError, match="no node of the Ray cluster has 3 CPUs"):
        run(suite(), tmp_path, executor=executor)


def opening(gate: Path) -> str:
    """Statements that let `plugins.Gated` go on once a stop is where tasks ask for it at the end of every round."""
    return f"""
from pathlib import Path
from thiefbench.suite.execution import ray_executor
listen = ray_executor._Shift._listen
def listening(shift, stop, deaf):
    listen(shift, stop, deaf)
    if stop:
        Path({str(gate)!r}).touch()
ray_executor._Shift._listen = listening
"""


class Takeover(Watcher):
    """Stops another run as soon as this one waits for its cell."""

    def __init__(self, other: Popen[str]) -> None:
        super().__init__()
        self.other, self.said = other, ""

    def note(self, message: str) -> None:
        super().note(message)
        assert self.other.stderr is not None
        self.other.send_signal(signal.SIGINT)
        while "stopping after this round" not in self.said:
            line = self.other.stderr.readline()
            assert line, self.said
            self.said += line


@pytest.mark.slow
def test_two_runs_share_the_cells_of_a_store_and_one_goes_on_where_the_other_is_stopped(
    tmp_path: Path, address: str
) -> None:
    log, gate, store = tmp_path / "log", tmp_path / "gate", tmp_path / "store"
    defense = f"{PLUGINS}:Gated(file={str(log)!r}, gate={str(gate)!r})"
    words = ["run", str(tiny.suite_file(tmp_path, defenses=[defense])), "--store", str(store)]
    words += ["--executor", "ray", "--ray-address", address]
    other = tiny.command(*words, setup=opening(gate))
    control, attacked = jobs_of(suite(defense), tiny.cells(suite(defense)), Store(store)).values()
    until(lambda: control.directory.record_path.exists() and len(log_of(log)) == 1)
    watcher = Takeover(other)
    records = run_on_ray(suite(defense), store, watcher)
    out, rest = other.communicate()
    said = watcher.said + rest
    assert (other.returncode, out) == (130, ""), said
    assert "Traceback" not in said
    assert f"Stopped; all finished work is kept. To continue: thiefbench {' '.join(words)}" in said
    assert watcher.cached == 1, "what the other has finished is taken from the store"
    (note,) = watcher.notes
    assert note == f"another run on this store works on a cell; waiting for it: {attacked.spec.label}"
    assert [record.status for record in records] == ["ok"] * 2
    assert rounds(log) == {1: 1, 2: 1, 3: 1}, "no round is played twice"
    assert len({process for process, _ in log_of(log)}) == 2, "by the one and then the other"
    run(suite(defense), tmp_path / "alone")
    same(suite(defense), store, tmp_path / "alone")


class Interrupter(Watcher):
    """Presses Ctrl-C while a cell's first round is played, and where `twice`, again when told what that would do."""

    def __init__(self, log: Path, twice: bool) -> None:
        super().__init__()
        self.log, self.twice = log, twice

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        super().cell(spec, done, total)
        if done == 0:
            until(lambda: len(log_of(self.log)) == 1)
            os.kill(os.getpid(), signal.SIGINT)

    def note(self, message: str) -> None:
        super().note(message)
        if self.twice:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_finishes_the_round_and_a_second_one_stops_at_once(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    of = suite(f"{PLUGINS}:Gated(file={str(log)!r}, gate={str(gate)!r})", kind=Attacked)
    monkeypatch.setattr(ray_executor._Shift, "_listen", ray_executor._Shift._listen)  # put back at the end
    if not twice:
        exec(opening(gate), {})
    watcher = Interrupter(log, twice)
    with pytest.raises(KeyboardInterrupt):
        run_on_ray(of, tmp_path / "store", watcher)
    assert watcher.notes == ["stopping after this round; press Ctrl-C again to stop at once"]
    (job,) = jobs_of(of, tiny.cells(of), Store(tmp_path / "store")).values()
    assert checkpointed(job.directory) == (0 if twice else 1), "a round is finished and checkpointed, or left at once"
    with job.directory.locked(waiting=lambda: None):
        assert len(log_of(log)) == 1, "nobody works on the cell any more"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "ray", "--gpus-per-cell", "-1"], "--gpus-per-cell must be above 0 and at most 1"),
        (["--executor", "ray", "--gpus-per-cell", "0.5"], "--gpus-per-cell needs --device cuda"),
        (["--executor", "ray", "--device", "cuda:1"], "write --device cpu or cuda, not cuda:1"),
        (["--executor", "ray", "--workers", "2"], "--workers is for --executor local"),
        (["--gpus-per-cell", "0.5"], "write --executor ray beside them"),
        (["--ray-address", "here:6379"], "write --executor ray beside them"),
        (["--executor", "rays"], "'rays' is not one of 'local', 'ray'"),
    ],
)
def test_bad_usage_is_told_in_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["thiefbench", "run", "smoke", "--store", str(tmp_path / "store"), *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2, "bad usage"
    said = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())  # whatever the terminal's width
    assert message in said
    assert not (tmp_path / "store").exists(), "nothing was begun"


def test_without_ray_the_line_to_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match=r"needs Ray; write pip install '.\[ray\]' in a checkout first"):
        RayExecutor(Share(1)).__enter__()


@pytest.mark.parametrize("address", ["ray://head:10001", "localhost:1", "nonsense"])
def test_an_address_without_a_cluster_is_told_in_one_sentence(address: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'thiefbench[ray]'")
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(WorkerError, match=f"{address} .*write --ray-address HOST:PORT"):
        RayExecutor(Share(1), address).__enter__()


def test_shares_of_a_gpu_fit_side_by_side() -> None:
    half = Share.of("cuda", 2, 0.5)
    assert half.places(cpus=16, gpus=2) == 4, "two cells on each GPU"
    assert half.places(cpus=5, gpus=8) == 2, "CPUs bound them too"
    assert Share.of("cuda", 1, 0.1).places(cpus=64, gpus=0.3) == 3, "floats do not cost a place"
    assert Share.of("cuda", 1, None) == Share(1, 1.0), "a whole GPU unless said otherwise"
    assert Share.of("cpu", 2, None).places(cpus=5, gpus=0) == 2


def test_a_mailbox_gives_what_it_holds_once_and_passes_the_stop_on() -> None:
    box = Mailbox()
    assert box.tell(7, "cell", 1, 3) is False
    assert box.collect(stop=True) == [(7, "cell", 1, 3)]
    assert box.collect(stop=True) == []
    assert (box.asked(), box.tell(7, "cell", 2, 3)) == (True, True)


def test_a_node_with_other_files_is_refused(tmp_path: Path) -> None:
    job, *_ = jobs_of(suite(), tiny.cells(suite()), Store(tmp_path)).values()
    check_node(job)
    other = replace(job, identity={**job.identity, "weights": "of another model", "engine_revision": -1})
    with pytest.raises(SpecError, match="has another weights, another engine revision than the machine of this run"):
        check_node(other)
