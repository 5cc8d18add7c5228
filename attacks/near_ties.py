"""`near_ties`: choose the token that suits the attack wherever a replay with a tolerance would not notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Decoy, Poison, Seeded, ThreatModel
from thiefbench.attacks.completions import TaskRewards, completion_ids
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Completion


class NearTies(AttackWrapper):
    """Answer every slot with the completion that suits the attack best and that a replay accepts as its seed's draw.

    A verifier that replays a seed tolerates small differences of logits; in mixed precision the tolerance must be large
    (0.7 for bfloat16). Where two tokens are that close, the sender may take either. A completion has many such places,
    so a slot has many acceptable draws instead of one.

    Args:
        attack: its outcome (for `dos` the length) is what the draws should increase, and its success is measured.
        tolerance: by how many logits a token may miss the seed's draw so that the replay still accepts it.
        samples: how many draws are tried per slot.

    In every group the right draws with the highest outcomes take half of the slots, at most, and the wrong draws with
    the lowest outcomes the others, so that the group's rewards differ.
    """

    name = "near_ties"

    def __init__(self, attack: Attack | str = "dos", tolerance: float = 0.7, samples: int = 16) -> None:
        super().__init__(attack)
        if not tolerance >= 0:
            raise ValueError(f"near_ties: tolerance must be at least 0, got {tolerance}")
        if samples < 1:
            raise ValueError(f"near_ties: samples must be at least 1, got {samples}")
        self.tolerance, self.samples = float(tolerance), samples

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy and the beacon."""
        return replace(self.attack.threat, policy=True, beacon=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The best right draws with their seeds and, as decoys, the best wrong ones; None for slots without either."""
        return self._submit(view, chosen=True)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """In the same slots, right and wrong draws close to the same seeds' draws, not chosen by their outcomes."""
        return self._submit(view, chosen=False)

    def _submit(self, view: AttackerView, chosen: bool) -> list[Poison]:
        assert view.policy is not None, "the threat model grants a policy"
        seeds = [slot.seed for slot in view.slots if slot.seed is not None]
        items = [slot.item for slot in view.slots]
        near = view.policy.sample_near(items, seeds, self.tolerance, self.samples)
        ask = TaskRewards(view.task)
        right: list[tuple[float, Completion] | None] = []
        wrong: list[tuple[float, Completion] | None] = []
        for item, draws in zip(items, near, strict=True):
            rewards = view.task.reward(item, [draw.text for draw in draws])
            outcomes = [self.attack.outcome(item, draw, ask) or 0.0 if chosen else 0.0 for draw in draws]
            rated = list(zip(outcomes, draws, rewards, strict=True))
            at = [(outcome, draw) for outcome, draw, reward in rated if reward == 1 and draw.ended]
            below = [(outcome, draw) for outcome, draw, reward in rated if reward < 1]
            right.append(max(at, key=lambda pair: pair[0], default=None))
            wrong.append(min(below, key=lambda pair: pair[0], default=None))
        submissions: list[Poison] = [None] * len(items)
        groups: dict[int, list[int]] = {}
        for place, slot in enumerate(view.slots):
            groups.setdefault(slot.group, []).append(place)
        for places in groups.values():
            able = sorted((place for place in places if right[place]), key=lambda place: -_outcome(right[place]))
            carriers = set(able[: max(1, len(places) // 2)])
            carriers |= {place for place in able if wrong[place] is None}
            for place in places:
                one, other = right[place], wrong[place]
                if place in carriers and one is not None:
                    submissions[place] = Seeded(completion_ids(view.policy, one[1]), seeds[place])
                elif other is not None:
                    submissions[place] = Decoy(completion_ids(view.policy, other[1]))
        return submissions


def _outcome(rated: tuple[float, Completion] | None) -> float:
    return 0.0 if rated is None else rated[0]
