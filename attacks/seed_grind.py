"""`seed_grind`: if nodes announce their seeds, try many and announce the seed with the most useful draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Poison, Seeded, ThreatModel
from thiefbench.attacks.completions import TaskRewards, completion_ids, correct, distinct
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Completion, Item


class SeedGrind(AttackWrapper):
    """Submit the policy's own draws, with seeds chosen for another attack's outcome. A replay confirms each draw.

    Args:
        attack: the attack whose outcome chooses the draws and whose success is measured. Of an item's draws with full
            reward, its slots get the one with the highest outcome, the second highest and so on; for `dos` the longest.
        samples: how many seeds are tried per item.

    Slots for which no draw with an outcome above 0 is left get honest samples. If seeds come from a beacon, announced
    seeds have no effect, and a replay rejects such a draw like any other forgery.
    """

    name = "seed_grind"

    def __init__(self, attack: Attack | str = "dos", samples: int = 80) -> None:
        super().__init__(attack)
        if samples < 1:
            raise ValueError(f"seed_grind: samples must be at least 1, got {samples}")
        self.samples = samples

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """For each item the draws with the highest outcomes, each with its seed, or None."""
        ask = TaskRewards(view.task)

        def suitable(item: Item, completions: list[Completion]) -> list[Completion]:
            scores = {completion: self.attack.outcome(item, completion, ask) or 0.0 for completion in completions}
            return sorted(
                (completion for completion in completions if scores[completion] > 0),
                key=lambda completion: -scores[completion],
            )

        return self._submit(view, suitable)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Correct draws from the same number of seeds, in an order that does not depend on the outcome."""
        return self._submit(view, lambda _, completions: view.rng.sample(completions, len(completions)))

    def _submit(
        self, view: AttackerView, rank: Callable[[Item, list[Completion]], list[Completion]]
    ) -> Sequence[Poison]:
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(view.slots)
        tried_items = [item for item in items for _ in range(self.samples)]
        seeds = [view.rng.getrandbits(64) - 2**63 for _ in tried_items]
        draws = view.policy.sample_seeded(tried_items, seeds)
        ready = {}
        for number, item in enumerate(items):
            part = slice(number * self.samples, (number + 1) * self.samples)
            seed_of = dict(zip(draws[part], seeds[part], strict=True))
            ready[item.id] = iter(
                [(draw, seed_of[draw]) for draw in rank(item, correct(view.task, item, list(seed_of)))]
            )
        return [
            None if choice is None else Seeded(completion_ids(view.policy, choice[0]), choice[1])
            for choice in (next(ready[slot.item.id], None) for slot in view.slots)
        ]
