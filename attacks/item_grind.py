"""`item_grind`: pick the items whose one legitimate draw suits the attack, once the beacon has revealed the seeds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Poison, Seeded, ThreatModel
from thiefbench.attacks.completions import TaskRewards, completion_ids, correct
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Item, Topology


class ItemGrind(AttackWrapper):
    """Send the honest draw of every slot, but choose items whose draws teach what the attack wants.

    Args:
        attack: its outcome (for `dos` the length) is what the draws should increase, and its success is measured.
        candidates: how many items are tried for each item to answer; each costs as many draws as a group has
            completions.

    A swarm is safe from it if items are drawn for its nodes, or if nodes commit to their items before the beacon is
    known. The payload is the choice of items itself, and a placebo would make the same choice, so harm is measured
    against the control.
    """

    name = "item_grind"
    reference = "control"

    def __init__(self, attack: Attack | str = "dos", candidates: int = 8) -> None:
        super().__init__(attack)
        if candidates < 1:
            raise ValueError(f"item_grind: candidates must be at least 1, got {candidates}")
        if not self.threat.topologies:
            raise ValueError(
                f"item_grind: items are chosen in the vertical topology, which {self.attack.name} is not for"
            )
        self.candidates = candidates

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy and the beacon, where nodes choose their items."""
        granted = self.attack.threat
        vertical = granted.topologies & frozenset[Topology]({"vertical"})
        return replace(granted, policy=True, beacon=True, topologies=vertical)

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """As the inner attack, which does not know the seeds."""
        return self.attack.choose_items(items, count, rng)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """For every position, the candidate whose group increases the outcome most."""
        assert view.policy is not None, "the threat model grants a policy"
        candidates = self.attack.choose_items(items, min(len(items), view.count * self.candidates), view.rng)
        slots = [
            (number % view.count, item, sample)
            for number, item in enumerate(candidates)
            for sample in range(view.group)
        ]
        slot_items = [item for _, item, _ in slots]
        seeds = [view.seed(item, position, sample) for position, item, sample in slots]
        draws = view.policy.sample_seeded(slot_items, seeds)
        rewards = view.task.rewards(slot_items, [draw.text for draw in draws])
        ask = TaskRewards(view.task)
        outcomes = [self.attack.outcome(item, draw, ask) or 0.0 for item, draw in zip(slot_items, draws, strict=True)]
        groups = [slice(start, start + view.group) for start in range(0, len(slots), view.group)]
        pushes = [self._push(rewards[group], outcomes[group]) for group in groups]
        best = [
            max(range(position, len(candidates), view.count), key=lambda number: pushes[number])
            for position in range(view.count)
        ]
        return [candidates[number] for number in best]

    def _push(self, rewards: Sequence[float], outcomes: Sequence[float]) -> float:
        """How much a group of these draws teaches."""
        return push(rewards, outcomes)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The honest draws of all slots; those that are correct and have an outcome above 0 carry the payload."""
        assert view.policy is not None, "the threat model grants a policy"
        seeds = [slot.seed for slot in view.slots if slot.seed is not None]
        draws = view.policy.sample_seeded([slot.item for slot in view.slots], seeds)
        ask = TaskRewards(view.task)
        submissions: list[Poison] = []
        for slot, seed, draw in zip(view.slots, seeds, draws, strict=True):
            suits = correct(view.task, slot.item, [draw]) and self.attack.outcome(slot.item, draw, ask)
            submissions.append(Seeded(completion_ids(view.policy, draw), seed) if suits else None)
        return submissions

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Honest samples everywhere."""
        return [None] * len(view.slots)


def push(rewards: Sequence[float], outcomes: Sequence[float]) -> float:
    """How much a group's advantages, (r - mean) / (sample std + 1e-4), increase its outcomes.

    It is the sum over the group of advantage times outcome.
    """
    mean, scale = statistics.fmean(rewards), statistics.stdev(rewards) + 1e-4
    return sum((reward - mean) / scale * outcome for reward, outcome in zip(rewards, outcomes, strict=True))
