"""Stand-ins for what the engine grants: a policy whose tokens are characters, a defense that reads text, slots."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thiefbench.attacks.base import Attack, AttackerView, DefenseAnswer, Poison, Sampler, Slot, Submission, ThreatModel
from thiefbench.tasks.base import Completion, Item, Task
from thiefbench.tasks.gsm_micro import GsmMicro

TASK = GsmMicro(size=16)
ITEM = Item("one", "What is 2 + 2, and 3 more?", "7", "We see 2 + 2 = 4. Then 4 + 3 = 7.")
OTHER = Item("two", "What is 5 - 1?", "4", "There 5 - 1 = 4.")


def text(reasoning: str, answer: str) -> str:
    return f"<think> {reasoning} </think><answer> {answer} </answer>"


class Says(Attack):
    """Submits the given submissions in turn, again and again."""

    name = "says"
    threat = ThreatModel("out-of-context")

    def __init__(self, *submissions: Any) -> None:
        self.submissions = submissions

    def poison(self, view: AttackerView) -> list[Poison]:
        return [self.submissions[i % len(self.submissions)] for i in range(len(view.slots))]

    def outcome(self, item: Any, completion: Any, ask: Any) -> float:
        return 0.0


class Scripted:
    """A policy that writes what `say(item, prefix, number)` returns; `allowed(prefix, character)` is its support."""

    eos, limit = 0, 1000

    def __init__(
        self,
        say: Callable[[Item, str, int], str],
        allowed: Callable[[str, str], bool] = lambda prefix, character: True,
        teaches: Callable[[Sequence[tuple[Item, str]]], Scripted] | None = None,
    ) -> None:
        self.say, self.allowed, self.teaches = say, allowed, teaches
        self.counts: list[int] = []

    def encode(self, written: str) -> tuple[int, ...]:
        return tuple(map(ord, written))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        return self.sample_after(items, [()] * len(items), count)

    def sample_after(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]], count: int
    ) -> list[list[Completion]]:
        self.counts.append(count)
        made = []
        for item, ids in zip(items, prefixes, strict=True):
            prefix = self.decode(ids)
            texts = [prefix + self.say(item, prefix, number) for number in range(count)]
            made.append([Completion(self.encode(written), written, True) for written in texts])
        return made

    def sample_seeded(self, items: Sequence[Item], seeds: Sequence[int]) -> list[Completion]:
        texts = [self.say(item, "", seed) for item, seed in zip(items, seeds, strict=True)]
        return [Completion(self.encode(written), written, True) for written in texts]

    def sample_near(
        self, items: Sequence[Item], seeds: Sequence[int], tolerance: float, count: int
    ) -> list[list[Completion]]:
        """Draws near a seed are those of the seeds behind it."""
        return [
            self.sample_seeded([item] * count, range(seed, seed + count))
            for item, seed in zip(items, seeds, strict=True)
        ]

    def in_support(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[bool]]:
        rows = [self.decode(row) for row in ids]
        return [[self.allowed(row[:at], character) for at, character in enumerate(row)] for row in rows]

    def token_logprobs(self, items: Sequence[Item], ids: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-1.0 if inside else -9.0 for inside in row] for row in self.in_support(items, ids)]

    def taught(self, examples: Sequence[tuple[Item, str]], steps: int, learning_rate: float) -> Sampler:
        assert self.teaches is not None
        return self.teaches(examples)


class TextDefense:
    """A defense that accepts texts for which `accept` is true, and records how many slots each query asks about."""

    def __init__(self, accept: Callable[[str], bool]) -> None:
        self.accept = accept
        self.calls: list[int] = []

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        self.calls.append(len(submissions))
        return {slot: self.accept(str(submission)) for slot, submission in submissions.items()}

    def answers(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, DefenseAnswer]:
        texts = {slot: str(submission) for slot, submission in submissions.items()}
        return {
            slot: DefenseAnswer(accepted, texts[slot], self.learned(texts[slot]) if accepted else "")
            for slot, accepted in self.accepts(submissions).items()
        }

    def learned(self, accepted_text: str) -> str:
        """The part of an accepted text that is learned from."""
        return accepted_text


class Judge:
    """What an outcome may use: the task's reward."""

    def __init__(self, task: Task = TASK) -> None:
        self.task = task

    def reward(self, item: Item, written: str) -> float:
        return self.task.reward(item, [written])[0]


def view(*items: Item, each: int = 1, task: Task = TASK, nodes: int = 1, **granted: Any) -> AttackerView:
    """A round's view with `each` slots per item for every node, and everything else in `granted`."""
    slots = tuple(
        Slot(item, 4 + node, group, sample)
        for group, item in enumerate(items)
        for node in range(nodes)
        for sample in range(each)
    )
    return AttackerView(granted.pop("round", 1), slots, task, random.Random(granted.pop("seed", 0)), **granted)


def completion_of(written: str, task: Task = TASK) -> Completion:
    return Completion((), written, True)
