"""Whatever is killed, and however often: every cell gets its record, equal to that of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.bench import tiny
from tests.bench.nursery import Nursery, alive, until
from tests.bench.tiny import PLUGINS, Attacked, Watcher, cut, flip, run, same, suite
from thiefbench.suite.execution import checkpoints
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.checkpoints import checkpointed
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store.records import CellDir, Store, identify

COUNTS = f"{PLUGINS}:Counts"
ROUNDS = 5


@cache
def several() -> Suite:
    """Three cells, one with a defense that has a state; the undefended one keeps weights."""
    return suite("none", COUNTS, rounds=ROUNDS, recorded=(2,))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of `several`, run in one go."""
    store = tmp_path_factory.mktemp("whole")
    run(several(), store)
    return store


def files(store: Path) -> list[str]:
    """The files of a store by name, without those of what was set aside."""
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_if_nothing_had_happened(
    tmp_path: Path, nursery: Nursery, whole: Path, workers: int, times: int
) -> None:
    file = tiny.suite_file(tmp_path, defenses=["none", COUNTS], rounds=ROUNDS, recorded=[2])
    draw, kills, stores, begun = random.Random(workers), 0, 0, 0
    while kills < times or not begun:
        assert kills < 10 * times, "cells are killed on their way"
        store = tmp_path / f"store-{stores}"
        words = ("run", file, "--store", store, "--threads", 1, "--workers", workers)
        before = time.time_ns()
        child = nursery.start(*words)
        # Starting takes a while that nobody knows: some kills come once the run has said in the store what it runs,
        # which is just before it runs it, and others once it has kept something more.
        awaited = ("run.json",) if kills % 2 else ("state.json", "record.json")
        until(lambda since=before, names=awaited, store=store: written(store, since, *names) or not alive(child.pid))  # type: ignore[misc]  # noqa: B023
        time.sleep(draw.uniform(0.0, 0.35))
        # Alone, a parent leaves workers behind; with its group all die at once, as when the machine goes down.
        ended = child.kill(group=draw.random() < 0.5)
        kills += ended < 0
        stores += ended == 0  # it was done before: on with a new store
        begun += any(checkpointed(CellDir(path)) for path in (store / "cells").glob("*"))
        assert ended in (0, -9), child.said
    last = nursery.start(*words)
    assert last.wait() == 0, last.said
    assert "set aside" not in last.said, "a kill damages nothing"
    for number in range(stores + (ended < 0)):
        store = tmp_path / f"store-{number}"
        same(several(), store, whole)
        assert files(store) == files(whole), "nothing half-written and no checkpoint is left"


def written(store: Path, since: int, *names: str) -> bool:
    """Whether a file of one of these names was written since then, in nanoseconds."""
    for name in names:
        for path in store.rglob(name):
            with suppress(FileNotFoundError):  # a run removes what it no longer needs
                if path.stat().st_mtime_ns > since:
                    return True
    return False


def log_of(path: Path) -> list[tuple[int, int]]:
    """(process, round) by line of what `plugins.Logs` has written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(process), int(number)) for process, number in (line.split() for line in lines)]


def logging(folder: Path, *names: str, seconds: float = 0.0) -> tuple[Path, list[Path]]:
    """A suite file whose defenses write logs, and these."""
    logs = [folder / name for name in names]
    defenses = [f"{PLUGINS}:Logs(file={str(log)!r}, seconds={seconds})" for log in logs]
    return tiny.suite_file(folder, defenses=defenses), logs


def gated(folder: Path, first: int = 1) -> str:
    """A defense that logs to `log`, and from its round `first` on waits until `gate` is there."""
    return f"{PLUGINS}:Gated(file={str(folder / 'log')!r}, gate={str(folder / 'gate')!r}, first={first})"


@pytest.mark.slow
def test_two_runs_with_workers_on_one_store_do_no_cell_twice(tmp_path: Path, nursery: Nursery) -> None:
    file, logs = logging(tmp_path, "a", "b", "c", seconds=0.1)
    words = ("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    children = [nursery.start(*words) for _ in range(2)]
    for child in children:
        assert child.wait() == 0, child.said
    for log in logs:
        assert Counter(number for _, number in log_of(log)) == {1: 1, 2: 1, 3: 1}, "no cell is run twice"
    records = Store(tmp_path / "store").records()
    assert [record.status for record in records] == ["ok"] * 4
    alone = tmp_path / "alone"
    alone.mkdir()
    of = suite(*(f"{PLUGINS}:Logs(file={str(log)!r}, seconds=0.1)" for log in logs))
    run(of, alone)
    same(of, tmp_path / "store", alone)


def test_a_killed_worker_costs_no_other_cell(tmp_path: Path, nursery: Nursery) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    file = tiny.suite_file(tmp_path, defenses=[gated(tmp_path, first=2), f"{PLUGINS}:Logs(file={str(other)!r})"])
    child = nursery.start("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    until(lambda: len(log_of(log)) == 2)
    os.kill(log_of(log)[0][0], signal.SIGKILL)
    (tmp_path / "gate").touch()
    assert child.wait() == 0, child.said
    (line,) = [line for line in child.said.splitlines() if "died" in line]
    assert str(log) in line, "the line names the cell"
    assert line.endswith("its worker process died with signal 9; another one goes on with the cell")
    assert Counter(number for _, number in log_of(log)) == {1: 1, 2: 2, 3: 1}, "it goes on from its checkpoint"
    assert Counter(number for _, number in log_of(other)) == {1: 1, 2: 1, 3: 1}, "the other cell is not touched"
    assert [record.status for record in Store(tmp_path / "store").records()] == ["ok"] * 3


def test_a_cell_that_kills_its_workers_is_given_up(tmp_path: Path, nursery: Nursery) -> None:
    file = tiny.suite_file(tmp_path, defenses=[f"{PLUGINS}:Dies", "logit"])
    child = nursery.start("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    assert child.wait() == 1, "a failed cell exits with 1"
    records = {record.cell["defense"]: record for record in Store(tmp_path / "store").records()}
    assert records["logit"].status == "ok", "the other cells are run"
    failed = records[f"{PLUGINS}:Dies"]
    assert (failed.status, failed.scores) == ("error", {}), "a failure is never a score"
    assert failed.error.endswith("its worker process died 3 times, last with signal 9")
    assert child.said.count("another one goes on with the cell") == 2, "it is tried three times"


def test_workers_whose_parent_is_killed_checkpoint_and_leave(tmp_path: Path, nursery: Nursery) -> None:
    log = tmp_path / "log"
    file = tiny.suite_file(tmp_path, defenses=[gated(tmp_path)])
    child = nursery.start("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    until(lambda: len(log_of(log)) == 1)
    child.kill()
    (tmp_path / "gate").touch()
    worker = log_of(log)[0][0]
    until(lambda: not alive(worker))
    assert len(log_of(log)) == 1, "the round under way is the last"
    (cell,) = tiny.cells(suite(gated(tmp_path), kind=Attacked))
    directory = Store(tmp_path / "store").cell(identify(identity(cell)))
    assert checkpointed(directory) == 1, "and is checkpointed"


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, nursery: Nursery) -> None:
    log = tmp_path / "log"
    file = tiny.suite_file(tmp_path, defenses=[gated(tmp_path)])
    child = nursery.start("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    until(lambda: len(log_of(log)) == 1)
    os.kill(child.pid, signal.SIGINT)
    until(lambda: "press Ctrl-C again to stop at once" in child.said)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 130
    assert "Traceback" not in child.said
    assert not alive(log_of(log)[0][0]), "no worker is left, though its round would never end"


def test_a_full_disk_ends_a_run_with_workers_in_one_sentence(tmp_path: Path, nursery: Nursery) -> None:
    file = tiny.suite_file(tmp_path, defenses=[f"{PLUGINS}:Full"])
    child = nursery.start("run", file, "--store", tmp_path / "store", "--threads", 1, "--workers", 2)
    assert child.wait() == 2
    assert child.said.strip().splitlines()[-1].startswith("error: the disk is full; what was finished is kept")
    assert "Traceback" not in child.said
    assert all(record.status == "ok" for record in Store(tmp_path / "store").records()), "a full disk fails no cell"


DAMAGES: dict[str, Callable[[CellDir], object]] = {
    "a truncated record": lambda cell: cut(cell.record_path),
    "an empty record": lambda cell: cell.record_path.write_bytes(b""),
    "a flipped bit in the completions": lambda cell: flip(cell.completions_path),
    "a damaged checkpoint": lambda cell: cut(next(cell.checkpoint.glob("weights-*"))),
}


@cache
def one_for_each_damage() -> Suite:
    """One attacked cell for every damage."""
    return suite(COUNTS, kind=Attacked, seeds=tuple(range(len(DAMAGES))))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with these cells intact."""
    store = tmp_path_factory.mktemp("good")
    run(one_for_each_damage(), store)
    return store


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_damaged_is_set_aside_and_redone(
    tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch, good: Path, workers: int
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    of, store = one_for_each_damage(), tmp_path / "store"
    shutil.copytree(good, store)
    *_, last = tiny.cells(of)
    shutil.rmtree(Store(store).cell(identify(identity(last))).path)
    with pytest.raises(KeyboardInterrupt):  # the last cell is left with a checkpoint
        run(of, store, Watcher(stop_after=2))
    for damage, spec in zip(DAMAGES.values(), tiny.cells(of), strict=True):
        damage(Store(store).cell(identify(identity(spec))))
    file = tiny.suite_file(tmp_path, defenses=[COUNTS], seeds=list(of.seeds))
    child = nursery.start("run", file, "--store", store, "--threads", 1, "--workers", workers)
    assert child.wait() == 0, child.said
    same(of, store, good)
    for spec in tiny.cells(of):
        name = identify(identity(spec))
        (line,) = [line for line in child.said.splitlines() if f"set aside as {name}.broken-1" in line]
        assert line.endswith(("the cell runs again", "starting the cell again")), "one line says so"
        assert (store / "cells" / f"{name}.broken-1").is_dir(), "nothing is thrown away"
