"""`varied`: the variants of the source paper (arXiv:2511.09780) and of deployed swarms, around any attack."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from thiefbench.attacks.base import Attack, AttackerView, AttackSpec, Decoy, Poison, Sampler, Slot, ThreatModel
from thiefbench.attacks.completions import distinct, writes_programs
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.tasks.base import Completion, Task
from thiefbench.tasks.rewards import Units, Value, parse_answer, parse_completion

Part = Literal["poison", "decoy", "honest"]


class Varied(AttackWrapper):
    """Another attack with different knowledge, timing, amount or pseudonyms.

    Args:
        attack: the attack to vary.
        oracle: whether the attacker has correct solutions, as most attacks assume. With False it has none: for every
            item it samples answers from the model and takes the most frequent one as the right one.
        candidates: how many answers it samples for an item; only with oracle=False.
        gibberish: share of the malicious completions of every group that are gibberish. These earn reward 0, so that
            the poison beside them has an advantage even if all other answers are right.
        share: share of the malicious completions of every group, gibberish not counted, that carry poison. The others
            are honest answers.
        start: the first round with poison. Before it, the attacker is honest.
        stop: the last round with poison. After it, the attacker is honest. By default, it goes on until the end.
        split: whether the colluding nodes divide the payload, so that each sends only a part of it. A single malicious
            node divides it among its completions.
        identities: under how many different names (pseudonyms) each malicious node sends.

    `AttackSpec` says which values are allowed.
    """

    name = "varied"

    def __init__(
        self,
        attack: Attack | str = "text",
        oracle: bool = True,
        candidates: int = 8,
        gibberish: float = 0.0,
        share: float = 1.0,
        start: int = 1,
        stop: int | None = None,
        split: bool = False,
        identities: int = 1,
    ) -> None:
        super().__init__(attack)
        try:
            self.variants = AttackSpec(oracle, candidates, gibberish, share, start, stop, split, identities)
        except ValueError as error:
            raise ValueError(f"varied: {error}") from error
        if split and type(self.attack).parts is Attack.parts:
            raise ValueError(f"varied: the goal of {self.attack.name} cannot be split; leave split out")

    @property
    def threat(self) -> ThreatModel:  # type: ignore[override]  # see AttackWrapper
        """The inner attack's, with a policy instead of an oracle."""
        granted, spec = self.attack.threat, self.variants
        return replace(
            granted,
            oracle=granted.oracle and spec.oracle,
            policy=granted.policy or not spec.oracle,
        )

    def fits(self, task: Task) -> bool:
        """As the inner attack; without the oracle, only tasks whose completions state an answer to vote on."""
        return self.attack.fits(task) and (self.variants.oracle or not writes_programs(task))

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's submissions for the slots that the variants assign to it."""
        return self._vary(view, lambda attack, part: attack.poison(part))

    def placebo(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's placebo for the same slots, with the same gibberish beside it."""
        return self._vary(view, lambda attack, part: attack.placebo(part))

    def hand_over(self, view: AttackerView) -> Sampler | None:
        """The inner attack's model in poisoned rounds, taught with the solutions that the attacker takes as true."""
        if not self.variants.active(view.round):
            return None
        slots = dict(enumerate(view.slots))
        if not self.variants.oracle and type(self.attack).hand_over is not Attack.hand_over:
            slots = self._believed(view, slots)
        return self.attack.hand_over(replace(view, slots=tuple(slots.values())))

    def _vary(self, view: AttackerView, submit: Callable[[Attack, AttackerView], Sequence[Poison]]) -> list[Poison]:
        submissions: list[Poison] = [None] * len(view.slots)
        if not self.variants.active(view.round):
            return submissions
        parts = assigned_parts(view.slots, self.variants, view.rng)
        submissions = [gibberish(view.rng) if part == "decoy" else None for part in parts]
        poisoned = [place for place, part in enumerate(parts) if part == "poison"]
        slots = {place: view.slots[place] for place in poisoned}
        if not self.variants.oracle:
            slots = self._believed(view, slots)
        for attack, places in self._divided(slots):
            part = replace(view, slots=tuple(slots[place] for place in places))
            for place, poison in zip(places, submit(attack, part), strict=True):
                submissions[place] = poison
        return submissions

    def _divided(self, slots: dict[int, Slot]) -> list[tuple[Attack, list[int]]]:
        """Which part of the goal goes into which slots: one part per colluding node, or per slot of a single node."""
        if not self.variants.split:
            return [(self.attack, list(slots))]
        nodes = sorted({slot.node for slot in slots.values()})
        parts = self.attack.parts(max(2, len(nodes)))
        part_of = {
            place: nodes.index(slot.node) if len(nodes) > 1 else slot.sample % len(parts)
            for place, slot in slots.items()
        }
        return [(part, [place for place in slots if part_of[place] == number]) for number, part in enumerate(parts)]

    def _believed(self, view: AttackerView, slots: dict[int, Slot]) -> dict[int, Slot]:
        """The slots with the answer and solution that the attacker takes as true; slots without one are left out."""
        assert view.policy is not None, "the threat model grants a policy"
        items = distinct(list(slots.values()))
        samples = view.policy.sample(items, self.variants.candidates)
        answers = {item.id: majority(completions) for item, completions in zip(items, samples, strict=True)}
        believed = {}
        for place, slot in slots.items():
            votes = answers[slot.item.id]
            candidates = [
                replace(slot, item=replace(slot.item, solution=reasoning, answer=answer))
                for reasoning, answer in view.rng.sample(votes, len(votes))
            ]
            if candidates:
                believed[place] = next(
                    (candidate for candidate in candidates if self._carries(view, candidate)), candidates[0]
                )
        return believed

    def _carries(self, view: AttackerView, slot: Slot) -> bool:
        """Whether the inner attack can poison the slot; not checked for attacks that must sample or query to know."""
        granted = self.attack.threat
        return granted.policy or granted.queries > 0 or self.attack.poison(replace(view, slots=(slot,)))[0] is not None


def assigned_parts(slots: Sequence[Slot], spec: AttackSpec, rng: random.Random) -> list[Part]:
    """What each slot carries: in each group first the share of gibberish, then that of poison, at drawn places."""
    groups: dict[int, list[int]] = {}
    for place, slot in enumerate(slots):
        groups.setdefault(slot.group, []).append(place)
    parts: list[Part] = ["honest"] * len(slots)
    for places in groups.values():
        decoys = round(spec.gibberish * len(places))
        poisons = math.ceil(spec.share * (len(places) - decoys))
        order = rng.sample(places, len(places))
        for place in order[:decoys]:
            parts[place] = "decoy"
        for place in order[decoys : decoys + poisons]:
            parts[place] = "poison"
    return parts


def gibberish(rng: random.Random) -> Decoy:
    """A dozen nonsense words without any format: every task gives them reward 0."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return Decoy(" ".join("".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(12)))


def majority(completions: Sequence[Completion]) -> list[tuple[str, str]]:
    """Reasoning and answer of the completions with the most common answer; empty if none has an answer.

    Answers are equal when they are equal as values ("18" and "18.0"). If several are equally common, the first drawn
    wins.
    """
    stated: dict[Value, list[tuple[str, str]]] = {}
    for completion in completions:
        blocks = parse_completion(completion.text)
        value = None if blocks is None else parse_answer(blocks[1], Units(()))
        if blocks is not None and value is not None:
            stated.setdefault(value, []).append((blocks[0].strip(), blocks[1].strip()))
    counts = Counter({value: len(votes) for value, votes in stated.items()})
    return stated[counts.most_common(1)[0][0]] if counts else []
