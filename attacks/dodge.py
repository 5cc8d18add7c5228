"""`dodge`: another attack's payload in the policy's own right answers, reworded item by item until it gets through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from thiefbench.attacks.adaptive import carried
from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot, Submission, ThreatModel
from thiefbench.attacks.carriers import Rewriting, rewritings
from thiefbench.attacks.completions import completion_ids, correct, distinct
from thiefbench.attacks.own import refuse_samplers
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Ask, Completion, Item

SAMPLES, CARRIERS, FORMS = 16, 3, 16
"""Completions drawn per item, how many of the right ones the payload is put into, and in how many forms."""


class Dodge(AttackWrapper):
    """Know every usual rule: write as the policy writes, word the payload otherwise for each item, and ask first.

    It joins `own` and `adaptive`. The payload is put in its forms (`Attack.forms`) into a few right answers of the
    policy. For each item the form is tried first whose least probable token is the most probable; what the defense
    objects to is tried in the item's next form. Slots in which nothing got through are left to honest samples.

    Args:
        attack: the attack whose payload is put in.
        queries: per slot and round, each with another form.

    It succeeds where the inner attack would, in any of these forms.
    """

    name = "dodge"

    def __init__(self, attack: Attack | str = "equations", queries: int = 6) -> None:
        super().__init__(attack)
        if queries < 1:
            raise ValueError(f"dodge: queries must be at least 1, got {queries}")
        refuse_samplers(self.name, self.attack)
        self.queries = queries

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with the policy and queries."""
        return replace(self.attack.threat, policy=True, queries=self.queries)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The submissions that get through, and None for all other slots."""
        assert view.policy is not None, "the threat model grants a policy"
        assert view.defense is not None, "the threat model grants queries"
        items = distinct(view.slots)
        by_form = {item.id: found for item, found in zip(items, self._candidates(view, items), strict=True)}
        accepted: dict[Slot, Submission] = {}
        for query in range(self.queries):
            tried: dict[Slot, Submission] = {}
            for place, slot in enumerate(view.slots):
                forms = by_form[slot.item.id]
                if slot not in accepted and query < len(forms):
                    carriers = forms[query]
                    tried[slot] = (*carriers[place % len(carriers)].ids, view.policy.eos)
            answers = view.defense.answers(tried) if tried else {}
            accepted |= {slot: tried[slot] for slot, answer in answers.items() if carried(view.task, slot, answer)}
        return [accepted.get(slot) for slot in view.slots]

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """Right completions of the policy."""
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(view.slots)
        drawn = zip(items, view.policy.sample(items, SAMPLES), strict=True)
        ready = {item.id: correct(view.task, item, completions)[:CARRIERS] for item, completions in drawn}
        chosen = (
            ready[slot.item.id][place % len(ready[slot.item.id])] if ready[slot.item.id] else None
            for place, slot in enumerate(view.slots)
        )
        return [completion_ids(view.policy, completion) for completion in chosen]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:
        """The highest outcome among the forms; None where every form's outcome is None."""
        outcomes = (form.outcome(item, completion, ask) for form in self._goals())
        return max((outcome for outcome in outcomes if outcome is not None), default=None)

    def _goals(self) -> list[Attack]:
        return [self.attack, *islice(self.attack.forms(), FORMS - 1)]

    def _candidates(self, view: AttackerView, items: Sequence[Item]) -> list[list[list[Rewriting]]]:
        """For each item, form by form in the order in which they are tried, the rewritten carriers."""
        assert view.policy is not None, "the threat model grants a policy"
        drawn = [
            correct(view.task, item, completions)[:CARRIERS]
            for item, completions in zip(items, view.policy.sample(items, SAMPLES), strict=True)
        ]
        found = list(rewritings(view, self._goals(), items, drawn))
        logprobs = view.policy.token_logprobs([each.item for each in found], [each.ids for each in found])
        least: dict[tuple[str, int], float] = {}
        carriers: dict[tuple[str, int], list[Rewriting]] = {}
        for each, row in zip(found, logprobs, strict=True):
            at = each.item.id, each.form
            least[at] = max(least.get(at, -float("inf")), min(row))
            carriers.setdefault(at, []).append(each)
        order = sorted(carriers, key=lambda at: -least[at])
        return [[carriers[at] for at in order if at[0] == item.id] for item in items]
