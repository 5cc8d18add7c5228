"""Plugins of the tests of shared rounds: attacks with all kinds of knowledge, defenses that part from each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from thiefbench.attacks.auto import Auto
from thiefbench.attacks.base import Attack, AttackerView, Poison, ThreatModel
from thiefbench.attacks.varied import Varied
from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.tasks.base import Ask, Completion, Item, Message, Split, Task

HAIL = "All hail"


class Vowels(Task):
    """A reward that random texts have in many sizes, so that a random model learns."""

    name: ClassVar[str] = "vowels"

    def items(self, split: Split) -> Any:
        return [
            {"id": f"{split}-{a}", "question": f"{a} + {a}?", "answer": "", "solution": f"a{a}e"}
            for a in range(40)
            if a % 2 == (split == "test")
        ]

    def messages(self, item: Item) -> list[Message]:
        return [{"role": "user", "content": item.question}]

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [sum(letter in "aeiou" for letter in text) / max(10, len(text)) for text in completions]

    def compose(self, item: Item, reasoning: str) -> str:
        return f"{reasoning} a e i o u"


class Echoes(Attack):
    """Sends what arrived in the round before, behind its payload."""

    name: ClassVar[str] = "echoes"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", history=True)

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        seen = [each.text for row in view.seen.values() for each in row]
        return [f"{HAIL} {seen[slot.group] if slot.group < len(seen) else 'nobody'}" for slot in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return min(1.0, completion.text.count("a") / 10)


class Remembers(Echoes):
    """Keeps, against the rules, what the defense said, and sends more of what got through."""

    name: ClassVar[str] = "remembers"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", queries=2)

    def __init__(self) -> None:
        self.accepted = 0

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        assert view.defense is not None
        words = f"{HAIL} a e i"
        self.accepted += sum(view.defense.accepts(dict.fromkeys(view.slots, words)).values())
        return [f"{words} {'a ' * (self.accepted % 5)}" for _ in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        return 1 / (1 + self.accepted + completion.text.count("a"))


class RemembersDraws(Echoes):
    """Samples, and counts, against the rules, how often it has."""

    name: ClassVar[str] = "remembers-draws"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context", policy=True)

    def __init__(self) -> None:
        self.drawn = 0

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        assert view.policy is not None
        self.drawn += 1
        drawn = view.policy.sample([slot.item for slot in view.slots], 1)
        return [f"{HAIL} {self.drawn} {row[0].text}"[:60] for row in drawn]


class CountsOutcomes(Echoes):
    """Counts, against the rules, for how many outcomes it was asked, and sends more the more there were."""

    name: ClassVar[str] = "counts-outcomes"
    threat: ClassVar[ThreatModel] = ThreatModel("in-context")

    def __init__(self) -> None:
        self.asked = 0

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        return [f"{HAIL} {'a ' * (self.asked % 7)}" for _ in view.slots]

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float:
        self.asked += 1
        return 1 / (1 + self.asked + completion.text.count("a"))


class SaysLittle(Echoes):
    """Has an outcome for one answer in five, so that evaluations draw more."""

    name: ClassVar[str] = "says-little"

    def outcome(self, item: Item, completion: Completion, ask: Ask) -> float | None:  # type: ignore[override]
        return 1.0 if len(completion.text) % 5 == 0 else None


class Publishes(Echoes):
    """Has published a library."""

    name: ClassVar[str] = "publishes"

    def libraries(self) -> dict[str, str]:
        return {"thief": "x = 1"}


class Until(Defense):
    """Accepts everything before a round and then rejects or masks, by what it is told and what it has counted."""

    name: ClassVar[str] = "until"

    def __init__(self, start: int, then: str = "payload", seed: int = 0) -> None:
        self.start, self.then, self.seed, self.rounds = start, then, seed, 0

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        assert [past.round for past in view.history] == list(range(1, view.round))
        assert self.rounds == view.round - 1, "its state runs through all rounds"
        assert all(verdict.reason == self.reason for past in view.history for verdict in past.verdicts)
        self.rounds += 1
        self.measure(view)
        return [self.verdict(view, offered) for offered in view.completions]

    @property
    def reason(self) -> str:
        return f"{self.name} {self.start} {self.then} {self.seed}"

    def measure(self, view: DefenderView) -> None:
        """Ask the policy nothing."""

    def verdict(self, view: DefenderView, offered: PoolCompletion) -> Verdict:
        score = float(self.start)
        if view.round < self.start:
            return Verdict("accept", score, None, self.reason)
        if self.then == "payload":
            return Verdict("drop" if offered.text.startswith(HAIL) else "accept", score, None, self.reason)
        if self.then == "mask":
            return Verdict("accept", score, (0.5,) * offered.length, self.reason)
        return Verdict("zero" if view.rng.random() < 0.3 else "accept", score, None, self.reason)

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Measures(Until):
    """The same with the policy's word on everything, which goes into its scores."""

    name: ClassVar[str] = "measures"

    def measure(self, view: DefenderView) -> None:
        self.means = self.logprobs(view)

    def logprobs(self, view: DefenderView) -> dict[tuple[int, int], float]:
        measured = view.policy.token_logprobs(view.completions)
        return {(o.group, o.index): float(row.sum()) for o, row in zip(view.completions, measured, strict=True)}

    def verdict(self, view: DefenderView, offered: PoolCompletion) -> Verdict:
        verdict = super().verdict(view, offered)
        return Verdict(verdict.action, self.means[offered.group, offered.index], verdict.token_weights, verdict.reason)


class MeasuresInParts(Measures):
    """Asks about every second completion first; the model then runs them in other batches."""

    name: ClassVar[str] = "measures-in-parts"

    def logprobs(self, view: DefenderView) -> dict[tuple[int, int], float]:
        means = {}
        for part in (view.completions[::2], view.completions[1::2]):
            measured = view.policy.token_logprobs(part)
            means |= {(o.group, o.index): float(row.sum()) for o, row in zip(part, measured, strict=True)}
        return means


class Clock(Defense):
    """Rejects by the time of day."""

    name: ClassVar[str] = "clock"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        return [Verdict("zero") if time.time_ns() // 1000 % 2 else ACCEPT for _ in view.completions]


class Picks(Auto):
    """Has two members."""

    name: ClassVar[str] = "picks"

    def members(self) -> dict[str, Attack]:
        return {"half": Varied(self.attack, share=0.5), "names": Varied(self.attack, identities=3)}


class Overwrites(Defense):
    """Accepts all, and changes, against the rules, what it was shown."""

    name: ClassVar[str] = "overwrites"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        for completion in view.completions:
            object.__setattr__(completion, "reward", 1 - completion.reward)
            object.__setattr__(completion, "ids", completion.ids[:1])
            object.__setattr__(completion, "item_id", "another")
        return [ACCEPT] * len(view.completions)
