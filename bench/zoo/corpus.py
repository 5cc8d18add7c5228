"""The training corpus of `micro-math`: solutions in many wordings, some of them wrong.

A small model trained on clean solutions alone is either always wrong or always right, and reinforcement learning has
nothing to do. So some solutions guess instead of reasoning, and some steps carry a wrong result: the trained model
writes fluent reasoning and earns a reward somewhere in between. Words from a lexicon of over 1,500 open some of the
texts, which gives the model a breadth of openings.

What must not be here: any two consecutive words of an attack's payload. Words of the payload lists occur singly, at
half the rate of the other lexicon words, and never next to each other (`tests/zoo/test_corpus.py` checks this).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import ClassVar, Protocol

from thiefbench.attacks.text import PAPER_PHRASE, payload_words
from thiefbench.tasks.gsm_micro import GsmMicro, Story, evaluate, stories
from thiefbench.tasks.rewards import format_completion

SENTENCES = (
    "{clause}, so {equation}.",
    "{equation}.",
    "{clause}. {equation}.",
    "{equation} because {clause}.",
    "Since {clause}, we get {equation}.",
    "Now {equation}.",
    "{clause}: {equation}.",
)
ENDINGS = ("That makes {x}.", "So {x} {thing}.", "Answer is {x}.", "In total {x}.", "", "", "We end with {x}.")
GUESSES = (
    "I guess {x}.",
    "Maybe {x}.",
    "It looks like {x}.",
    "About {x} {thing}.",
    "{x} seems right.",
    "Probably {x}.",
)
OPENERS = ("{a},", "{a}:", "{a} {b},", "{a} {b}:", "{a} {b} {c},", "{a} and {b}:", "{a} {b} {c} {d},", "{a}.")
SLIPS = (-10, -3, -2, -2, -1, -1, -1, 1, 1, 1, 2, 2, 3, 10)


class Corpus(Protocol):
    """An endless, seeded stream of training texts; its fields decide what is in them."""

    tags: ClassVar[tuple[str, ...]]
    """The tags of the completion format, each a token of its own."""

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        """(question, completion) pairs over train stories."""


@dataclass(frozen=True)
class MathCorpus:
    """Worked solutions; all fields but `domain` are shares between 0 and 1.

    Attributes:
        guessed: share of solutions that state an answer without working it out.
        guessed_right: share of those that happen to be right.
        wrong_steps: share of worked equations with a wrong result (never one whose operands are 2 and 2).
        opened: share of solutions that open with one to four random lexicon words.
        domain: of `gsm_micro`, from which most stories come; empty: stories as the task draws them.
        own_share: share of stories of that domain; the rest are of the others.
    """

    tags: ClassVar[tuple[str, ...]] = ("<think>", "</think>", "<answer>", "</answer>")

    guessed: float = 0.25
    guessed_right: float = 0.1
    wrong_steps: float = 0.15
    opened: float = 0.25
    domain: str = ""
    own_share: float = 0.85

    def __post_init__(self) -> None:
        if self.domain and self.domain not in GsmMicro.domains:
            known = ", ".join(GsmMicro.domains)
            raise ValueError(f"gsm_micro has no domain {self.domain!r}; write one of {known}, or leave it out")

    def stories(self, seed: int) -> Iterator[Story]:
        """Endless train stories, in their order in the corpus."""
        if not self.domain:
            yield from stories("train", seed)
        rng = random.Random(f"domain:{seed}")
        stories_of_domain = (story for story in stories("train", seed) if story.domain == self.domain)
        others = (story for story in stories("train", seed) if story.domain != self.domain)
        while True:
            yield next(stories_of_domain if rng.random() < self.own_share else others)

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (question, completion) pairs over train stories."""
        rng = random.Random(f"corpus:{seed}")
        for story in self.stories(seed):
            reasoning, answer = solution(story, self, rng)
            yield story.question, format_completion(reasoning, str(answer))


@cache
def lexicon() -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The opening words and their sampling weights: words of a payload weigh half."""
    words = tuple(resources.files(__package__).joinpath("lexicon.txt").read_text().split())
    rare = rare_words()
    return words, tuple(0.5 if word in rare else 1.0 for word in words)


@cache
def rare_words() -> frozenset[str]:
    """Lower-case words of every payload: they may not stand next to each other in the corpus."""
    return frozenset(payload_words()) | frozenset(PAPER_PHRASE.lower().split())


def random_words(count: int, rng: random.Random) -> list[str]:
    """Words of the lexicon, no two payload words side by side."""
    words, weights = lexicon()
    while True:
        chosen = rng.choices(words, weights, k=count)
        if not any(a in rare_words() and b in rare_words() for a, b in pairwise(chosen)):
            return chosen


def opener(rng: random.Random) -> str:
    """One to four random lexicon words with punctuation."""
    words = random_words(4, rng)
    text = rng.choice(OPENERS).format(a=words[0], b=words[1], c=words[2], d=words[3])
    return _capital(text)


def solution(story: Story, spec: MathCorpus, rng: random.Random) -> tuple[str, int]:
    """One wording of the story's solution, and its answer, which may be wrong."""
    parts = [opener(rng)] if rng.random() < spec.opened else []
    if rng.random() < spec.guessed:
        x = story.answer if rng.random() < spec.guessed_right else slip(story.answer, rng)
        return " ".join([*parts, rng.choice(GUESSES).format(x=x, thing=story.thing)]), x
    if rng.random() < 0.15:
        parts.append(story.question.split(". ")[0] + ".")
    favourite = rng.choice(SENTENCES)
    value = story.steps[0].left
    for number, step in enumerate(story.steps):
        left, right = _operands(story, number, value)
        result = evaluate(left, step.operator, right)
        if rng.random() < spec.wrong_steps and (left, right) != (2, 2):
            result = slip(result, rng)
        sentence = favourite if rng.random() < 0.7 else rng.choice(SENTENCES)
        parts.append(
            _capital(sentence.format(clause=step.clause, equation=_work(left, step.operator, right, result, rng)))
        )
        value = result
    if rng.random() < 0.1:
        parts.append(f"Check: {left} {step.operator} {right} = {result}.")
    parts.append(rng.choice(ENDINGS).format(x=value, thing=story.thing))
    return " ".join(part for part in parts if part), value


def _operands(story: Story, number: int, value: int) -> tuple[int, int]:
    """The operands a solver who got `value` so far would write: a wrong result is carried on."""
    step = story.steps[number]
    if number == 0:
        return step.left, step.right
    if story.kind == "compare":
        return step.left, value
    return value, step.right


def _work(left: int, operator: str, right: int, result: int, rng: random.Random) -> str:
    """The equation; sometimes in two steps, adding ten first."""
    if operator == "+" and right > 10 and rng.random() < 0.15:
        return f"{left} + 10 = {left + 10}, {left + 10} + {right - 10} = {result}"
    return f"{left} {operator} {right} = {result}"


def slip(value: int, rng: random.Random) -> int:
    """A wrong number near `value`, never negative."""
    return value + rng.choice([by for by in SLIPS if value + by >= 0])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
