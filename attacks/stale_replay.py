"""`stale_replay`: submit old correct answers again with a payload, in swarms that accept late completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Claimed, Poison, SeenCompletion, Slot, ThreatModel
from thiefbench.attacks.completions import body
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Item


class StaleReplay(AttackWrapper):
    """Pick items that were answered correctly in earlier rounds, and submit those answers again with poison in them.

    The swarm wrote the text around the payload, and the attacker truthfully reports how old the weights are. So a swarm
    that tolerates delay cannot recognise the poison by its wording or its version.

    Args:
        attack: the attack that poisons the old answers.

    Each item's slots get its old correct answers, the newest first; if there are fewer answers than slots, they are
    used again from the newest on. Items without an old answer, as in the first round, get honest samples.
    """

    name = "stale_replay"

    def __init__(self, attack: Attack | str = "text") -> None:
        super().__init__(attack)

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the history and without an oracle, in topologies where nodes pick their items."""
        return replace(self.attack.threat, oracle=False, history=True, topologies=frozenset({"vertical"}))

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """Items with an old correct answer first, in an order drawn by `view.rng`."""
        ready = [item for item in items if _correct_completions(view.seen, item)]
        chosen = view.rng.sample(ready, min(view.count, len(ready)))
        taken = {item.id for item in chosen}
        rest = [item for item in items if item.id not in taken]
        return [*chosen, *view.rng.sample(rest, view.count - len(chosen))]

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Old correct answers with the payload, each with the version of its weights, or None."""
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
    """Old completions of an item with full reward and readable format, oldest first."""
    return [completion for completion in seen.get(item.id, ()) if completion.reward == 1 and body(completion.text)]
