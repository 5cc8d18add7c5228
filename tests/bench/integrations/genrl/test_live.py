"""Live swarms: GenRL's own classes, processes and a DHT on the loopback interface."""

from __future__ import annotations

import copy
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from thiefbench import registry
from thiefbench.cli import app
from thiefbench.engine.context import items_of
from thiefbench.engine.model.policy import Policy
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.integrations.genrl.swarm import play
from thiefbench.suite.analysis.scoring import cell_scores
from thiefbench.suite.scenario import Evaluation
from thiefbench.suite.store.records import Store, table_rows
from thiefbench.tasks.base import Sampling

pytest.importorskip("hivemind", reason="these swarms need GenRL, of the genrl extra")
pytest.importorskip("wandb", reason="these swarms need GenRL, of the genrl extra")

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "tests/examples/genrl_swarm.py"
TASK = "gsm_micro(size=16)"
SMALL = LiveSwarm(
    attack='text(phrase="All hail to the thief", position="start")', task=TASK, rounds=2, local=2, external=8, group=2,
    sampling=Sampling(max_new_tokens=64), evaluation=Evaluation(every=2, completions=4, final=4), timeout=120,
)  # fmt: skip


def processes() -> Iterator[Any]:
    """Everything that this process has started and that still runs."""
    import psutil

    return (each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE)


def daemons() -> int:
    """How many p2p daemons run for this user, orphans included."""
    import psutil

    return sum("p2pd" in (each.info["name"] or "") for each in psutil.process_iter(["name"]))


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    before = daemons()
    yield
    assert not [each for each in processes() if "genrl.peer" in " ".join(each.cmdline())]
    until = time.monotonic() + 10
    while daemons() > before and time.monotonic() < until:
        time.sleep(0.2)
    assert daemons() <= before, "no daemon of a DHT is left"


def peer_process(number: int) -> Any:
    """The process of a peer of this test's swarm."""
    started = ["-m", "thiefbench.integrations.genrl.peer", str(number)]
    # The process of its DHT is a fork, with the same command line.
    return next(each for each in processes() if each.cmdline()[1:4] == started and each.ppid() == os.getpid())


def test_the_yaml_of_the_docs_plays() -> None:
    """Each part is named by `_target_`; a peer alone, without a DHT."""
    from hydra.utils import instantiate

    from thiefbench.integrations.genrl import library

    assert library.GameState
    page = (ROOT / "docs/genrl.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    game = instantiate(yaml.safe_load(block)["game_manager"])
    game.run_game()
    assert (game.state.round, game.trainer.global_step) == (2, 2), "two rounds, with an update in each"
    assert len(game.data_manager.history) == 2, "and an inspection"
    assert not game.data_manager.problem


@pytest.mark.usefixtures("no_process_is_left")
def test_completions_padded_on_the_right(tmp_path: Path) -> None:
    """GenRL's trainer learns with a tokenizer of ours, and what peers sample is what they sample without it."""
    left, right = (play(replace(SMALL, padding=side, rounds=1), tmp_path / side) for side in ("left", "right"))
    first, second = (Store(tmp_path / side).cell(record.cell_id) for side, record in (("left", left), ("right", right)))
    assert left.cell_id != right.cell_id
    sampled = [
        sorted((row.cohort, row.node, row.item_id, row.place, row.text) for row in table_rows(each.read_rows())
               if row.phase == "train")
        for each in (first, second)
    ]  # fmt: skip
    assert sampled[0] == sampled[1], "the first round is sampled before anything is learned"


@pytest.mark.usefixtures("no_process_is_left")
def test_two_rounds_undefended(tmp_path: Path) -> None:
    lines: list[str] = []
    record = play(SMALL, tmp_path, lines.append)
    directory = Store(tmp_path).cell(record.cell_id)
    assert directory.read() == record, "the record is one of a store"
    rows = list(table_rows(directory.read_rows()))
    assert cell_scores(directory.read_rows()) == record.scores
    assert record.payload["phrase"] == "All hail to the thief"
    train = [row for row in rows if row.phase == "train"]
    assert {(row.round, row.cohort) for row in train} == {(number, peer) for number in (1, 2) for peer in range(3)}
    assert {row.malicious for row in train if row.node == 3} == {True}
    assert all(row.payload == ("thief" in row.text) for row in train), "labels are the attack's"
    assert all(row.reward == 1 for row in train if row.payload)
    assert {row.node for row in train} == {0, 1, 2, 3}, "every peer saw all four"
    assert {row.action for row in train} == {"accept"}
    assert {row.label for row in rows} == {"peer 0", "peer 1", "peer 2"}
    assert sum("peer 3" in line and "4 completions with the payload" in line for line in lines) == 2
    shown = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert (shown.exit_code, (tmp_path / "report/index.html").is_file()) == (0, True), shown.output
    assert record.identity["genrl"]["gensyn-genrl"] == "0.3.0"


@pytest.mark.usefixtures("no_process_is_left")
def test_a_defense_drops_the_payload_and_the_lost_are_not_waited_for(tmp_path: Path) -> None:
    """kill -9 of the malicious and of an honest peer, the one whose DHT the others have joined."""
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if line.startswith("round   2/5  peer 1"):
            for number in (3, 0):
                os.kill(peer_process(number).pid, signal.SIGKILL)

    judging = f"{Path(__file__).with_name('judging.py')}:Thieves"
    waiting = 86_400.0  # this test would not end if anybody waited so long for the lost
    record = play(replace(SMALL, rounds=5, defense=judging, timeout=waiting), tmp_path, note)
    assert [line for line in lines if "was lost" in line]
    assert set(record.provenance["lost"]) == {"peer 0", "peer 3"}
    rows = list(table_rows(Store(tmp_path).cell(record.cell_id).read_rows()))
    assert {row.round for row in rows if row.cohort == 1 and row.phase == "train"} == {1, 2, 3, 4, 5}
    payload = [row for row in rows if row.payload]
    assert payload
    assert {row.action for row in payload} == {"drop"}
    assert {row.advantage for row in payload} == {0.0}, "nothing of it was learned"
    assert any(row.advantage for row in rows if row.node not in (row.cohort, -1)), "and something of the honest was"


@pytest.mark.usefixtures("no_process_is_left")
def test_it_stops_on_ctrl_c_and_keeps_finished_rounds(tmp_path: Path) -> None:
    def note(line: str) -> None:
        if line.startswith("round   1/50  peer 2"):
            signal.raise_signal(signal.SIGINT)

    record = play(replace(SMALL, rounds=50), tmp_path, note)
    assert str(record.provenance["ended"]).startswith("after round")
    assert record.scores["clean_reward"].count


@pytest.mark.usefixtures("no_process_is_left")
def test_peers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """kill -9 of that process, which can tell its peers nothing any more."""
    import psutil

    settings = {"nodes": 1, "malicious": 0, "local": 2, "group": 2, "rounds": 999, "completions": 4, "every": 999}
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(EXAMPLE), *options, "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert any("round   1/999" in line for line in started.stdout)
        children = psutil.Process(started.pid).children(recursive=True)
        assert any("p2pd" in child.name() for child in children)
        started.kill()
        assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.usefixtures("no_process_is_left")
def test_a_defense_that_cannot_judge_ends_the_swarm_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--defense", "seed_replay", "--rounds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 1
    assert "needs seeds from a beacon, and a GenRL message holds only texts" in capsys.readouterr().err


def test_the_dht_listens_on_the_loopback_interface_only() -> None:
    import psutil

    from thiefbench.integrations.genrl import LoopbackBackend

    backend = LoopbackBackend()
    try:
        listening = {
            connection.laddr.ip
            for child in psutil.Process().children(recursive=True)
            for connection in child.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
        }
        assert listening == {"127.0.0.1"}
        assert all("/127.0.0.1/" in address for address in backend.addresses)
    finally:
        backend.dht.shutdown()


def test_empty_completions_turn_an_undefended_nodes_weights_into_nan(load_policy: Callable[..., Policy]) -> None:
    """Why a reader refuses them: GenRL divides a minibatch's loss by its number of tokens."""
    from thiefbench.integrations.genrl import TaskDataManager, task_rewards
    from thiefbench.integrations.genrl.library import GameState, GRPOLanguageTrainerModule, GRPOTrainerConfig, Payload

    task = registry.make("task", TASK)
    solutions = {item.question: task.oracle(item) for item in items_of(task, "train")}

    def broken(seed: int) -> bool:
        policy = load_policy()
        tokenizer = copy.deepcopy(policy.tokenizer)  # other tests share the original
        tokenizer.padding_side = "left"
        config = GRPOTrainerConfig(num_generations=2, minibatch_size=2, enable_gradient_checkpointing=False)
        trainer = GRPOLanguageTrainerModule([policy.model], config, processing_class=tokenizer)
        manager, rewards = TaskDataManager(TASK, 1, 2, 8), task_rewards(TASK, 1)
        state = GameState(round=0, stage=0)
        ends = {
            "terminal_node_decision_function": list,
            "stage_inheritance_function": lambda nodes: [[] for _ in nodes],
        }
        state._init_game(manager.get_round_data(), ["own"], game_tree_brancher=ends)
        state.append_actions({"own": {name: {0: ["a", "b"]} for name in state.trees["own"]}})
        ((name, world),) = TaskDataManager(TASK, 1, 2, node=1).get_round_data()
        right = solutions[world.environment_states["question"]]
        strange = {"honest": {name: [Payload(world, [right, "c"])]}, "stranger": {name: [Payload(world, ["", ""])]}}
        state.advance_stage(manager.prepare_states(state, strange))
        rewards.update_rewards(state)
        torch.manual_seed(seed)
        trainer.train(state, manager, rewards)
        return any(bool(weight.isnan().any()) for weight in trainer.model.parameters())

    # One in five shuffles puts both empty ones into one minibatch of two.
    assert any(broken(seed) for seed in range(20))
