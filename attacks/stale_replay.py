"""`stale_replay`: right answers of earlier rounds come back with a payload, among work that is late anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Claimed, Poison, SeenCompletion, Slot, ThreatModel
from thiefbench.attacks.completions import body
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Item


class StaleReplay(AttackWrapper):
    """Pick items that others have answered rightly before, and submit their own words again, poisoned.

    The text around the payload is the swarm's own, and it says truthfully how old its weights are. So whoever allows
    for delay cannot tell it by its wording, nor by its version.

    Args:
        attack: what poisons the old answers.

    Each item's slots get its old right answers, the newest first, again from the start where they are fewer. Items
    without one, as in the first round, are left to honest samples.
    """

    name = "stale_replay"

    def __init__(self, attack: Attack | str = "text") -> None:
        super().__init__(attack)

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the history and no need of an oracle; only where nodes pick their items."""
        return replace(self.attack.threat, oracle=False, history=True, topologies=frozenset({"vertical"}))

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """Items with an old right answer first, in an order drawn by `view.rng`."""
        ready = [item for item in items if _correct_completions(view.seen, item)]
        chosen = view.rng.sample(ready, min(view.count, len(ready)))
        taken = {item.id for item in chosen}
        rest = [item for item in items if item.id not in taken]
        return [*chosen, *view.rng.sample(rest, view.count - len(chosen))]

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Old right answers with the payload, each with the version of its weights, or None."""
        return self._resubmit(view, self.attack.poison)

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The same old answers without the payload."""
        return self._resubmit(view, self.attack.placebo)

    def _resubmit(self, view: AttackerView, submit: Callable[[AttackerView], Sequence[Poison]]) -> Sequence[Poison]:
        submissions: list[Poison] = [None] * len(view.slots)
        retold: dict[int, tuple[Slot, SeenCompletion]] = {}
        used: dict[str, int] = {}
        for place, slot in enumerate(view.slots):
            if old := _correct_completions(view.seen, slot.item):
                number = used.get(slot.item.id, 0)
                used[slot.item.id] = number + 1
                seen = old[-1 - number % len(old)]
                solution = (body(seen.text) or "").strip()
                retold[place] = (replace(slot, item=replace(slot.item, solution=solution)), seen)
        poisons = submit(replace(view, slots=tuple(slot for slot, _ in retold.values())))
        for (place, (_, seen)), poison in zip(retold.items(), poisons, strict=True):
            if isinstance(poison, (str, tuple)):
                poison = Claimed(poison)
            submissions[place] = replace(poison, version=seen.round - 1) if isinstance(poison, Claimed) else poison
        return submissions


def _correct_completions(seen: Mapping[str, Sequence[SeenCompletion]], item: Item) -> list[SeenCompletion]:
    """Old full-reward completions of an item that can be told again, oldest first."""
    return [completion for completion in seen.get(item.id, ()) if completion.reward == 1 and body(completion.text)]
