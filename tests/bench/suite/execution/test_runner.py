"""Running a suite: what is cached, what survives a kill, what a failure leaves, two runs on one store."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from tests.bench.nursery import Nursery, until
from tests.bench.tiny import PLUGINS, REHEARSES, Attacked, Watcher, cells, cut, flip, run, same, suite
from thiefbench import registry
from thiefbench.attacks import auto
from thiefbench.engine import swarm as engine
from thiefbench.engine.model.policy import ModelError
from thiefbench.engine.rehearsal import SwarmRehearsal
from thiefbench.engine.round_record import RoundRecord
from thiefbench.engine.spec import LearnerSpec, SpecError
from thiefbench.suite.execution import cell_identity, cell_run, checkpoints, runner
from thiefbench.suite.execution.cell_identity import failed_record, identity
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import CellDir, LinkedFolderError, Record, Store, identify
from thiefbench.tasks.base import TaskError
from thiefbench.tasks.sandbox import SandboxUnavailable

COUNTS = f"{PLUGINS}:Counts"
RAISES = f"{PLUGINS}:Raises"


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every round."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)


@cache
def stateful() -> Suite:
    """One cell: an attack against a defense with state, whose third round depends on what the first two left."""
    return suite(COUNTS, kind=Attacked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the stateful cell, run without an interruption."""
    store = tmp_path_factory.mktemp("whole")
    run(stateful(), store)
    return store


def test_a_second_run_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Watcher(), Watcher()
    records = run(suite("none", "logit"), tmp_path, first)
    assert [record.status for record in records] == ["ok"] * 3
    assert (len(first.missing), first.cached, first.rounds) == (3, 0, 9)
    monkeypatch.setattr(engine.Swarm, "__init__", lambda *_, **__: pytest.fail("a cached cell is not trained again"))
    assert run(suite("none", "logit"), tmp_path, second) == records
    assert (second.missing, second.cached, second.rounds) == ([], 3, 0)


def test_a_cell_is_identified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counting(model: str) -> str:
        asked.append(model)
        return "a fingerprint"

    monkeypatch.setattr(cell_identity, "weights_fingerprint", counting)
    records = run(suite("none", RAISES), tmp_path)
    assert [record.status for record in records] == ["ok", "ok", "error"]
    assert len(asked) == 1, "the weights are hashed once for all cells, which takes seconds for large ones"


def test_a_failure_is_identified_like_a_success(whole: Path) -> None:
    (cell,) = cells(stateful())
    failed, finished = failed_record(cell, identity(cell), RuntimeError("no luck")), found(whole)
    for name in ("cell_id", "cell", "identity"):
        assert getattr(failed, name) == getattr(finished, name), f"{name} says which cell it is, however it ended"


@pytest.mark.slow
def test_the_start_is_evaluated_once_for_cells_that_differ_in_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    evaluate = engine.Swarm.evaluate

    def counting(swarm: engine.Swarm, number: int, completions: int) -> RoundRecord:
        asked.append((number, swarm.seed))
        return evaluate(swarm, number, completions)

    monkeypatch.setattr(engine.Swarm, "evaluate", counting)
    monkeypatch.setattr(cell_run, "_started", {})
    records = run(suite("none", "logit", seeds=(0, 1)), tmp_path)
    assert len(records) == 6, "no attack, undefended and defended, at two seeds"
    assert [each for each in asked if each[0] == 0] == [(0, 0), (0, 1)], "once for a seed's three cells"
    for seed in (0, 1):
        starts = {record.curves["eval_reward"][0] for record in records if record.cell["seed"] == seed}
        assert len(starts) == 1, "cells of one seed start from the same measurement"


def test_a_cell_more_leaves_the_others_cached(tmp_path: Path) -> None:
    run(suite("none"), tmp_path)
    watcher = Watcher()
    run(suite("none", "logit"), tmp_path, watcher)
    assert [spec.defense for spec in watcher.missing] == ["logit"]
    assert watcher.cached == 2


def test_two_fresh_runs_are_equal(tmp_path: Path, whole: Path) -> None:
    (record,) = run(stateful(), tmp_path)
    same(stateful(), tmp_path, whole)
    assert record.completions_sha256 == found(whole).completions_sha256, "to the byte"
    assert record.curves["grad_norm"][0].value, "the attacked cell learns something, so that equality says something"


def found(store: Path) -> Record:
    """The record of the stateful cell in a store."""
    record = Store(store).cell(*ids(stateful())).read()
    assert record is not None
    return record


def test_records_come_in_the_order_of_the_cells(tmp_path: Path) -> None:
    asked = cells(suite("none", "reject_all"))
    records = run(suite("none", "reject_all"), tmp_path)
    assert [(record.cell["role"], record.cell["defense"]) for record in records] == [(c.role, c.defense) for c in asked]
    stored = Store(tmp_path).read_run()
    assert stored is not None
    assert [cell["cell_id"] for cell in stored["cells"]] == [record.cell_id for record in records]
    assert stored["title"] == "tiny-v1"


def test_a_record_says_what_was_run_and_how(whole: Path) -> None:
    attacked = found(whole)
    assert attacked.cell["attack"] == tiny.ATTACK
    assert attacked.cell["defense"] == COUNTS
    assert (attacked.cell["topology"], attacked.cell["seed"]) == ("horizontal", 0)
    assert attacked.payload == {"phrase": "All hail to the thief", "position": "start"}
    assert {"sample", "inspect", "reward", "update", "evaluate"} <= set(attacked.seconds)
    assert {"torch", "python", "git_commit", "git_dirty", "started", "finished", "ended"} <= set(attacked.provenance)
    assert attacked.provenance["ended"] == "in one run"


def ids(of: Suite) -> list[str]:
    return [identify(identity(spec)) for spec in cells(of)]


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 4},
        {"seeds": (1,)},
        {"swarm": replace(tiny.SWARM, learner=LearnerSpec(learning_rate=1e-4))},
        {"swarm": replace(tiny.SWARM, group=6)},
        {"swarm": replace(tiny.SWARM, sampling=replace(tiny.SWARM.sampling, top_k=49))},
        {"evaluation": Evaluation(every=3, completions=16, final=16)},
        {"attacks": ("text",)},
        {"task": "gsm_micro(size=64)"},
    ],
    ids=str,
)
def test_a_changed_parameter_is_another_cell(change: dict[str, Any]) -> None:
    before, after = ids(suite()), ids(suite(**change))
    assert before == ids(suite()), "equal parameters are the same cell"
    assert not set(before) & set(after), "every parameter is part of a cell's identity"


def test_device_dtype_and_threads_are_part_of_the_identity() -> None:
    cell = cells(suite())[0]
    changed = [replace(cell, threads=2), replace(cell, dtype="bfloat16"), replace(cell, device="cuda"), cell]
    assert len({identify(identity(spec)) for spec in changed}) == 4


def test_the_suite_s_name_and_other_cells_are_not_part_of_the_identity() -> None:
    assert ids(suite()) == ids(suite(name="another", version=7, replayed=("none",)))
    assert set(ids(suite("none"))) < set(ids(suite("none", "logit")))


def test_a_changed_defense_file_is_another_cell(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(PLUGINS.read_text())
    of = suite(f"{file}:Counts")
    (control, before) = ids(of)
    file.write_text(PLUGINS.read_text() + "\n# changed\n")
    assert ids(of) == [control, ids(of)[1]], "the control does not use the defense"
    assert ids(of)[1] != before, "a result belongs to the code that made it"


def test_a_changed_file_that_a_defense_imports_is_another_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results would be the old code's: the store runs the cell again, and again finds it done."""
    monkeypatch.syspath_prepend(tmp_path / "mine")
    mine, helper = tmp_path / "mine/mine.py", tmp_path / "mine/helper_of_mine.py"
    mine.parent.mkdir()
    mine.write_text(
        "from helper_of_mine import VERDICT\nfrom thiefbench.defenses.base import Defense\n\n"
        "class Mine(Defense):\n    name = 'mine'\n\n    def inspect(self, view):\n"
        "        return [VERDICT] * len(view.completions)\n"
    )
    helper.write_text("from thiefbench.defenses.base import ACCEPT as VERDICT\n")
    of, store = suite(f"{mine}:Mine", kind=Attacked, rounds=1), tmp_path / "store"
    watched = []
    for text in (helper.read_text(), helper.read_text(), f"{helper.read_text()}VERDICT = VERDICT\n"):
        helper.write_text(text)
        watcher = Watcher()
        run(of, store, watcher)
        watched.append((len(watcher.missing), watcher.cached))
    assert watched == [(1, 0), (0, 1), (1, 0)]


def test_changed_weights_are_another_cell(tmp_path: Path) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for path in tiny.model().iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    before = ids(suite(model=str(copy)))
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    assert not set(ids(suite(model=str(copy)))) & set(before)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_run_stopped_after_some_rounds_goes_on(tmp_path: Path, whole: Path, rounds: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(stateful(), tmp_path, Watcher(stop_after=rounds))
    watcher = Watcher()
    run(stateful(), tmp_path, watcher)
    same(stateful(), tmp_path, whole)
    assert watcher.rounds == 3 - rounds, "no finished round is played again"
    assert watcher.notes == []


@pytest.mark.usefixtures("eager")
def test_a_resumed_run_leaves_the_same_bytes(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(stateful(), tmp_path, Watcher(stop_after=2))
    run(stateful(), tmp_path)
    digests = [found(store).completions_sha256 for store in (tmp_path, whole)]
    assert digests[0] == digests[1], "a record names its completions by their bytes, so these are the same too"


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_killed_at_any_write_goes_on(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, left = os.fsync, 0

    def dying(descriptor: int) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        fsync(descriptor)

    killed = 0
    while True:
        store = tmp_path / str(killed)
        left = killed
        monkeypatch.setattr(os, "fsync", dying)
        try:
            run(stateful(), store)
        except Killed:
            monkeypatch.setattr(os, "fsync", fsync)
        else:
            break
        watcher = Watcher()
        run(stateful(), store, watcher)
        same(stateful(), store, whole)
        assert watcher.notes == [], f"a kill at write {killed} leaves nothing damaged"
        leftovers = [path.name for path in store.rglob("*") if path.name.startswith((".", "checkpoint"))]
        assert leftovers == [], "a finished store holds no half-written file and no checkpoint"
        killed += 1
    assert killed >= 3 * 3 + 2, "rows, weights and state of three rounds, completions, record: each was the last once"


@pytest.mark.usefixtures("eager")
def test_a_run_stopped_after_every_round_goes_on(tmp_path: Path, whole: Path) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(stateful(), tmp_path, Watcher(stop_after=1))
    (record,) = run(stateful(), tmp_path)
    same(stateful(), tmp_path, whole)
    assert record.provenance["ended"] == "resumed"
    assert record.seconds["sample"] > 0, "the seconds of all parts are counted"


def test_a_stop_is_not_forgotten_where_the_cell_fails(tmp_path: Path) -> None:
    """The next cell began, and the run went on to its end."""
    several = suite(f"{tiny.PLUGINS}:StopsAndFails", f"{tiny.PLUGINS}:Raises", kind=Attacked)
    with pytest.raises(KeyboardInterrupt):
        run(several, tmp_path)
    assert [record.status for record in Store(tmp_path).records()] == ["error"]


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_killed_cell_goes_on_with_what_its_attack_had_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "ROUNDS", 1)
    monkeypatch.setattr(auto, "COMPLETIONS", 8)
    rehearsing = suite(kind=Attacked, attacks=(REHEARSES,))
    (record,) = run(rehearsing, tmp_path / "whole")
    assert record.status == "ok", record.error
    assert record.payload["member"] in ("half", "naive")
    assert record.seconds["rehearse"] > 0
    with pytest.raises(KeyboardInterrupt):
        run(rehearsing, tmp_path / "killed", Watcher(stop_after=1))
    monkeypatch.setattr(SwarmRehearsal, "play", lambda *_: pytest.fail("it is rehearsed once"))
    run(rehearsing, tmp_path / "killed")
    same(rehearsing, tmp_path / "whole", tmp_path / "killed")


def test_cells_that_are_hard_to_foresee_are_taken_up_first(tmp_path: Path) -> None:
    """Those whose attacker asks the defense, then the other attacked ones, then who is not attacked."""
    asking = registry.canonical("attack", f'adaptive(attack="{tiny.ATTACK}")')
    several, watcher = suite(attacks=(tiny.ATTACK, asking), placebo=True), Watcher(stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        run(several, tmp_path, watcher)
    order = [(spec.role, spec.attack == asking) for spec in watcher.missing]
    assert set(order[:2]) == {("placebo", True), ("attack", True)}
    assert order[2] == ("attack", False)
    last = watcher.missing[3:]
    assert {spec.role for spec in last} == {"control", "placebo"}
    assert last == [spec for spec in cells(several) if spec in last], "else as the suite has them"
    assert watcher.begun == {watcher.missing[0]}


def test_a_run_loses_no_more_than_the_checkpoint_interval(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(stateful(), tmp_path, Watcher(stop_after=2))
    assert not list(tmp_path.rglob("checkpoint")), "rounds that take a moment are not checkpointed one by one"
    run(stateful(), tmp_path)
    same(stateful(), tmp_path, whole)
    assert checkpoints.CHECKPOINT_SECONDS <= 60, "a killed run loses at most one round or 60 seconds"


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@dataclass(frozen=True)
class Gated:
    """A suite whose defenses log every round they see; the one whose log is called "gated" waits until `gate` is there.

    Attributes:
        words: that run it from the command line.
    """

    of: Suite
    gate: Path
    logs: list[Path]
    words: list[str]


def gated(folder: Path, *names: str, first: int = 1) -> Gated:
    """One whose logs have these names; the gate is before the rounds from `first` on."""
    gate, logs = folder / "gate", [folder / name for name in names]
    waits = f"gate={str(gate)!r}, first={first}"
    defenses = [
        f"{PLUGINS}:Gated(file={str(log)!r}, {waits})" if log.name == "gated" else f"{PLUGINS}:Logs(file={str(log)!r})"
        for log in logs
    ]
    file = tiny.suite_file(folder, defenses=defenses)
    words = ["run", str(file), "--store", str(folder / "store"), "--threads", "1"]
    return Gated(suite(*defenses), gate, logs, words)


def test_a_run_killed_by_the_system_goes_on(tmp_path: Path, nursery: Nursery) -> None:
    made = gated(tmp_path, "first", "gated", first=2)
    _, log = made.logs
    child = nursery.start(*made.words)
    until(lambda: len(lines(log)) == 2)
    assert child.kill() == -signal.SIGKILL
    made.gate.touch()
    watcher = Watcher()
    run(made.of, tmp_path / "store", watcher)
    assert watcher.cached == 2, "the finished cells are kept, the control and the first defended one"
    assert watcher.rounds == 2, "and so is the finished round of the killed cell"
    run(made.of, tmp_path / "other")
    same(made.of, tmp_path / "store", tmp_path / "other")


def test_ctrl_c_stops_politely_and_says_how_to_go_on(tmp_path: Path, nursery: Nursery) -> None:
    made = gated(tmp_path, "gated")
    (log,) = made.logs
    child = nursery.start(*made.words)
    until(lambda: len(lines(log)) == 1)
    os.kill(child.pid, signal.SIGINT)
    until(lambda: "stopping after this round" in child.said)
    made.gate.touch()
    assert child.wait() == 130, child.said
    assert "Traceback" not in child.said
    go_on = next(line for line in child.said.splitlines() if line.startswith("Stopped;"))
    assert go_on.endswith(f"thiefbench {' '.join(made.words)}"), "it says what to type to go on"
    assert "\r" not in child.said, "where there is no terminal, progress is plain lines"
    assert len(lines(log)) == 1, "the round under way is the last"
    run(made.of, tmp_path / "store")
    assert len(lines(log)) == 3, "no round is lost and none is played twice"
    run(made.of, tmp_path / "other")
    same(made.of, tmp_path / "store", tmp_path / "other")


def test_two_runs_on_one_store_share_the_work(tmp_path: Path, nursery: Nursery) -> None:
    made = gated(tmp_path, "gated", "other")

    class Opening(Watcher):
        def note(self, message: str) -> None:
            super().note(message)
            made.gate.touch()

    child = nursery.start(*made.words)
    until(lambda: len(lines(made.logs[0])) == 1)
    watcher = Opening()
    records = run(made.of, tmp_path / "store", watcher)
    assert child.wait() == 0, child.said
    assert ["waiting for it" in note for note in watcher.notes] == [True], "all but the other's cell is done by then"
    for log in made.logs:
        assert Counter(line.split()[1] for line in lines(log)) == {"1": 1, "2": 1, "3": 1}, "no cell is run twice"
    assert len({line.split()[0] for log in made.logs for line in lines(log)}) == 2, "each run took a cell"
    assert [record.status for record in records] == ["ok"] * 3
    again = Watcher()
    assert run(made.of, tmp_path / "store", again) == records, "both end with the same records"
    assert again.cached == 3


def test_a_run_waits_for_a_cell_that_another_run_works_on(tmp_path: Path) -> None:
    lock = ExitStack()
    lock.enter_context(Store(tmp_path).cell(*ids(stateful())).locked())

    class Releasing(Watcher):
        def note(self, message: str) -> None:
            super().note(message)
            lock.close()

    watcher = Releasing()
    (record,) = run(stateful(), tmp_path, watcher)
    assert ["waiting for it" in note for note in watcher.notes] == [True], "who waits for another run says so"
    assert record.status == "ok"


def test_a_cell_that_failed_in_another_run_is_not_tried_again_by_the_one_that_waited(tmp_path: Path) -> None:
    of = suite(RAISES, kind=Attacked)
    directory = Store(tmp_path).cell(*ids(of))
    lock = ExitStack()
    lock.enter_context(directory.locked())

    class Failing(Watcher):
        def note(self, message: str) -> None:
            super().note(message)
            directory.write(failed_record(cells(of)[0], identity(cells(of)[0]), RuntimeError("failed over there")))
            lock.close()

    watcher = Failing()
    (record,) = run(of, tmp_path, watcher)
    assert watcher.rounds == 0, "no cell is run twice"
    assert record.error == "RuntimeError: failed over there", "both runs end with the same record"


def stopped(store: Path) -> CellDir:
    """The stateful cell, stopped after its second round."""
    with pytest.raises(KeyboardInterrupt):
        run(stateful(), store, Watcher(stop_after=2))
    directory = Store(store).cell(*ids(stateful()))
    assert (directory.path / "checkpoint" / "state.json").exists()
    return directory


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated weights": lambda work: cut(next(work.glob("weights-*"))),
    "a bit of the weights": lambda work: flip(next(work.glob("weights-*"))),
    "no weights": lambda work: next(work.glob("weights-*")).unlink(),
    "truncated rows": lambda work: cut(min(work.glob("rows-*"))),
    "no rows": lambda work: min(work.glob("rows-*")).unlink(),
    "truncated state": lambda work: cut(work / "state.json"),
    "empty state": lambda work: (work / "state.json").write_bytes(b""),
    "another state": lambda work: (work / "state.json").write_text("[]"),
    "part of a state": lambda work: (work / "state.json").write_text('{"done": 1, "sha256": {}}'),
    "an edited state": lambda work: edit(work / "state.json", '"done": 2', '"done": 1'),
}  # fmt: skip
IN_SHORT = {"a bit of the weights", "no rows", "part of a state"}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "damage", [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.slow) for name in DAMAGES]
)
def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path, whole: Path, damage: str) -> None:
    directory = stopped(tmp_path)
    DAMAGES[damage](directory.path / "checkpoint")
    watcher = Watcher()
    run(stateful(), tmp_path, watcher)
    same(stateful(), tmp_path, whole)
    aside = f"{directory.path.name}.broken-1"
    assert [aside in note for note in watcher.notes] == [True], "one note says where it was put"
    assert (tmp_path / "cells" / aside / "checkpoint").is_dir(), "nothing is thrown away"


def test_a_cell_killed_between_its_record_and_its_end_is_tidied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(run: Any) -> None:
        raise Killed

    monkeypatch.setattr(checkpoints.CellInProgress, "clear", dying)
    with pytest.raises(Killed):
        run(stateful(), tmp_path)
    monkeypatch.undo()
    directory = Store(tmp_path).cell(*ids(stateful()))
    assert directory.checkpoint.exists()
    watcher = Watcher()
    run(stateful(), tmp_path, watcher)
    assert (watcher.cached, watcher.notes) == (1, []), "it has its record"
    assert not directory.checkpoint.exists(), "and needs no checkpoint any more"


@pytest.mark.usefixtures("eager")
def test_a_run_says_how_far_unfinished_cells_are(tmp_path: Path) -> None:
    stopped(tmp_path)
    watcher = Watcher()
    run(stateful(), tmp_path, watcher)
    assert watcher.unfinished == {cells(stateful())[0]: 2}


def test_a_damaged_record_is_set_aside_and_its_cell_run_again(tmp_path: Path) -> None:
    of = suite()
    records = run(of, tmp_path)
    cut(Store(tmp_path).cell(records[1].cell_id).completions_path)
    watcher = Watcher()
    again = run(of, tmp_path, watcher)
    assert [record.scores for record in again] == [record.scores for record in records]
    assert [spec.role for spec in watcher.missing] == ["attack"], "the intact cell is not run again"
    assert ["set aside as" in note for note in watcher.notes] == [True]


def test_a_defense_that_fails_leaves_an_error_and_no_score(tmp_path: Path) -> None:
    records = run(suite("none", RAISES, "logit"), tmp_path)
    assert [record.status for record in records] == ["ok", "ok", "error", "ok"], "the other cells still run"
    failed = records[2]
    assert failed.error.startswith("RuntimeError: this defense gives up (plugins.py, line ")
    assert 'raise RuntimeError("this defense gives up")' in failed.provenance["own_frames"]
    assert "bench/engine" not in failed.provenance["own_frames"] and "swarm.py" in failed.provenance["traceback"]
    assert failed.scores == {}, "a failure is never a score"
    assert failed.curves == {}
    assert Store(tmp_path).cell(failed.cell_id).read() == failed


def test_a_failed_cell_is_tried_again_unless_told_otherwise(tmp_path: Path) -> None:
    run(suite(RAISES), tmp_path)
    kept, again = Watcher(), Watcher()
    run(suite(RAISES), tmp_path, kept, retry_failed=False)
    assert kept.missing == []
    run(suite(RAISES), tmp_path, again)
    assert [spec.defense for spec in again.missing] == [RAISES]


def test_a_defense_that_exits_is_a_failure_and_not_the_end(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import sys\n\nfrom thiefbench.defenses.base import Defense\n\nclass Own(Defense):\n    name = 'own'\n\n"
        "    def inspect(self, view):\n        sys.exit(0)\n"
    )
    record = run(suite(f"{file}:Own"), tmp_path / "store")[1]
    assert (record.status, record.error) == ("error", "SystemExit: 0 (own.py, line 9)")
    other = tmp_path / "other.py"  # own.py is loaded already
    init = "    def __init__(self):\n        sys.exit(0)\n"
    other.write_text(file.read_text() + "\n" + init)
    with pytest.raises(registry.SpecStringError, match=r"SystemExit: 0 \(other.py, line 12\)"):
        registry.make("defense", f"{other}:Own")


@pytest.mark.parametrize(
    "given", ["[ACCEPT]", "None", "['zero'] * 16", "[Verdict('ban')] * 16", "[Verdict(token_weights=(0.5,))] * 16"]
)
def test_a_defense_that_breaks_the_contract_is_a_failure(tmp_path: Path, given: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from thiefbench.defenses.base import ACCEPT, Defense, Verdict\n\nclass Own(Defense):\n    name = 'own'\n\n"
        f"    def inspect(self, view):\n        return {given}\n"
    )
    record = run(suite(f"{file}:Own"), tmp_path / "store")[1]
    assert record.status == "error", "what breaks the contract is a failure, never a score"
    assert record.error, "and the record says why"


def test_a_user_s_mistake_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no config"):
        run(suite(model=str(tmp_path)), tmp_path / "a")
    with pytest.raises(registry.SpecStringError, match="its arguments: rate"):
        run(suite("random(ratio=1)"), tmp_path / "b")
    with pytest.raises(registry.SpecStringError, match="its arguments: phrase, position"):
        run(suite(attacks=("text(word='x')",)), tmp_path / "c")


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (LinkedFolderError("cells is a link"), True),
        (TaskError("data of the task is missing"), True),
        (OSError(28, "No space left on device"), True),
        (OSError(2, "No such file or directory"), False),
        (SandboxUnavailable("allow user namespaces"), False),
        (ValueError("a defect of a plugin"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_only_what_meets_every_cell_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool
) -> None:
    def fails(*args: Any, **options: Any) -> Record:
        raise error

    monkeypatch.setattr(runner, "run_cell", fails)
    if ends:
        with pytest.raises(type(error)):
            run(suite(kind=Attacked), tmp_path)
        return
    (record,) = run(suite(kind=Attacked), tmp_path)
    assert record.status == "error", "cells that need no sandbox can still be run"
    assert str(error) in record.error


def test_what_a_swarm_cannot_give_is_said_before_the_first_round(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from thiefbench.defenses.base import ACCEPT, Defense\n\nclass Late(Defense):\n    name = 'late'\n"
        "    requires = frozenset({'versions'})\n\n    def inspect(self, view):\n        return []\n"
    )
    watcher = Watcher()
    with pytest.raises(SpecError, match="requires versions"):
        run(suite("none", f"{file}:Late"), tmp_path / "store", watcher)
    assert watcher.rounds == 0


def test_a_full_disk_ends_the_run_and_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = suite()
    run(of, tmp_path / "good")
    write, count = CellDir.write_rows, 0

    def full(self: CellDir, table: Any) -> str:
        nonlocal count
        count += 1
        if count > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, table)

    monkeypatch.setattr(CellDir, "write_rows", full)
    with pytest.raises(OSError, match="No space left"):
        run(of, tmp_path / "store")
    monkeypatch.undo()
    watcher = Watcher()
    run(of, tmp_path / "store", watcher)
    same(of, tmp_path / "store", tmp_path / "good")
    assert watcher.cached == 1, "the cell finished before is kept"


def test_specs_of_cells_reach_the_listener(tmp_path: Path) -> None:
    seen: list[tuple[CellSpec, int, int]] = []

    class Listening(Watcher):
        def cell(self, spec: CellSpec, done: int, total: int) -> None:
            seen.append((spec, done, total))

    watcher = Listening()
    run(suite(), tmp_path, watcher)
    assert [(done, total) for _, done, total in seen] == [(n, 3) for n in range(4)] * 2
    assert [record.status for record in watcher.ended] == ["ok", "ok"]
