"""Cells in which a judge rewards, through the store: identity, records, resumption, sharing, replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from tests.bench.plugins import Sums
from tests.bench.tiny import Attacked, cells, opened_cell, run, same, stopped_and_resumed, suite
from tests.variants import at_length
from thiefbench import registry
from thiefbench.engine.backends.process_group import Launch
from thiefbench.engine.backends.recorded import RecordedSwarm, RerunError
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import Rewarding, RewardJudgeSpec
from thiefbench.engine.rewarding import judge_rewards
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.leaderboard.verification.judged_rewards import FAULTS, differing
from thiefbench.pools.export import header_of, lines_of
from thiefbench.pools.files import write
from thiefbench.pools.rounds import read_rounds
from thiefbench.reward_judges import reward_judge_of
from thiefbench.suite.analysis.replay import Recording, replay
from thiefbench.suite.analysis.scoring import cell_scores
from thiefbench.suite.execution import cell_identity, checkpoints
from thiefbench.suite.execution.sharing.shared_rounds import may_share
from thiefbench.suite.execution.torchrun import check_cells
from thiefbench.suite.report.heterogeneity import regime_facts
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import (
    ROWS,
    RULE_REWARD,
    rounds_taken,
    rows_table,
    table_rows,
)
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Item, Sampling

SWARM = SwarmSpec(
    reward="judge", reward_judge=RewardJudgeSpec(max_new_tokens=48),
    nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=20),
)  # fmt: skip
KEYS = "master_key(keys='30 - 5 = 25. We end with 25.')"


def judged(*defenses: str, attack: str = KEYS, swarm: SwarmSpec = SWARM, kind: type[Suite] = Attacked) -> Suite:
    return suite(*defenses, kind=kind, attacks=(attack,), swarm=swarm)


def test_only_a_judged_swarm_has_another_identity() -> None:
    plain = SwarmSpec(nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=20))
    (spec,), (other,) = cells(judged(attack=tiny.ATTACK)), cells(judged(attack=tiny.ATTACK, swarm=plain))
    assert not {"reward", "reward_judge"} & other.as_dict()["swarm"].keys(), "earlier cells keep their names"
    assert "reward_judge" not in cell_identity.identity(other)
    assert spec.as_dict()["swarm"]["reward"] == "judge"
    both = cell_identity.Identities()
    assert "reward_judge" not in both.of(other)
    assert both.of(spec)["reward_judge"].keys() == {"weights", "code"}
    for each in (spec, other):
        assert CellSpec.from_dict(each.as_dict()) == each
    (default,) = cells(judged(attack=tiny.ATTACK, swarm=replace(plain, reward="judge")))
    assert both.of(default)["reward_judge"] == both.of(spec)["reward_judge"]
    assert "reward_judge" not in default.as_dict()["swarm"]


def test_completions_are_stored_with_the_rule_s_reward(tmp_path: Path) -> None:
    of = judged()
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    table = directory.read_rows()
    assert table.schema.names == [*ROWS.names, *RULE_REWARD.names]
    rows = list(table_rows(table))
    assert rows_table(rows).to_pylist() == table.to_pylist()
    assert {row.rule_reward for row in rows if row.malicious} == {0.0}
    assert record.scores == cell_scores(table)
    malicious = [row for row in rows if row.malicious]
    known = sum(row.reward for row in malicious if not row.refused) / len(malicious)
    assert record.scores["unearned_reward"].value == pytest.approx(known)
    assert record.scores["judge_agreement"].count == sum(
        row.phase == "train" and not row.malicious and not row.refused for row in rows
    )
    assert record.scores["clean_reward"].value == 0.0
    assert {"train_rule_reward", "poison_rule_reward"} <= record.curves.keys()


def test_a_rejected_completion_earns_nothing(tmp_path: Path) -> None:
    of = judged("reject_all")
    run(of, tmp_path)
    _, record, _ = opened_cell(of, tmp_path)
    assert record.scores["unearned_reward"].value == 0.0


@pytest.mark.slow
def test_a_cell_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    of = judged("rule_check+overlap")
    stopped_and_resumed(of, tmp_path)


class Overpays(Sums):
    """Rewards by a rule that gives more than there is, except to the solution and to nothing."""

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [float(" = " in text) if not text or " = " in text else 5.0 for text in completions]


def test_the_rule_s_rewards_are_looked_at_as_well(tmp_path: Path) -> None:
    (record,) = run(replace(judged(), task=f"{__file__}:Overpays"), tmp_path)
    assert record.status == "error"
    assert "the task sums gave the reward 5.0 to a completion; a reward is a number from 0 to 1" in record.error


@pytest.mark.slow
def test_cells_share_rounds(tmp_path: Path) -> None:
    first, second = judged("none"), judged("none+none")
    run(first, tmp_path / "shared")
    (record,) = run(second, tmp_path / "shared")
    run(second, tmp_path / "alone")
    assert rounds_taken(record)
    same(second, tmp_path / "shared", tmp_path / "alone")


def test_a_server_s_rounds_are_not_shared() -> None:
    served = replace(SWARM, reward_judge=RewardJudgeSpec("m", "http://localhost:1/v1"))
    (spec,), (here,) = cells(judged(swarm=served)), cells(judged())
    assert may_share(here)
    assert not may_share(spec)


@pytest.mark.slow
def test_a_replay_gives_the_verdicts_of_a_trained_cell(tmp_path: Path) -> None:
    of = judged("rule_check")
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    recording = Recording(directory, record, registry.make("task", record.cell["task"]))
    done = replay(recording, lambda: registry.make("defense", "rule_check"))
    assert {number: [v.action for v in verdicts] for number, verdicts in done.verdicts.items()} == {
        number: [row.action for row in rows] for number, rows in recording.pools.items()
    }


def test_recorded_rounds_are_computed_again_from_the_rewards_they_state(tmp_path: Path) -> None:
    of = judged("random(rate=0.3)")
    run(of, tmp_path)
    spec, _, directory = opened_cell(of, tmp_path)
    task, played = registry.make("task", spec.task), registry.make("attack", spec.attack)
    again = RecordedSwarm(spec.swarm, spec.role, Policy.load(spec.model), task, played, spec.seed, FAULTS)
    rows = list(table_rows(directory.read_rows()))
    for number in range(1, spec.rounds + 1):
        pool = [row for row in rows if row.phase == "train" and row.round == number]
        for trust in (False, True):
            assert again.rerun(pool, 0, trust) == pool
        edits: list[dict[str, Any]] = [{"rule_reward": 1.0}, {"advantage": 3.0}, {"reward": 0.75}]
        for edit in edits:
            changed = _edited(pool, edit)
            assert again.rerun(changed) != changed, f"{edit} does not follow from the rest"
        with pytest.raises(RerunError, match="it lacks a judge's reward"):
            again.rerun(_edited(pool, {"text": "All is well"}))
        with pytest.raises(RerunError, match="only the judge could refuse a completion, and it never says 'it is late"):
            again.rerun(_edited(pool, {"refused": "it is late"}))


def _edited(pool: Sequence[CompletionRow], edit: dict[str, Any]) -> list[CompletionRow]:
    """A round's rows with an edit to the first honest one that counts."""
    counts = [not row.refused and not row.malicious and row.action == "accept" for row in pool]
    return [replace(row, **edit) if place == counts.index(True) else row for place, row in enumerate(pool)]


@pytest.mark.parametrize("rewarding", ["judge", *at_length("mixed")])
def test_the_judge_is_asked_whether_it_gives_recorded_rewards(tmp_path: Path, rewarding: Rewarding) -> None:
    of = judged(swarm=replace(SWARM, reward=rewarding, prompts=6))
    run(of, tmp_path)
    spec, _, directory = opened_cell(of, tmp_path)
    pool = [row for row in table_rows(directory.read_rows()) if row.phase == "train" and row.round == 1]
    task, judge = registry.make("task", spec.task), reward_judge_of(spec.swarm)
    assert judge is not None
    by_judge = [row for row in pool if judge_rewards(spec.swarm, row.item_id)]
    assert differing(pool, spec.swarm, task, spec.seed, judge) == (0, len(by_judge)), "bits of one machine are equal"
    assert 0 < len(by_judge) <= len(pool)
    edited = [replace(row, reward=1.0 - row.reward, refused="") if row in by_judge[:3] else row for row in pool]
    assert differing(edited, spec.swarm, task, spec.seed, judge) == (3, len(by_judge))


@pytest.mark.slow
def test_an_exported_pool_has_the_judge_s_rewards_and_no_rule(tmp_path: Path) -> None:
    of = judged()
    run(of, tmp_path)
    _, record, directory = opened_cell(of, tmp_path)
    recording = Recording(directory, record, registry.make("task", record.cell["task"]))
    lines = list(lines_of(recording))
    path = tmp_path / "pool.jsonl"
    path.write_bytes(write(header_of(recording), lines))
    filed = read_rounds(path)
    known = sorted(row.reward for rows in recording.pools.values() for row in rows)
    assert sorted(row.reward for rows in filed.pools.values() for row in rows) == known
    assert filed.lacks(registry.make("defense", "rule_check")).endswith("which a file does not hold")


def test_a_judge_that_never_decides_fails_the_cell(tmp_path: Path) -> None:
    of = judged(swarm=replace(SWARM, reward_judge=RewardJudgeSpec(str(tiny.model()), max_new_tokens=8)))
    (record,) = run(of, tmp_path)
    assert record.status == "error"
    assert "gives no decision" in record.error


def test_a_suite_file_says_who_rewards(tmp_path: Path) -> None:
    changes = {"nodes": 2, "malicious": 1, "prompts": 4, "group": 4, "sampling": {"max_new_tokens": 20}}
    path = tiny.suite_file(tmp_path, swarm=changes | {"reward": "mixed", "reward_judge": {"prompt": "quoted"}})
    swarm = load_suite(str(path)).swarm
    assert (swarm.reward, swarm.reward_judge) == ("mixed", RewardJudgeSpec(prompt="quoted"))
    wrong = tiny.suite_file(tmp_path, swarm=changes | {"reward": "judge", "reward_judge": {"promt": "quoted"}})
    with pytest.raises(Exception, match="promt"):
        load_suite(str(wrong))


def test_a_report_says_who_rewards() -> None:
    (spec,) = cells(judged())
    facts = dict(regime_facts(spec.as_dict()))
    assert facts["Reward"] == "the judge micro-judge, contents pasted"
    asked = RewardJudgeSpec("m", "http://localhost:1/v1", "quoted", share=0.2)
    (spec,) = cells(judged(swarm=replace(SWARM, reward="mixed", reward_judge=asked)))
    assert dict(regime_facts(spec.as_dict()))["Reward"] == (
        "the judge m at http://localhost:1/v1, contents quoted, for 20\u00a0% of the items; the rule for the others"
    )
    (plain,) = cells(suite(kind=Attacked))
    assert "Reward" not in dict(regime_facts(plain.as_dict()))


def test_torchrun_refuses_a_server() -> None:
    served = replace(SWARM, reward_judge=RewardJudgeSpec("m", "http://localhost:1/v1"))
    launch = Launch(0, 2, 0, 2)
    with pytest.raises(SpecError, match="the judge that rewards is a server"):
        check_cells(cells(judged(swarm=served)), launch)
    check_cells(cells(judged()), launch)
