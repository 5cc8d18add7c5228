"""`sift`: send only honest draws, but withhold those that do not suit the attack."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import AttackerView, Poison, Seeded, ThreatModel, Withheld
from thiefbench.attacks.completions import TaskRewards, completion_ids
from thiefbench.attacks.item_grind import ItemGrind, push


class Sift(ItemGrind):
    """Send the honest draw of a slot if it teaches what the attack wants, and nothing otherwise.

    A slot's draw suits if it is right and its outcome is above the mean of all malicious slots' draws, or wrong and not
    above it. The rest of a group consists of honest draws, and yet its advantages increase the outcome. If the topology
    lets nodes pick their items, it picks those whose sifted groups increase the outcome most. Nodes that may not pick
    items still choose which draws arrive.

    Args:
        attack: its outcome (for `dos` the length) is what the draws should increase, and its success is measured.
        candidates: how many items are tried for each item to answer; each costs as many draws as a group has
            completions.

    Harm is measured against the control, as for `item_grind`.
    """

    name = "sift"

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy and the beacon."""
        return replace(self.attack.threat, policy=True, beacon=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Honest draws that suit (the right ones count as payload), and `Withheld` for the others."""
        assert view.policy is not None, "the threat model grants a policy"
        seeds = [slot.seed for slot in view.slots if slot.seed is not None]
        items = [slot.item for slot in view.slots]
        draws = view.policy.sample_seeded(items, seeds)
        rewards = view.task.rewards(items, [draw.text for draw in draws])
        ask = TaskRewards(view.task)
        outcomes = [self.attack.outcome(item, draw, ask) or 0.0 for item, draw in zip(items, draws, strict=True)]
        suits = suitable(rewards, outcomes)
        submissions: list[Poison] = []
        for seed, draw, reward, suited in zip(seeds, draws, rewards, suits, strict=True):
            if not suited:
                submissions.append(Withheld())
            else:
                submissions.append(Seeded(completion_ids(view.policy, draw), seed) if reward == 1 else None)
        return submissions

    def _push(self, rewards: Sequence[float], outcomes: Sequence[float]) -> float:
        kept = [pair for *pair, suits in zip(rewards, outcomes, suitable(rewards, outcomes), strict=True) if suits]
        return push(*zip(*kept, strict=True)) if len(kept) > 1 else 0.0


def suitable(rewards: Sequence[float], outcomes: Sequence[float]) -> list[bool]:
    """Which completions are right with an outcome above the mean, or wrong with an outcome not above it."""
    mean = statistics.fmean(outcomes) if outcomes else 0.0
    return [(reward == 1) == (outcome > mean) for reward, outcome in zip(rewards, outcomes, strict=True)]
