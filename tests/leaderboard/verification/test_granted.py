"""What a suite's swarms give, answer keys or rewards by the rule, reaches a submission, and its isolated reruns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.leaderboard.checking.test_granted import judged, sent
from tests.leaderboard.tiny_entries import SWARM, Made, made, suite
from thiefbench.engine.keys import SECRET_BYTES
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.engine.spec import SpecError
from thiefbench.leaderboard.checking.samples import Sample
from thiefbench.leaderboard.verification.verdict import Verification
from thiefbench.leaderboard.verification.verify import VerifyOptions, verify
from thiefbench.suite.scenario import Evaluation, Suite

SUBMISSIONS = Path(__file__).parents[1] / "submissions.py"
FORGES = f"{Path(__file__).parents[2] / 'bench/forging.py'}:Forges"
SECRET = bytes([3]) * SECRET_BYTES


def believing() -> Suite:
    return suite(name="believing", attacks=(FORGES,), swarm=replace(SWARM, topology="vertical", truth="sender"))


def rewarded() -> Suite:
    swarm = replace(SWARM, reward="judge", reward_judge=RewardJudgeSpec(max_new_tokens=48))
    return suite(
        name="rewarded", attacks=("master_key(keys='30 - 5 = 25')",), swarm=swarm, rounds=2,
        evaluation=Evaluation(every=1, completions=8, final=8),
    )  # fmt: skip


def verified(of: Made, pools: Sample) -> Verification:
    asked: list[Suite] = []

    def samples(of_suite: Suite) -> list[Sample]:
        asked.append(of_suite)
        return [pools]

    options = VerifyOptions(archive=of.archive, fresh=1, secret=SECRET)
    found = verify(of.folder, options, lambda told: None, lambda what: lambda done, total: None, samples)
    assert found.verdict in ("rescored", "re-executed"), found.reasons
    assert [each.name for each in asked] == [of.entry.manifest.suite.name]
    return found


@pytest.mark.parametrize("name", ["Compares", "Overrules"])
def test_what_the_suite_gives_reaches_the_isolated_defense(
    name: str, tmp_path: Path, jail: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, pools = (believing(), sent()) if name == "Compares" else (rewarded(), judged())
    entry = made(tmp_path, f"{SUBMISSIONS}:{name}", monkeypatch, of)
    attacked = [cell for cell in entry.entry.own if cell.role == "attack"]
    if name == "Compares":
        assert [cell.scores["stop_rate"][0] for cell in attacked] == [1.0]
    found = verified(entry, pools)
    assert found.flags == ()
    assert found.reruns
    assert all(each.equal in (True, None) for each in found.reruns), "its own cells too, run again in isolation"


def test_what_the_suite_does_not_give_is_refused_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="set truth: sender"):
        made(tmp_path, f"{SUBMISSIONS}:Compares", monkeypatch, rewarded())
    with pytest.raises(SpecError, match="set reward: judge or reward: mixed"):
        made(tmp_path, f"{SUBMISSIONS}:Overrules", monkeypatch, believing())
