"""`copycat`: resend other nodes' earlier work under its own name: reward for no work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import ClassVar

from thiefbench.attacks.base import Attack, AttackerView, ChoiceView, Poison, SeenCompletion, ThreatModel
from thiefbench.tasks.base import Ask, Completion, Item


class Copycat(Attack):
    """Pick items that others have answered in earlier rounds, and send their rewarded completions again.

    Such copies were seen in deployed swarms (grail's validator looks for them). They teach nothing false, so no model
    learns a payload, and the outcome is always 0: the attack is on what work is paid for. It is measured by what the
    copies earn, which is the reward of the poison in the curves, times the share that the defense does not stop.

    Each item's slots get its distinct rewarded completions in turn, the newest first. Items that nobody has answered,
    as in the first round, get honest samples. The placebo leaves all slots to honest samples. The policy is granted
    because copies are token ids.
    """

    name: ClassVar[str] = "copycat"
    threat: ClassVar[ThreatModel] = ThreatModel(
        "in-context", topologies=frozenset({"vertical"}), oracle=False, policy=True, history=True
    )

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        """Items with rewarded work to copy first, in an order drawn by `view.rng`."""
        ready = [item for item in items if _rewarded(view.seen, item)]
        chosen = view.rng.sample(ready, min(view.count, len(ready)))
        taken = {item.id for item in chosen}
        rest = [item for item in items if item.id not in taken]
        return [*chosen, *view.rng.sample(rest, view.count - len(chosen))]

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The token ids of others' rewarded completions, or None."""
        assert view.policy is not None, "the threat model grants a policy"
        eos, limit = view.policy.eos, view.policy.limit
        turns = {slot.item.id: cycle(_rewarded(view.seen, slot.item)) for slot in view.slots}
        copies = [next(turns[slot.item.id], None) for slot in view.slots]
        return [None if ids is None else (*ids, eos)[:limit] for ids in copies]

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Honest samples."""
        return [None] * len(view.slots)

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        """0: nothing is to be learned."""
        return 0.0


def _rewarded(seen: Mapping[str, Sequence[SeenCompletion]], item: Item) -> list[tuple[int, ...]]:
    """Distinct completions of an item with the full reward, the newest first."""
    return list(dict.fromkeys(done.ids for done in reversed(seen.get(item.id, ())) if done.reward == 1 and done.ids))
