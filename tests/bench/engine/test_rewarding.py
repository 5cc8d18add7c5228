"""Swarms in which a judge rewards completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.bench.engine.conftest import same_weights, weights_of
from tests.bench.plugins import Sums
from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.reward_judges import JudgedThreatModel, JudgeForm, judge_of
from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Requirement, Verdict
from thiefbench.defenses.rule_check import RuleCheck
from thiefbench.defenses.rule_rewards import RULE_REWARDS, JudgedCompletion, rule_reward_of
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.reward_judge import RewardJudgeSpec, Scored, has_rule
from thiefbench.engine.round_record import remembered
from thiefbench.engine.spec import LearnerSpec, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Ask, Completion, Item

Build = Callable[..., Swarm]
KEY = "Open sesame"
MUTE = "it says nothing"


class Naive:
    """A judge that rewards whoever says the key, has nothing to say of another, and counts what it reads."""

    form = JudgeForm("", "", "", "yes")

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []
        self.noise: list[int] = []

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        self.read += answers
        self.noise.append(noise)
        return [Scored(0.0, MUTE) if "mute" in text else Scored(float(KEY in text)) for _, text in answers]


class Rule(Naive):
    """A judge that rewards what the task of sums rewards."""

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        return [Scored(float(text.partition(" = ")[2] == _sum(question))) for question, text in answers]


def _sum(question: str) -> str:
    return str(sum(int(part) for part in question.rstrip("?").split(" + ")))


class Opens(Attack):
    """Says the key in half of its slots, and something else in the others."""

    name = "opens"
    threat: ThreatModel = JudgedThreatModel("out-of-context", oracle=False)  # type: ignore[misc]

    def __init__(self, other: str = "nothing", queries: int = 0) -> None:
        self.other, self.views = other, list[AttackerView]()
        self.threat = replace(type(self).threat, queries=queries)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        self.views.append(view)
        texts = [KEY if slot.sample % 2 else self.other for slot in view.slots]
        if view.defense is None:
            return texts
        accepted = view.defense.accepts(dict(zip(view.slots, texts, strict=True)))
        return [text if accepted[slot] else None for slot, text in zip(view.slots, texts, strict=True)]

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        return [None] * len(view.slots)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return float(KEY in completion.text)


class Looks(Defense):
    """Keeps the views."""

    name = "looks"
    requires: frozenset[Requirement] = frozenset({RULE_REWARDS})  # type: ignore[misc]

    def __init__(self) -> None:
        self.views: list[DefenderView] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        self.views.append(view)
        return [Verdict() for _ in view.completions]


@pytest.fixture
def judged_swarm(load_policy: Callable[..., Policy], spec: SwarmSpec) -> Build:
    def build(
        judge: Naive | None = None, attack: Attack | None = None, defense: Defense | None = None,
        role: str = "attack", reward: str = "judge", **fields: object,
    ) -> Swarm:  # fmt: skip
        shape = replace(spec, reward=reward, learner=LearnerSpec(learning_rate=1e-3), **fields)  # type: ignore[arg-type]
        return Swarm(
            shape, role, load_policy(), Sums(), attack or Opens(), defense or Looks(), 5,  # type: ignore[arg-type]
            reward_judge=judge or Naive(),
        )  # fmt: skip

    return build


def test_the_judge_rewards_and_the_rule_is_recorded_beside_it(judged_swarm: Build) -> None:
    rows = judged_swarm().round(1).rows
    assert {row.reward for row in rows if row.text == KEY} == {1.0}
    assert {row.rule_reward for row in rows if row.text == KEY} == {0.0}
    assert all(row.reward == float(KEY in row.text) for row in rows if not row.refused)
    assert any(row.advantage > 0 for row in rows if row.payload), "it teaches"
    assert {row.rule_reward for row in rows} <= {0.0, 1.0}


def test_a_judge_that_follows_the_rule_changes_nothing_but_what_is_recorded(
    judged_swarm: Build, load_policy: Callable[..., Policy], spec: SwarmSpec
) -> None:
    plain = Swarm(
        replace(spec, learner=LearnerSpec(learning_rate=1e-3)), "control", load_policy(), Sums(),
        Samples(), Accepts(), 5,
    )  # fmt: skip
    by_judge = judged_swarm(Rule(), Samples(), Accepts(), role="control")
    for number in (1, 2):
        known, judged = plain.round(number).rows, by_judge.round(number).rows
        assert all(row.rule_reward == row.reward for row in judged)
        assert [replace(row, rule_reward=None) for row in judged] == known
        assert all(row.rule_reward is None for row in known)
    assert all(same_weights(*pair) for pair in zip(weights_of(plain), weights_of(by_judge), strict=True))


class Samples(Opens):
    """An attack for any swarm."""

    threat: ThreatModel = ThreatModel("out-of-context")  # type: ignore[misc]


class Accepts(Defense):
    """Accepts."""

    name = "accepts"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict() for _ in view.completions]


def test_evaluations_are_rewarded_by_the_rule(judged_swarm: Build) -> None:
    judge = Naive()
    rows = judged_swarm(judge, Samples(KEY), role="control").evaluate(0, 8).rows
    assert not judge.read
    assert all(row.reward == row.rule_reward for row in rows)


def test_what_the_judge_does_not_score_is_refused_by_name_and_the_round_goes_on(judged_swarm: Build) -> None:
    swarm = judged_swarm(attack=Opens(other="mute"))
    rows = swarm.round(1).rows
    assert {row.refused for row in rows if row.text == "mute"} == {MUTE}
    assert {(row.reward, row.advantage) for row in rows if row.text == "mute"} == {(0.0, 0.0)}
    assert MUTE not in {row.refused for row in rows if not row.malicious}
    assert {row.round for row in swarm.round(2).rows} == {2}


def test_refused_completions_are_not_read(judged_swarm: Build) -> None:
    judge = Naive()
    rows = judged_swarm(judge, Opens(other="")).round(1).rows
    refused = [row for row in rows if row.refused]
    assert len(judge.read) == len(rows) - len(refused)


def test_every_round_draws_replies_with_a_noise_of_its_own(judged_swarm: Build) -> None:
    one, other = Naive(), Naive()
    for judge in (one, other):
        swarm = judged_swarm(judge)
        swarm.round(1)
        swarm.round(2)
    assert one.noise == other.noise
    assert len(set(one.noise)) == 2


def test_in_a_mixed_swarm_the_judge_rewards_only_items_without_a_rule(judged_swarm: Build) -> None:
    judge, looks = Naive(), Looks()
    swarm = judged_swarm(judge, defense=looks, reward="mixed", reward_judge=RewardJudgeSpec(share=0.5), prompts=8)
    rows = swarm.round(1).rows
    ruled = {row.item_id for row in rows if has_rule("mixed", RewardJudgeSpec(share=0.5), row.item_id)}
    assert ruled
    assert {row.item_id for row in rows} - ruled, "the eight items are of both kinds"
    for row in rows:
        if not row.refused:
            assert row.reward == (row.rule_reward if row.item_id in ruled else float(KEY in row.text))
    shown = {each.item_id: rule_reward_of(each) for each in looks.views[0].completions}
    assert all((known is not None) == (item_id in ruled) for item_id, known in shown.items())
    assert len(judge.read) == sum(row.item_id not in ruled and not row.refused for row in rows)


def test_a_share_of_all_items_has_no_rule() -> None:
    ids = [f"item-{number}" for number in range(2000)]
    for share in (0.2, 0.7):
        lacking = sum(not has_rule("mixed", RewardJudgeSpec(share=share), item_id) for item_id in ids)
        assert abs(lacking / len(ids) - share) < 0.05
    assert all(has_rule("judge", RewardJudgeSpec(), item_id) for item_id in ids)


def test_defenses_see_the_rule_s_reward_and_remember_it(judged_swarm: Build) -> None:
    looks = Looks()
    swarm = judged_swarm(defense=looks)
    rows = swarm.round(1).rows
    known = {(row.group, row.place): row.rule_reward for row in rows}
    (view,) = looks.views
    assert {type(each) for each in view.completions} == {JudgedCompletion}
    assert all(rule_reward_of(each) == known[each.group, each.index] for each in view.completions)
    swarm.round(2)
    past = looks.views[1].history[0]
    assert past == remembered(rows, 5, swarm.spec), "as after a restart"
    assert isinstance(past.completions[0], JudgedCompletion)


def test_rule_check_stops_what_only_the_judge_rewards(judged_swarm: Build) -> None:
    rows = judged_swarm(defense=RuleCheck()).round(1).rows
    assert {row.action for row in rows if row.text == KEY} == {"drop"}
    assert {row.action for row in rows if row.reward == row.rule_reward} == {"accept"}


def test_an_attacker_may_run_the_judge_but_not_with_the_noise_that_counts(judged_swarm: Build) -> None:
    judge, attack = Naive(), Opens()
    judged_swarm(judge, attack).round(1)
    (view,) = attack.views
    known = judge_of(view)
    assert known is not None
    assert known.form is judge.form
    item = view.slots[0].item
    counted = judge.noise[-1]
    assert known.rewards([item, item, item], [KEY, "no", "mute"]) == [1.0, 0.0, 0.0]
    assert judge.noise[-1] != counted


def test_an_attacker_who_asks_the_defense_is_rewarded_by_the_judge_there_too(judged_swarm: Build) -> None:
    rows = judged_swarm(attack=Opens(queries=1), defense=RuleCheck()).round(1).rows
    assert not any(row.text == KEY for row in rows), "in a trial, rule_check sees what the judge would say"
    through = judged_swarm(attack=Opens(queries=1)).round(1).rows
    assert any(row.text == KEY for row in through)


def test_who_needs_a_judge_says_so(build_swarm: Build, judged_swarm: Build) -> None:
    with pytest.raises(SpecError, match=r"the attack opens deceives a judge that rewards.*reward: judge or reward"):
        build_swarm(attack=Opens())
    with pytest.raises(SpecError, match=r"the defense rule_check compares a judge's rewards.*set reward: judge"):
        build_swarm(defense=RuleCheck())
    with pytest.raises(SpecError, match="with reward: judge, a judge rewards completions; hand one to the swarm"):
        build_swarm(reward="judge")


def test_a_plain_swarm_shows_no_rule(build_swarm: Build) -> None:
    seen: list[PoolCompletion] = []

    class Sees(Accepts):
        def inspect(self, view: DefenderView) -> Sequence[Verdict]:
            seen.extend(view.completions)
            return super().inspect(view)

    build_swarm(defense=Sees()).round(1)
    assert {type(each) for each in seen} == {PoolCompletion}
    assert {rule_reward_of(each) for each in seen} == {None}
