"""For defenses in swarms whose rewards come from a judging model (reward: judge or mixed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from thiefbench.defenses.answer_keys import KeyedCompletion
from thiefbench.defenses.base import PoolCompletion, Requirement

RULE_REWARDS: Final = cast(Requirement, "rule_rewards")
"""What such a defense puts into `requires`: completions come with the task's own reward, see `SwarmSpec.reward`."""


@dataclass(frozen=True)
class JudgedCompletion(KeyedCompletion):
    """A completion in a swarm with reward: judge, where its `reward` is the judge's, or reward: mixed, where it may be.

    Attributes:
        rule_reward: the task's own reward, in [0, 1]; None for an item without a rule.
    """

    rule_reward: float | None = None


def rule_reward_of(completion: PoolCompletion) -> float | None:
    """The task's own reward of a completion; None where nodes have no rule, or where the rule rewards anyway."""
    return completion.rule_reward if isinstance(completion, JudgedCompletion) else None
