"""A swarm whose nodes are processes: the same completions as in one, and a clear end where a rank is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench import tiny
from tests.bench.nursery import Child, Nursery, alive, until
from tests.bench.tiny import PLUGINS
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.backends.rank import DriftError, _check_same, weights_digest
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.registry import make
from thiefbench.reward_judges import NO_DECISION
from thiefbench.suite.store.records import Record, Store
from thiefbench.tasks.base import Sampling

NODES = 3
SWARM = {"nodes": NODES, "malicious": 1, "prompts": 6, "group": 6, "sampling": {"max_new_tokens": 20}}
COLLUDING = SWARM | {"nodes": 4, "malicious": 2, "prompts": 4, "group": 4}
ROUNDS = 4
COUNTS = f"{PLUGINS}:Counts"
ADAPTIVE = f'adaptive(attack="{tiny.ATTACK}", budget=2)'
PICKS = "varied(attack='item_grind(candidates=2)', gibberish=0.5)"


def file(folder: Path, **changes: Any) -> Path:
    return tiny.suite_file(folder, **{"swarm": SWARM, "rounds": ROUNDS} | changes)


def ranks(nursery: Nursery, file: Path, store: Path, count: int = NODES, timeout: int = 120) -> list[Child]:
    """As torchrun would start them; one is lost after `timeout` silent seconds, and a busy machine is silent too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = ("--store", store, "--threads", 1, "--rank-timeout", timeout)
    return [
        nursery.start("run", file, *own, RANK=rank, WORLD_SIZE=count, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in range(count)
    ]


def ended(children: Sequence[Child]) -> list[int]:
    return [child.wait() for child in children]


def everything(children: Sequence[Child]) -> str:
    return "\n".join(f"rank {rank}: {child.said}" for rank, child in enumerate(children))


def alone(nursery: Nursery, file: Path, store: Path) -> Path:
    """A store that one process has filled, sampling node by node."""
    child = nursery.start("run", file, "--store", store, "--threads", 1, "--batches", "node")
    assert child.wait() == 0, child.said
    return store


def records(store: Path) -> dict[str, Record]:
    return {record.cell_id: record for record in Store(store).records()}


def same(one: Path, other: Path) -> None:
    """Two stores hold the same cells, byte by byte."""
    left, right = records(one), records(other)
    assert left.keys() == right.keys(), "under torchrun a cell is the one that --batches node runs"
    for cell, record in left.items():
        assert record.status == right[cell].status == "ok", right[cell].error
        assert record.scores == right[cell].scores, f"equal scores of {record.cell['defense']}"
        assert record.curves == right[cell].curves
        assert record.completions_sha256 == right[cell].completions_sha256, "and every completion"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"attacks": [ADAPTIVE], "defenses": [COUNTS, "oracle"], "swarm": COLLUDING, "rounds": 2},
            id="horizontal",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "attacks": [PICKS],
                "placebo": True,
                "defenses": ["toploc+seed_replay"],
                "swarm": SWARM | {"topology": "vertical"},
            },
            id="vertical",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "attacks": [f"{PLUGINS.with_name('forging.py')}:Forges"],
                "placebo": True,
                "defenses": ["none", "public_items+reputation"],
                "swarm": SWARM | {"topology": "vertical", "truth": "sender"},
            },
            id="truth from senders",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "attacks": ["master_key(keys='30 - 5 = 25.')"],
                "defenses": ["none", "rule_check"],
                "rounds": 2,
                "swarm": SWARM | {"reward": "mixed", "reward_judge": {"max_new_tokens": 32}},
            },
            id="rewards from a judge",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_make_what_one_process_makes(nursery: Nursery, tmp_path: Path, changes: dict[str, Any]) -> None:
    suite, count = file(tmp_path, **changes), changes["swarm"]["nodes"]
    children = ranks(nursery, suite, tmp_path / "ranks", count=count)
    assert ended(children) == [0] * count, everything(children)
    assert [child.said for child in children[1:]] == [""] * (count - 1), "only rank 0 speaks"
    same(alone(nursery, suite, tmp_path / "alone"), tmp_path / "ranks")
    for record in records(tmp_path / "ranks").values():
        assert record.provenance["ranks"] == count, "the record says how it was made"
        rows = Store(tmp_path / "ranks").cell(record.cell_id).read_rows().to_pylist()
        trained = [row for row in rows if row["phase"] == "train"]
        refused = {row["refused"] for row in trained} - {"", "a control token inside the completion", NO_DECISION}
        assert not refused, "everything that was sent arrived"
        if record.cell["defense"] == COUNTS:
            assert any(row["payload"] for row in trained), "the malicious rank told which completions carry the payload"
            assert any(point.value for point in record.curves["grad_norm"]), "and everybody learned"


def test_batches_by_node_give_the_cohort_s_tokens_up_to_near_ties() -> None:
    torch.set_num_threads(1)
    spec = SwarmSpec(nodes=4, malicious=0, prompts=8, group=8, sampling=Sampling(max_new_tokens=20))
    rounds = {}
    for batches in ("cohort", "node"):
        parts = Policy.load(tiny.model()), make("task", tiny.TASK), make("attack", tiny.ATTACK), SeedReplay()
        swarm = Swarm(spec, "control", *parts, seed=0, backend=LocalBackend(batches))  # type: ignore[arg-type]
        rounds[batches] = swarm.round(1).rows
        assert {row.action for row in rounds[batches]} == {"accept"}, "every token is what its noise draws, or as near"
    other = sum(one.ids != two.ids for one, two in zip(rounds["cohort"], rounds["node"], strict=True))
    assert other <= len(rounds["node"]) // 20, f"{other} completions have a near-tie that fell otherwise"


@dataclass(frozen=True)
class Gated:
    """A suite whose one defense logs (process, round), and from round 2 on waits until `gate` is there.

    Attributes:
        whole: a store that one process has filled with it.
    """

    suite: Path
    log: Path
    gate: Path
    whole: Path

    def shut(self) -> Gated:
        """As before anything ran."""
        for path in (self.log, self.gate):
            path.unlink(missing_ok=True)
        return self

    def at_round(self, number: int, child: Child) -> bool:
        """Whether a process has come to a round."""
        return self.log.exists() and f"{child.pid} {number}\n" in self.log.read_text()


@pytest.fixture(scope="module")
def made_once(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Gated:
    folder = tmp_path_factory.mktemp("gated")
    log, gate = folder / "log", folder / "gate"
    gate.touch()
    suite = file(folder, defenses=[f"{PLUGINS}:Gated(file={str(log)!r}, gate={str(gate)!r}, first=2)"], seeds=[0])
    return Gated(suite, log, gate, alone(nursery, suite, folder / "alone"))


@pytest.fixture
def gated(made_once: Gated) -> Gated:
    return made_once.shut()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_its_cell_and_the_next_run_goes_on(
    nursery: Nursery, tmp_path: Path, gated: Gated, how: signal.Signals
) -> None:
    store = tmp_path / "store"
    # Only of one that is stopped nobody hears that it is gone; a busy machine is silent for seconds too.
    children = ranks(nursery, gated.suite, store, **({"timeout": 30} if how == signal.SIGSTOP else {}))
    lost = children[1]
    until(lambda: gated.at_round(2, lost))
    os.kill(lost.pid, how)
    gated.gate.touch()
    others = [child for child in children if child is not lost]
    until(lambda: not any(alive(child.pid) for child in others))
    lost.kill()
    assert ended(others) == [1] * (NODES - 1), everything(children)
    (failed,) = [record for record in records(store).values() if record.status == "error"]
    what = "died or lost its connection" if how == signal.SIGKILL else "stands still or cannot be reached"
    assert f"rank 1 {what} in round" in failed.error, "the record names the rank and the round"
    assert "run the same command again to go on" in failed.error
    assert failed.scores == {}, "a lost rank is never a score"
    assert "Traceback" not in everything(children)
    gated.log.unlink()
    again = ranks(nursery, gated.suite, store)
    assert ended(again) == [0] * NODES, everything(again)
    assert not gated.at_round(1, again[0]), "it goes on from its checkpoint"
    same(gated.whole, store)


@pytest.mark.slow
def test_ranks_that_are_all_killed_go_on_with_the_same_result(nursery: Nursery, tmp_path: Path, gated: Gated) -> None:
    children = ranks(nursery, gated.suite, tmp_path / "store")
    until(lambda: gated.at_round(2, children[0]))
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    assert ended(children) == [-9] * NODES
    gated.shut().gate.touch()
    again = ranks(nursery, gated.suite, tmp_path / "store")
    assert ended(again) == [0] * NODES, everything(again)
    assert not gated.at_round(1, again[0]), "they go on from rank 0's checkpoint"
    same(gated.whole, tmp_path / "store")


@pytest.mark.slow
def test_without_rank_0_the_others_end_with_one_sentence(nursery: Nursery, tmp_path: Path, gated: Gated) -> None:
    children = ranks(nursery, gated.suite, tmp_path / "store")
    until(lambda: gated.at_round(2, children[0]))
    os.kill(children[0].pid, signal.SIGKILL)
    gated.gate.touch()
    until(lambda: not any(alive(child.pid) for child in children))
    assert ended(children) == [-9, 1, 1], everything(children)
    for rank, child in enumerate(children[1:], 1):
        assert "Traceback" not in child.said, child.said
        (line,) = [line for line in child.said.splitlines() if line.startswith(f"rank {rank}: ")]
        assert line.endswith("run the same command again to go on")


@pytest.mark.slow
def test_ctrl_c_on_any_rank_stops_all_in_order_and_one_process_can_go_on(
    nursery: Nursery, tmp_path: Path, gated: Gated
) -> None:
    children = ranks(nursery, gated.suite, tmp_path / "store")
    until(lambda: gated.at_round(2, children[2]))
    os.kill(children[2].pid, signal.SIGINT)
    gated.gate.touch()
    assert ended(children) == [130, 0, 0], everything(children)
    assert "To continue:" in children[0].said
    same(gated.whole, alone(nursery, gated.suite, tmp_path / "store"))


@pytest.mark.slow
def test_a_rank_that_drifts_ends_the_cell_by_name_and_others_are_run(nursery: Nursery, tmp_path: Path) -> None:
    suite = file(tmp_path, defenses=[f"{PLUGINS}:Drifts", f"{PLUGINS}:Raises", "logit"])
    children = ranks(nursery, suite, tmp_path / "store")
    assert ended(children) == [1, 0, 0], everything(children)
    found = {r.cell["defense"].rpartition(":")[2]: r for r in records(tmp_path / "store").values()}
    assert found["Drifts"].error.startswith("DriftError: rank 1 holds other weights than the rest after round 2;")
    raised = found["Raises"].error
    assert raised.startswith("RuntimeError: this defense gives up (plugins.py, line "), "all ranks raise it; rank 0's"
    assert found["logit"].status == "ok", "the next cell finds all ranks in step"


def test_a_digest_tells_one_bit_and_the_odd_one_out_is_named() -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    digest = weights_digest(weights)
    turned = {**weights, "a": weights["a"].flip(0)}
    bit = {**weights, "b": torch.tensor([1.0, 1.0, 1.0078125], dtype=torch.bfloat16)}
    assert len({digest, weights_digest(turned), weights_digest(bit)}) == 3, "places and last bits count"
    assert weights_digest({name: tensor.clone() for name, tensor in weights.items()}) == digest
    _check_same([digest, digest, ""], 4)
    with pytest.raises(DriftError, match="rank 0 holds other weights than the rest after round 4"):
        _check_same(["0" * 32, digest, digest], 4)
    with pytest.raises(DriftError, match="rank 1 "):
        _check_same([digest, "0" * 32], 4)


@pytest.mark.parametrize(
    ("count", "words", "changes", "sentence"),
    [
        (2, (), {}, "this swarm has 3 nodes and 2 ranks were started; write --nproc-per-node 3"),
        (3, ("--workers", 2), {}, "under torchrun one cell is run at a time"),
        (3, ("--executor", "ray"), {}, "under torchrun one cell is run at a time"),
        (3, ("--plan",), {}, "under torchrun one cell is run at a time"),
        (3, ("--batches", "cohort"), {}, "under torchrun one cell is run at a time"),
        (3, (), {"swarm": SWARM | {"delay": {"rounds": 1}}}, "under torchrun a swarm is homogeneous and synchronous"),
    ],
)
def test_what_ranks_cannot_do_is_one_sentence(
    nursery: Nursery, tmp_path: Path, count: int, words: tuple[object, ...], changes: dict[str, Any], sentence: str
) -> None:
    environment = {"RANK": 0, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    child = nursery.start("run", file(tmp_path, **changes), "--threads", 1, *words, **environment)
    assert child.wait() == 2, child.said
    (line,) = child.said.strip().splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_ranks_of_another_command_are_told_apart(nursery: Nursery, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = [file(one), file(one), file(other, rounds=ROUNDS + 1)]
    children = [
        nursery.start("run", path, "--store", tmp_path / "store", "--threads", 1,
                      RANK=rank, WORLD_SIZE=NODES, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank, path in enumerate(files)
    ]  # fmt: skip
    assert ended(children) == [1, 0, 0], everything(children)
    for record in records(tmp_path / "store").values():
        assert record.error.startswith("RankFailedError: rank 2: SpecError: its command line, files or versions differ")


@pytest.mark.slow
def test_torchrun_itself(tmp_path: Path) -> None:
    suite = tiny.suite_file(tmp_path, rounds=2)
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "thiefbench",
         "run", str(suite), "--store", str(store), "--threads", "1"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    of = tiny.suite(rounds=2)
    cells = of.cells("cpu", "float32", 1, "node")
    assert [record.status for record in Store(store).records()] == ["ok"] * len(cells)
    from thiefbench.suite.execution.runner import run_suite

    run_suite(of, cells, Store(tmp_path / "alone"), tiny.Watcher())
    same(tmp_path / "alone", store)
