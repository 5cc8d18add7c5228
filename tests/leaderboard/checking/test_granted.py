"""A defense is checked with what the swarms of its suite give, and gets no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from typer.testing import CliRunner

from tests.leaderboard.checking.test_check import SUBMISSIONS, sample
from tests.variants import at_length
from thiefbench import registry
from thiefbench.cli import app
from thiefbench.defenses.answer_keys import KeyedCompletion, key_of, public_of
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.rule_rewards import JudgedCompletion
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import RewardJudgeSpec
from thiefbench.engine.spec import SwarmSpec
from thiefbench.leaderboard.checking import probes
from thiefbench.leaderboard.checking.check import QUESTIONS, Subject, check
from thiefbench.leaderboard.checking.findings import Finding
from thiefbench.leaderboard.checking.samples import JUDGED, RECIPES, SENT, Sample, SampleRecipe, recipes_for, sample_of
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.limits import CAPS
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.tasks.base import Sampling
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.zoo.models import resolve

BELIEVING = SwarmSpec(topology="vertical", truth="sender")
REWARDED = SwarmSpec(reward="judge")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    try:
        warm = [Isolated(f"{SUBMISSIONS}:Fine", hash_seed=seed) for seed in (0, 1)]
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    for each in warm:
        each.close()


def played(recipe: SampleRecipe) -> Sample:
    """Two small rounds."""
    spec = SwarmSpec(
        topology=recipe.topology, prompts=4, group=4, truth=recipe.truth, reward=recipe.reward,
        reward_judge=recipe.reward_judge, sampling=Sampling(max_new_tokens=recipe.max_new_tokens),
    )  # fmt: skip
    return sample_of(recipe, spec, Policy.load(resolve(recipe.model)), registry.make("task", recipe.task))


@cache
def sent() -> Sample:
    return played(SENT[0])


@cache
def judged() -> Sample:
    return played(replace(JUDGED[0], attack="master_key(keys='30 - 5 = 25')"))


def findings(spec: str, pools: Sample, swarm: SwarmSpec) -> dict[str, Finding]:
    return {each.question: each for each in check(Subject(spec, lambda: [pools], suite="mine-v1", swarms=[swarm]))}


def shown(pools: Sample) -> set[str]:
    """What an isolated defense sees of answers, tests and rules."""
    guest = Isolated(f"{SUBMISSIONS}:Sees")
    return {verdict.reason for verdict in guest.inspect(pools.view(guest, 2))}


def test_a_suite_is_checked_on_swarms_like_its_own() -> None:
    assert recipes_for([part.swarm for part in load_suite("standard-v2").scenes]) == RECIPES
    assert recipes_for([part.swarm for part in load_suite("truth-v1").scenes]) == SENT
    assert recipes_for([part.swarm for part in load_suite("rewards-v1").scenes]) == JUDGED
    quoted = RewardJudgeSpec(prompt="quoted")
    mixed = recipes_for([REWARDED, BELIEVING, replace(REWARDED, reward="mixed", reward_judge=quoted)])
    assert mixed == (*JUDGED, *SENT, replace(JUDGED[0], reward="mixed", reward_judge=quoted))


@pytest.mark.parametrize(
    ("spec", "believes"),
    [("public_items", True),
     *at_length(("rule_check", False), (f"{SUBMISSIONS}:Compares", True), (f"{SUBMISSIONS}:Overrules", False))],
)  # fmt: skip
def test_who_requires_what_the_suite_gives_is_fit(spec: str, believes: bool) -> None:
    pools, swarm = (sent(), BELIEVING) if believes else (judged(), REWARDED)
    found = findings(spec, pools, swarm)
    assert len(found) == len(QUESTIONS)
    failed = {name: each.detail for name, each in found.items() if each.status == "FAILED"}
    assert failed.keys() <= {"honest work gets through"} - ({"honest work gets through"} if believes else set()), failed
    if believes:
        poisoned = sum(map(sum, pools.poison))
        assert found["poison is stopped"].detail.startswith(f"stops {poisoned} of {poisoned} poisoned rewarded")


@pytest.mark.slow
def test_tests_are_tried_in_the_sandbox_for_an_isolated_defense() -> None:
    pools = played(SENT[1])
    guest, own = Isolated("gold_sanity"), registry.make("defense", "gold_sanity")
    given = guest.inspect(pools.view(guest, 1))
    assert given == list(own.inspect(pools.view(own, 1)))
    dropped = {place for place, verdict in enumerate(given) if verdict.action == "drop"}
    poisoned = {place for place, carries in enumerate(pools.poison[0]) if carries}
    assert poisoned
    assert poisoned <= dropped, "and with it the decoys of its group"


@pytest.mark.parametrize(
    ("spec", "swarms", "said"),
    [
        ("public_items", [REWARDED], "mine-v1 cannot run it: the defense public_items compares the answers and tests"),
        ("rule_check", [BELIEVING], "mine-v1 cannot run it: the defense rule_check compares a judge's rewards"),
        ("public_items", [BELIEVING, SwarmSpec()], "every node knows the task's; set truth: sender"),
    ],
)
def test_every_swarm_of_the_suite_gives_it(spec: str, swarms: list[SwarmSpec], said: str) -> None:
    found = list(check(Subject(spec, list, suite="mine-v1", swarms=swarms)))
    assert [each.status for each in found] == ["ok", "ok", "ok", "FAILED"]
    assert said in found[-1].detail


def test_a_defense_sees_no_more_than_the_swarm_gives() -> None:
    assert shown(sample()) == {"key False, rule False, public False"}
    assert shown(sent()) == {"key True, rule False, public True"}
    assert shown(judged()) == {"key False, rule True, public False"}
    assert {type(each) for each in sample().rounds[0]} == {PoolCompletion}
    assert {type(each) for each in sent().rounds[0]} == {KeyedCompletion}
    assert {type(each) for each in judged().rounds[0]} == {JudgedCompletion}


def test_the_stated_answers_are_the_senders() -> None:
    guest = Isolated("none")
    view = sent().view(guest, 1)
    first: dict[str, str] = {}
    for each in view.completions:
        key = key_of(each)
        assert key is not None
        first.setdefault(each.item_id, key.answer)
    assert {item_id: facts.answer for item_id, facts in view.items.items()} == first
    public = public_of(view)
    assert public is not None
    own = {item_id: public.answer_key(item_id) for item_id in first}
    assert any(key is not None and key.answer != first[item_id] for item_id, key in own.items()), "some are forged"


@pytest.mark.parametrize("swarm", ["plain", "judged"])
def test_rewards_are_computed_only_where_items_are_published(swarm: str) -> None:
    guest = Isolated(f"{SUBMISSIONS}:Reaches")
    with pytest.raises(DefenseError, match="an unknown question, 'rewards'"):
        guest.inspect((sample() if swarm == "plain" else judged()).view(guest, 1))
    allowed = Isolated(f"{SUBMISSIONS}:Reaches")
    assert len(allowed.inspect(sent().view(allowed, 1))) == len(sent().rounds[0])


def test_many_programs_to_score_end_with_the_time_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(
        "thiefbench.leaderboard.isolation.view_services.time.monotonic", lambda: float(next(clock))
    )  # fmt: skip
    from thiefbench.leaderboard.isolation.view_services import Services
    from thiefbench.leaderboard.isolation.wire import Malformed

    guest = registry.make("defense", "none")
    view = sent().view(guest, 1)
    asked = {"ask": "rewards", "item": next(iter(view.items)), "answer": "1", "tests": "", "texts": ["x"] * 64}
    assert Services(view, replace(CAPS, service_seconds=100.0)).answer(asked)
    with pytest.raises(Malformed, match="took more than 15 seconds in a round"):
        Services(view, replace(CAPS, service_seconds=15.0)).answer(asked)
    assert next(clock) < 200, "the second was ended after half of its texts"


def test_hostile_pools_have_hostile_keys_only_where_keys_come() -> None:
    plain = probes.hostile(sample().rounds[0], 20)
    assert {type(each) for each in plain} == {PoolCompletion}
    keyed = probes.hostile(sent().rounds[0], 96)[len(sent().rounds[0]) :]
    assert sum(key_of(each) is None for each in keyed) == 1
    assert len({key_of(each) for each in keyed}) > 20
    ruled = probes.hostile(judged().rounds[0], 96)
    assert sum(each.rule_reward is None for each in ruled if isinstance(each, JudgedCompletion)) == 1


@pytest.mark.slow
def test_the_command_plays_the_swarms_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "thiefbench.leaderboard.checking.samples.samples", lambda recipes: asked.append(recipes) or [sent()]
    )
    words = ["leaderboard", "check", "public_items"]
    done = CliRunner().invoke(app, [*words, "--suite", "truth-v1"])
    assert (done.exit_code, "public_items may be submitted\n" in done.output) == (0, True), done.output
    assert asked == [SENT]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "standard-v2 cannot run it: the defense public_items" in done.output.replace("\n", " ")
