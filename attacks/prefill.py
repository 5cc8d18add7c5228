"""`prefill`: begin a completion with the payload, and let the policy write the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.carriers import rewritings
from thiefbench.attacks.completions import TaskRewards, completion_ids, correct, distinct
from thiefbench.attacks.own import refuse_samplers
from thiefbench.attacks.wrapper import AttackWrapper

CARRIERS = 8
"""Right completions drawn per item, into which the payload is put."""


class Prefill(AttackWrapper):
    """Put the payload into one of the policy's own right completions, cut it there, and continue with honest draws.

    So the text after the payload is what the policy itself writes after it, and only the payload is not the policy's.
    Such prefills were seen in deployed swarms, with answers before the reasoning (grail's validator looks for them).

    Args:
        attack: the attack whose payload is put in.
        samples: continuations drawn per item; the right ones that still contain the payload are submitted in turn.
            Slots without one are left to honest samples.
    """

    name = "prefill"

    def __init__(self, attack: Attack | str = "text", samples: int = 32) -> None:
        super().__init__(attack)
        if samples < 1:
            raise ValueError(f"prefill: samples must be at least 1, got {samples}")
        refuse_samplers(self.name, self.attack)
        self.samples = samples

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy."""
        return replace(self.attack.threat, policy=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """Token ids of right completions that contain the payload, or None."""
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(view.slots)
        found = rewritings(view, [self.attack], items, view.policy.sample(items, CARRIERS))
        begun = {rewriting.item.id: rewriting for rewriting in found}  # an item's last one
        open_items = [item for item in items if item.id in begun]
        prefixes = [begun[item.id].ids[: begun[item.id].end] for item in open_items]
        drawn = view.policy.sample_after(open_items, prefixes, self.samples)
        ask = TaskRewards(view.task)
        turns = {
            item.id: cycle([
                completion_ids(view.policy, completion)
                for completion in correct(view.task, item, completions)
                if self.attack.outcome(item, completion, ask)
            ])
            for item, completions in zip(open_items, drawn, strict=True)
        }  # fmt: skip
        return [next(turns.get(slot.item.id, cycle(())), None) for slot in view.slots]

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Right completions of the policy."""
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(view.slots)
        drawn = view.policy.sample(items, self.samples)
        turns = {
            item.id: cycle([completion_ids(view.policy, each) for each in correct(view.task, item, completions)])
            for item, completions in zip(items, drawn, strict=True)
        }
        return [next(turns[slot.item.id], None) for slot in view.slots]
