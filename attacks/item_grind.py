"""`item_grind`: pick the items whose one legitimate draw suits, once the beacon has told it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Poison, Seeded, ThreatModel
from thiefbench.attacks.completions import TaskRewards, right, wire
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Item


class ItemGrind(AttackWrapper):
    """Send nothing but the honest draw of every slot, and choose the items for what these draws will teach.

    Args:
        attack: whose outcome the draws shall push, and whose success is measured: for `dos` the length.
        candidates: items tried for each place a node fills; each costs G draws.

    A swarm is safe from it where items are drawn for a node, or where it commits to them before the beacon is known.
    The choice itself is the payload and a placebo shares it, so harm is measured against the control.
    """

    name = "item_grind"
    reference = "control"

    def __init__(self, attack: Attack | str = "dos", candidates: int = 8) -> None:
        super().__init__(attack)
        if candidates < 1:
            raise ValueError(f"item_grind: candidates must be at least 1, got {candidates}")
        if "vertical" not in self.attack.threat.topologies:
            raise ValueError(
                f"item_grind: items are chosen in the vertical topology, which {self.attack.name} is not for"
            )
        self.candidates = candidates

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy and the beacon, where nodes choose their items."""
        return replace(self.attack.threat, policy=True, beacon=True, topologies=frozenset({"vertical"}))

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        """As the inner attack, which knows no seeds."""
        return self.attack.choose_items(items, count, rng)

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """For every position the candidate whose group pushes the outcome most."""
        assert view.policy is not None, "the threat model grants a policy"
        tried = self.attack.choose_items(items, min(len(items), view.count * self.candidates), view.rng)
        slots = [(n % view.count, item, index) for n, item in enumerate(tried) for index in range(view.group)]
        asked = [item for _, item, _ in slots]
        drawn = view.policy.sample_seeded(asked, [view.seed(item, position, i) for position, item, i in slots])
        rewards = view.task.rewards(asked, [made.text for made in drawn])
        ask = TaskRewards(view.task)
        outcomes = [self.attack.outcome(item, made, ask) or 0.0 for item, made in zip(asked, drawn, strict=True)]
        groups = [slice(start, start + view.group) for start in range(0, len(slots), view.group)]
        pushes = [push(rewards[group], outcomes[group]) for group in groups]
        best = [max(range(at, len(tried), view.count), key=lambda n: pushes[n]) for at in range(view.count)]
        return [tried[n] for n in best]

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The honest draws of all slots; those that are right and have an outcome above 0 carry the payload."""
        assert view.policy is not None, "the threat model grants a policy"
        seeds = [slot.seed for slot in view.slots if slot.seed is not None]
        drawn = view.policy.sample_seeded([slot.item for slot in view.slots], seeds)
        ask = TaskRewards(view.task)
        made: list[Poison] = []
        for slot, seed, completion in zip(view.slots, seeds, drawn, strict=True):
            suits = right(view.task, slot.item, [completion]) and self.attack.outcome(slot.item, completion, ask)
            made.append(Seeded(wire(view.policy, completion), seed) if suits else None)
        return made

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Honest samples everywhere."""
        return [None] * len(view.slots)


def push(rewards: Sequence[float], outcomes: Sequence[float]) -> float:
    """How far a group's advantages, (r - mean) / (sample std + 1e-4), push its outcomes up: their sum of products."""
    mean, scale = statistics.fmean(rewards), statistics.stdev(rewards) + 1e-4
    return sum((reward - mean) / scale * outcome for reward, outcome in zip(rewards, outcomes, strict=True))
