"""Recorded rounds: which weights a cell keeps, and how it gets those it lacks."""

from __future__ import annotations

import copy
import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.bench import tiny
from tests.bench.tiny import Attacked, Watcher, cells, run, suite
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SpecError
from thiefbench.suite.execution import cell_run, checkpoints
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.scenario import Suite
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Store, file_sha256, identify


@cache
def recording(*rounds: int) -> Suite:
    """The undefended attacked cell alone, with the weights of some rounds."""
    return suite(kind=Attacked, recorded=rounds)


def cell(store: Path) -> CellDir:
    return Store(store).cell(identify(identity(cells(recording())[0])))


def digests(store: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in (cell(store).path / "weights").glob("*.safetensors")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the cell with the weights of rounds 1 and 3, run without an interruption."""
    store = tmp_path_factory.mktemp("whole")
    run(recording(1, 3), store)
    return store


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)


def test_recorded_rounds_are_no_part_of_what_is_measured() -> None:
    plain, recorded = suite(), suite(recorded=(1, 3))
    assert [identity(c) for c in cells(plain)] == [identity(c) for c in cells(recorded)], "the cells are the same"
    assert plain.fingerprint() == recorded.fingerprint(), "and so is the suite"


@pytest.mark.parametrize("number", [0, 4])
def test_a_recorded_round_is_one_of_the_suite_s(number: int) -> None:
    with pytest.raises(SpecError, match=f"recorded must name rounds from 1 to 3, got {number}"):
        suite(recorded=(number,))


def test_undefended_cells_keep_weights_and_no_others(tmp_path: Path) -> None:
    of = suite("none", "logit", placebo=True, recorded=(2,))
    keeping = {
        (record.cell["role"], record.cell["defense"])
        for record in run(of, tmp_path)
        if weights.kept(Store(tmp_path).cell(record.cell_id))
    }
    assert keeping == {("attack", "none"), ("placebo", "none")}, "pools are replayed where nothing was rejected"


def test_weights_are_those_the_round_begins_with(whole: Path) -> None:
    assert weights.kept(cell(whole)) == [1, 3]
    swarm = build_swarm(cells(recording())[0])
    for number in (1, 2, 3):
        if number in (1, 3):
            found = load_file(cell(whole).path / "weights" / f"round-{number:06d}.safetensors")
            own = swarm.policy.weights()
            assert found.keys() == own.keys()
            for name, tensor in own.items():
                assert torch.equal(found[name], tensor), f"{name} of round {number} is what the round sampled with"
        swarm.round(number)


def test_weights_go_back_into_a_model(whole: Path) -> None:
    policy = Policy.load(tiny.model())
    before = {name: tensor.clone() for name, tensor in policy.weights().items()}
    weights.load(cell(whole), 3, policy)
    assert any(not torch.equal(before[name], tensor) for name, tensor in policy.weights().items()), "it has learned"
    weights.load(cell(whole), 1, policy)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.weights().items()), "round 1: the start"


def test_weights_keep_the_policy_s_dtype(tmp_path: Path) -> None:
    kept = CellDir(tmp_path)
    policy = Policy.load(tiny.model(), dtype="bfloat16")
    weights.keep(kept, 7, policy)
    found = load_file(tmp_path / "weights" / "round-000007.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


def test_compressed_weights_are_the_same_weights(tmp_path: Path) -> None:
    plain, packed, copied = (CellDir(tmp_path / name) for name in ("plain", "packed", "copied"))
    policy = Policy.load(tiny.model())
    weights.keep(plain, 2, policy)
    weights.keep(packed, 2, policy)
    weights.keep(packed, 2, policy, compressed=True)
    (file,) = packed.weights.glob("round-*")
    assert gzip.decompress(file.read_bytes()) == (plain.weights / "round-000002.safetensors").read_bytes()
    assert weights.kept(packed) == weights.adopt(copied, packed) == weights.kept(copied) == [2]
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for tensor in other.weights().values():
            tensor.zero_()
    weights.load(copied, 2, other)
    for name, tensor in other.weights().items():
        assert torch.equal(tensor, policy.weights()[name])


@pytest.mark.parametrize("left", [0, 5, 500, -1])
def test_damaged_compressed_weights_are_refused(tmp_path: Path, policy: Policy, left: int) -> None:
    kept = CellDir(tmp_path)
    weights.keep(kept, 2, policy, compressed=True)
    (file,) = kept.weights.glob("round-*")
    file.write_bytes(file.read_bytes()[:left])
    assert weights.kept(kept) == []
    with pytest.raises(BrokenRecordError, match="missing or damaged"):
        weights.load(kept, 2, policy)


def test_another_model_s_weights_are_refused(tmp_path: Path, policy: Policy) -> None:
    weights.keep(CellDir(tmp_path), 1, policy)
    with pytest.raises(BrokenRecordError, match="another model"):
        weights.load(CellDir(tmp_path), 1, Policy.load(tiny.model()))
    with pytest.raises(BrokenRecordError, match="missing or damaged"):
        weights.load(CellDir(tmp_path), 2, policy)


def test_a_finished_cell_gets_the_weights_it_lacks(tmp_path: Path, whole: Path) -> None:
    (before,) = run(recording(), tmp_path)
    assert digests(tmp_path) == {}
    untouched = cell(tmp_path).record_path.read_bytes()
    watcher = Watcher()
    assert run(recording(1, 3), tmp_path, watcher) == [before]
    assert digests(tmp_path) == digests(whole), "to the byte those of a cell that kept them while it ran"
    assert cell(tmp_path).record_path.read_bytes() == untouched, "the record stays"
    assert (len(watcher.missing), watcher.cached, watcher.notes) == (1, 0, [])
    again = Watcher()
    run(recording(1, 3), tmp_path, again)
    assert (len(again.missing), again.cached, again.rounds) == (0, 1, 0), "and nothing is played a third time"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "round-000003.safetensors").unlink(),
        lambda folder: (folder / "round-000003.safetensors").write_bytes(b"torn"),
        lambda folder: (folder / "index.json").write_text("{}"),
    ],
    ids=["missing", "torn", "no index"],
)
def test_damaged_weights_are_made_anew(tmp_path: Path, whole: Path, damage: Callable[[Path], object]) -> None:
    run(recording(1, 3), tmp_path)
    damage(cell(tmp_path).path / "weights")
    assert weights.kept(cell(tmp_path)) != [1, 3], "what fails its checksum is not read"
    run(recording(1, 3), tmp_path)
    assert digests(tmp_path) == digests(whole)


def test_rounds_that_come_out_otherwise_keep_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(recording(), tmp_path)
    monkeypatch.setattr(cell_run, "build_swarm", lambda spec: build_swarm(replace(spec, seed=9)))
    watcher = Watcher()
    run(recording(1, 2, 3), tmp_path, watcher)
    assert weights.kept(cell(tmp_path)) == [1], "the start weights need no round before them"
    (note,) = watcher.notes
    assert note.endswith("its rounds differ from the stored ones here; no weights are kept for round 2, 3")


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_killed_at_any_write_ends_with_the_same_weights(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, left = os.fsync, 0

    def dying(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        fsync(descriptor)

    # Run, three checkpoints, completions and record, weights and index of two rounds; for other cells the trajectory,
    # and checksum and state after two rounds.
    writes = 1 + 3 * 3 + 2 + 2 * 2 + 1 + 2 * 2
    for killed in range(writes + 1):
        store = tmp_path / str(killed)
        left = killed
        monkeypatch.setattr(os, "fsync", dying)
        if killed == writes:
            run(recording(1, 3), store)
        else:
            with pytest.raises(Killed):
                run(recording(1, 3), store)
        monkeypatch.setattr(os, "fsync", fsync)
        run(recording(1, 3), store)
        assert digests(store) == digests(whole), f"a kill at write {killed} loses no weights"
        tiny.same(recording(), store, whole)
