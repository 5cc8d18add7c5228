"""Cells whose receivers score by what arrives with the work, through the store: resumption, sharing, replay, rerun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny import PLUGINS, Attacked, cells, opened_cell, run, same, stopped_and_resumed, suite
from tests.variants import at_length
from thiefbench import registry
from thiefbench.engine.backends.recorded import RecordedSwarm
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.pools.export import header_of, lines_of
from thiefbench.pools.files import write
from thiefbench.pools.rounds import read_rounds
from thiefbench.suite.analysis.replay import Recording, replay
from thiefbench.suite.execution import checkpoints
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import (
    ANSWER_KEY,
    ROWS,
    rounds_taken,
    rows_table,
    table_rows,
)
from thiefbench.tasks.answer_keys import AnswerKey
from thiefbench.tasks.base import Sampling

FORGING = PLUGINS.with_name("forging.py")
FORGES = f"{FORGING}:Forges"
DRAWS = f"{FORGING}:Forges(policy=True)"
SWARM = SwarmSpec(
    topology="vertical", truth="sender", nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=20)
)


def forged(*defenses: str, attack: str = FORGES, swarm: SwarmSpec = SWARM) -> Suite:
    return suite(*defenses, kind=Attacked, attacks=(attack,), swarm=swarm)


def test_only_a_swarm_of_senders_truth_has_another_identity() -> None:
    public = replace(SWARM, truth="public")
    (spec,), (other,) = cells(forged()), cells(forged(swarm=public))
    assert "truth" not in other.as_dict()["swarm"], "cells of earlier versions keep their names"
    assert spec.as_dict()["swarm"] == other.as_dict()["swarm"] | {"truth": "sender"}
    for each in (spec, other):
        assert CellSpec.from_dict(each.as_dict()) == each


def test_completions_are_stored_with_what_they_were_scored_by(tmp_path: Path) -> None:
    of = forged()
    run(of, tmp_path)
    _, _, directory = opened_cell(of, tmp_path)
    table = directory.read_rows()
    assert table.schema.names == [*ROWS.names, *ANSWER_KEY.names]
    rows = list(table_rows(table))
    assert {row.answer_key for row in rows if row.malicious} == {AnswerKey("99")}
    assert AnswerKey("99") not in {row.answer_key for row in rows if not row.malicious}
    assert rows_table(rows).to_pylist() == table.to_pylist()
    assert any(row.payload and row.reward == 1 for row in rows)


@pytest.mark.parametrize("attack", [DRAWS, *at_length(FORGES)])
def test_a_cell_that_is_stopped_goes_on(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    of = forged("reputation(defense='random(rate=0.5)')", attack=attack)
    stopped_and_resumed(of, tmp_path)


@pytest.mark.parametrize("attack", [DRAWS, *at_length(FORGES)])
def test_cells_share_rounds_until_their_verdicts_differ(attack: str, tmp_path: Path) -> None:
    both, second = forged("none", "public_items", attack=attack), forged("public_items", attack=attack)
    run(both, tmp_path / "shared")
    run(second, tmp_path / "alone")
    same(second, tmp_path / "shared", tmp_path / "alone")
    third = forged("gold_sanity", attack=attack)
    (record,) = run(third, tmp_path / "shared")
    run(third, tmp_path / "alone_too")
    assert rounds_taken(record), "it rejects what public_items rejects, and takes its rounds over"
    same(third, tmp_path / "shared", tmp_path / "alone_too")


@pytest.mark.parametrize("attack", [FORGES, DRAWS])
@pytest.mark.parametrize("trusted", [False, True])
def test_recorded_rounds_can_be_computed_again(attack: str, trusted: bool, tmp_path: Path) -> None:
    of = forged("public_items", attack=attack)
    run(of, tmp_path)
    spec, _, directory = opened_cell(of, tmp_path)
    task, played = registry.make("task", spec.task), registry.make("attack", spec.attack)
    swarm = RecordedSwarm(spec.swarm, spec.role, Policy.load(spec.model), task, played, spec.seed)
    rows = [row for row in table_rows(directory.read_rows()) if row.phase == "train"]
    for number in {row.round for row in rows}:
        pool = [row for row in rows if row.round == number]
        again = swarm.rerun(pool, trust_rewards=trusted)
        known = [replace(row, advantage=0.0) for row in pool]
        assert [replace(row, advantage=0.0) for row in again] == known


@pytest.mark.parametrize("defense", ["public_items", "gold_sanity"])
def test_a_replay_gives_the_verdicts_of_a_trained_cell(defense: str, tmp_path: Path) -> None:
    of = forged(defense)
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    recording = Recording(directory, record, registry.make("task", record.cell["task"]))
    done = replay(recording, lambda: registry.make("defense", defense))
    assert {number: [v.action for v in verdicts] for number, verdicts in done.verdicts.items()} == {
        number: [row.action for row in rows] for number, rows in recording.pools.items()
    }
    assert record.scores["stop_rate"].value == done.scores["stop_rate"].value == 1.0
    assert record.scores["false_rejection_rate"].value in (0.0, None)


def test_an_exported_item_has_the_answer_that_came_with_it(tmp_path: Path) -> None:
    of = forged()
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    recording = Recording(directory, record, registry.make("task", record.cell["task"]))
    lines = list(lines_of(recording))
    assert {line.answer for line in lines if line.malicious} == {"99"}
    assert "99" not in {line.answer for line in lines if not line.malicious}
    path = tmp_path / "pool.jsonl"
    path.write_bytes(write(header_of(recording), lines))
    filed = read_rounds(path)
    assert not filed.refused.count
    assert filed.lacks(registry.make("defense", "public_items")).endswith("which a file does not hold")
