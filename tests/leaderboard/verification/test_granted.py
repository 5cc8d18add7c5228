"""What a suite's swarms give, answer keys or rewards by the rule, reaches a submission, and its isolated reruns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.leaderboard.tiny_entries import SWARM, made, suite
from tests.variants import at_length
from thiefbench.engine.keys import SECRET_BYTES
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.engine.spec import SpecError
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.suite.scenario import Evaluation, Suite

SUBMISSIONS = Path(__file__).parents[1] / "submissions.py"
FORGES = f"{Path(__file__).parents[2] / 'bench/forging.py'}:Forges"
SECRET = bytes([3]) * SECRET_BYTES


def believing() -> Suite:
    return suite(
        name="believing", attacks=(FORGES,), swarm=replace(SWARM, topology="vertical", truth="sender"),
        rounds=2, evaluation=Evaluation(every=1, completions=8, final=8),
    )  # fmt: skip


def rewarded() -> Suite:
    swarm = replace(SWARM, reward="judge", reward_judge=RewardJudgeSpec(max_new_tokens=48))
    return suite(
        name="rewarded", attacks=("master_key(keys='30 - 5 = 25')",), swarm=swarm, rounds=2,
        evaluation=Evaluation(every=1, completions=8, final=8),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["Compares", *at_length("Overrules")])
def test_what_the_suite_gives_reaches_the_isolated_defense(
    name: str, tmp_path: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = believing() if name == "Compares" else rewarded()
    submitted = made(tmp_path, f"{SUBMISSIONS}:{name}", monkeypatch, of)
    asked: list[Suite] = []

    def samples(suite: Suite) -> list[Sample]:
        asked.append(suite)
        return []

    options = VerifyOptions(archive=submitted.archive, reruns=1, fresh=0, secret=SECRET)
    found = verify(submitted.folder, options, lambda told: None, lambda what: lambda done, total: None, samples)
    assert found.verdict == "rescored", found.reasons
    assert found.reasons == ("it was not tried at a fresh seed, where it cannot know who is malicious",)
    assert asked == [of], "it is questioned on swarms like those of its suite"
    assert {each.kind for each in found.reruns} >= {"own", "undefended", "control"}
    assert all(each.equal for each in found.reruns), "also its own cells, run again in isolation"
    (attacked,) = [cell for cell in submitted.entry.own if cell.role == "attack"]
    if name == "Compares":
        assert attacked.scores["stop_rate"][0] == 1.0


def test_what_the_suite_does_not_give_is_refused_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="set truth: sender"):
        made(tmp_path, f"{SUBMISSIONS}:Compares", monkeypatch, rewarded())
    with pytest.raises(SpecError, match="set reward: judge or reward: mixed"):
        made(tmp_path, f"{SUBMISSIONS}:Overrules", monkeypatch, believing())
