"""The rewards that count: the task's or a judge's (`SwarmSpec.reward`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from thiefbench.defenses.answer_keys import key_of
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.rule_rewards import JudgedCompletion
from thiefbench.engine.keys import key
from thiefbench.engine.reward_judge import RewardJudge, has_rule
from thiefbench.engine.round_plan import RoundPlan
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.transport import Received


@dataclass(frozen=True)
class PoolRewards:
    """The rewards of a round's received completions.

    Attributes:
        received: the completions; those that the judge cannot score are refused.
        rewards: of each, 0 for refused ones.
        by_rule: the task's own rewards, where a judge's count; None where the task's count for all.
    """

    received: list[Received]
    rewards: list[float]
    by_rule: list[float] | None = None

    def of(self, places: Sequence[int]) -> PoolRewards:
        """The same for some of the completions."""
        by_rule = None if self.by_rule is None else [self.by_rule[i] for i in places]
        return PoolRewards([self.received[i] for i in places], [self.rewards[i] for i in places], by_rule)


def judged(
    spec: SwarmSpec,
    seed: int,
    judge: RewardJudge | None,
    plan: RoundPlan,
    received: Sequence[Received],
    by_rule: Sequence[float],
) -> PoolRewards:
    """The rewards that count in a swarm.

    Args:
        spec: the swarm's.
        seed: the cell's.
        judge: who rewards, where the task does not.
        plan: the round's.
        received: for all of its assignments, in order.
        by_rule: the task's reward of each.

    Raises:
        JudgeError: the judge does not answer, or without decisions.
    """
    if spec.reward == "rule" or judge is None:
        return PoolRewards(list(received), list(by_rule))
    places = [
        i
        for i, (assignment, arrival) in enumerate(zip(plan.assignments, received, strict=True))
        if not arrival.refused and judge_rewards(spec, plan.item(assignment).id)
    ]
    answers = [(plan.item(plan.assignments[i]).question, received[i].completion.text) for i in places]
    scores = judge.score(answers, reply_noise(seed, plan.number)) if answers else []
    kept, rewards = list(received), list(by_rule)
    for i, scored in zip(places, scores, strict=True):
        kept[i] = replace(received[i], refused=scored.fault)
        rewards[i] = 0.0 if scored.fault else scored.reward
    return PoolRewards(kept, rewards, list(by_rule))


def reply_noise(seed: int, number: int) -> int:
    """The key for drawing the replies of the judge that rewards, in round `number` of a cell."""
    return key(seed, "reward", number)


def judge_rewards(spec: SwarmSpec, item_id: str) -> bool:
    """Whether the judge is asked about an item's completions in a swarm in which a judge rewards."""
    return spec.reward == "judge" or not shows_rule(spec, item_id)


def shows_rule(spec: SwarmSpec, item_id: str) -> bool:
    """Whether nodes know the task's own reward of an item's completions in a swarm in which a judge rewards."""
    return spec.reward != "rule" and has_rule(spec.reward, spec.reward_judge, item_id)


def with_rule(completion: PoolCompletion, rule_reward: float | None) -> PoolCompletion:
    """A completion as defenses see it in a swarm in which a judge rewards."""
    shown = {field.name: getattr(completion, field.name) for field in fields(PoolCompletion)}
    return JudgedCompletion(**shown, answer_key=key_of(completion), rule_reward=rule_reward)
