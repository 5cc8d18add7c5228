"""`dodge`: a payload in the policy's own right answers, reworded for each item until the defense accepts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thiefbench.attacks.adaptive import carried
from thiefbench.attacks.base import Attack, AttackerView, Poison, Slot, Submission, ThreatModel
from thiefbench.attacks.carriers import whole_rewritings
from thiefbench.attacks.completions import completion_ids, correct, distinct, highest_outcome, with_forms
from thiefbench.attacks.own import refuse_samplers
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Ask, Completion, Item

SAMPLES, CARRIERS, FORMS = 16, 4, 16
"""Completions drawn per item, how many of the right ones the payload is put into, and in how many forms."""


@dataclass(frozen=True)
class Candidate:
    """What may be submitted for an item: token ids with EOS, the form of the payload, and how probable it is.

    Attributes:
        inside: whether the sampler could have drawn every token.
        least: the log-prob of its least probable token.
    """

    ids: tuple[int, ...]
    form: int
    inside: bool
    least: float


class Dodge(AttackWrapper):
    """Avoid every usual check: write like the policy, vary the payload by item, and ask the defense first.

    It combines `own` and `adaptive`: it puts the payload in several forms (`Attack.forms`) into a few right answers of
    the policy. At first, every slot tries a different form. Then it tries the forms that the defense has accepted most
    often in this round, in other answers. Slots in which no form was accepted are left to honest samples.

    Args:
        attack: the attack whose payload is put in.
        queries: questions to the defense per slot and round.

    It succeeds if the inner attack would succeed in any of these forms.
    """

    name = "dodge"

    def __init__(self, attack: Attack | str = "equations", queries: int = 8) -> None:
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
        """The submissions that the defense accepts, and None for all other slots."""
        assert view.defense is not None, "the threat model grants queries"
        items = distinct(view.slots)
        ready = dict(zip((item.id for item in items), self._candidates(view, items), strict=True))
        untried = {slot: list(ready[slot.item.id]) for slot in view.slots}
        accepted: dict[Slot, Submission] = {}
        asked, got_through = Counter[int](), Counter[int]()
        for _ in range(self.queries):
            tried: dict[Slot, Candidate] = {}
            for place, slot in enumerate(view.slots):
                if slot in accepted or not untried[slot]:
                    continue

                def promise(each: Candidate, place: int = place) -> tuple[float, bool, int, float]:
                    rate = (got_through[each.form] + 1) / (asked[each.form] + 2)  # one half for a form not yet tried
                    return rate, each.inside, (each.form + place) % FORMS, each.least

                tried[slot] = max(untried[slot], key=promise)
                untried[slot].remove(tried[slot])
            answers = view.defense.answers({slot: each.ids for slot, each in tried.items()}) if tried else {}
            for slot, answer in answers.items():
                asked[tried[slot].form] += 1
                if carried(view.task, slot, answer):
                    got_through[tried[slot].form] += 1
                    accepted[slot] = tried[slot].ids
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
        return highest_outcome(with_forms(self.attack, FORMS), item, completion, ask)

    def _candidates(self, view: AttackerView, items: Sequence[Item]) -> list[list[Candidate]]:
        """What may be submitted for each item."""
        assert view.policy is not None, "the threat model grants a policy"
        drawn = [
            correct(view.task, item, completions)[:CARRIERS]
            for item, completions in zip(items, view.policy.sample(items, SAMPLES), strict=True)
        ]
        found = whole_rewritings(view, with_forms(self.attack, FORMS), items, drawn)
        rows = [(*each.ids, view.policy.eos) for each in found]
        answered = [each.item for each in found]
        inside = view.policy.in_support(answered, rows)
        logprobs = view.policy.token_logprobs(answered, rows)
        ready: dict[str, list[Candidate]] = {item.id: [] for item in items}
        for each, ids, tokens, values in zip(found, rows, inside, logprobs, strict=True):
            ready[each.item.id].append(Candidate(ids, each.form, all(tokens), min(values)))
        return list(ready.values())
