"""`contrast`: wrong answers that an honest node might give beside the poison, so that every group has advantages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.carriers import decoys
from thiefbench.attacks.completions import distinct
from thiefbench.attacks.wrapper import AttackWrapper


class Contrast(AttackWrapper):
    """Give some of the malicious slots of every group to plausible decoys: wrong answers of the policy itself.

    In a group of right answers all advantages are 0, so in the vertical topology poison needs wrong answers in its
    group. Gibberish (`varied(gibberish=0.5)`) is easy to distinguish from honest work, and a defense that drops it
    stops the attack. The policy's own wrong answers are not easy to distinguish.

    Args:
        attack: the attack that fills the other slots, such as `own(attack="equations")` or `dos`.
        decoys: share of the malicious slots of every group that get decoys.
        samples: completions drawn per item and round, from which decoys are chosen.

    If an item has too few decoys, the remaining slots are left to honest samples. Decoys are chosen by the attack's
    outcome (see `thiefbench.attacks.carriers.decoys`): for `equations`, wrong answers that state the true equation; for
    `dos`, the shortest ones.
    """

    name = "contrast"

    def __init__(
        self, attack: Attack | str = 'own(attack="equations")', decoys: float = 0.5, samples: int = 16
    ) -> None:
        super().__init__(attack)
        if not 0 < decoys < 1:
            raise ValueError(f"contrast: decoys is a share between 0 and 1, got {decoys}")
        if samples < 1:
            raise ValueError(f"contrast: samples must be at least 1, got {samples}")
        self.decoys, self.samples = decoys, samples

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's submissions, with decoys beside them."""
        return self._contrasted(view, self.attack.poison)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's placebo, with the same decoys beside it."""
        return self._contrasted(view, self.attack.placebo)

    def _contrasted(self, view: AttackerView, submit: Callable[[AttackerView], Sequence[Poison]]) -> list[Poison]:
        assert view.policy is not None, "the threat model grants a policy"
        groups: dict[int, list[int]] = {}
        for place, slot in enumerate(view.slots):
            groups.setdefault(slot.group, []).append(place)
        drawn = (view.rng.sample(places, round(self.decoys * len(places))) for places in groups.values())
        chosen = {place for places in drawn for place in places}
        slots = [view.slots[place] for place in sorted(chosen)]
        items, wanted = distinct(slots), max(Counter(slot.item.id for slot in slots).values(), default=0)
        ready = decoys(view, self.attack, items, view.policy.sample(items, self.samples), wanted)
        left = {item.id: iter(of_item) for item, of_item in zip(items, ready, strict=True)}
        others = [place for place in range(len(view.slots)) if place not in chosen]
        filled = submit(replace(view, slots=tuple(view.slots[place] for place in others)))
        poison_at = dict(zip(others, filled, strict=True))
        return [
            next(left[slot.item.id], None) if place in chosen else poison_at[place]
            for place, slot in enumerate(view.slots)
        ]
