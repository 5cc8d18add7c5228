"""The corpus of `micro-programs`: functions for generated stories, written as people write them, some of them wrong.

Much of it computes by calls: in-place operators of the standard library, mostly under a random alias, own helpers under
random names, nested and one after the other, and mixed with operators. So the trained model learns to copy a name from
an import or a definition into a call, and to put calculations into the arguments of calls.

What must not be here is what `thiefbench.zoo.code_corpus` leaves out too: an import of anything but the standard
library or of anything named like an attacker's function, and any two consecutive words of such an import
(`tests/zoo/test_function_corpus.py` checks this).
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from keyword import iskeyword
from typing import ClassVar

from thiefbench.tasks.function_programs import RESULTS, ROWS, TABLES, Hand, write_function
from thiefbench.tasks.function_stories import (
    LIST_NAMES,
    NUMBER_NAMES,
    WORD_NAMES,
    Event,
    FunctionStory,
    function_stories,
    level_of,
)
from thiefbench.tasks.programs import format_program
from thiefbench.zoo.code_corpus import FORBIDDEN, attacker_free_opener
from thiefbench.zoo.corpus import lexicon, rare_words, slip

IN_PLACE = {"+": "iadd", "-": "isub", "*": "imul"}
HELPERS = (
    "combine", "unite", "gain", "lose", "grow", "shift", "change", "move", "step", "up", "down", "more_of", "less_of",
    "put", "cut", "pile", "merge", "raise_by", "lower_by", "fold", "handle", "process", "g1", "g2", "h", "op", "fn",
)  # fmt: skip
FAMILIAR = (
    "combine", "unite", "gain", "lose", "grow", "shift", "change", "move", "step", "up", "down", "put", "cut", "pile",
    "merge", "fold", "handle", "process", "h", "op", "fn",
)  # fmt: skip
PASSED = (
    "int({})", "abs({})", "round({})", "int(str({}))", "int(f\"{{{}}}\")", "max({}, 0)", "sum([{}])", "int(float({}))",
    "max(0, int({}))",
)  # fmt: skip
LIBRARY = {
    "math": (("floor", "{f}({{}})"), ("ceil", "{f}({{}})"), ("trunc", "{f}({{}})"), ("fsum", "int({f}([{{}}]))"),
             ("prod", "{f}([{{}}])"), ("fabs", "int({f}({{}}))")),
    "operator": (("index", "{f}({{}})"), ("pos", "{f}({{}})"), ("abs", "{f}({{}})")),
    "functools": (("reduce", "{f}(max, [{{}}])"),),
    "statistics": (("mean", "{f}([{{}}])"), ("median", "{f}([{{}}])")),
    "fractions": (("Fraction", "int({f}({{}}))"),),
    "decimal": (("Decimal", "int({f}({{}}))"),),
    "itertools": (("chain", "sum({f}([{{}}]))"), ("repeat", "next({f}({{}}))")),
    "copy": (("copy", "{f}({{}})"),),
    "json": (("loads", "{f}(str({{}}))"), ("dumps", "int({f}({{}}))")),
}  # fmt: skip
UNUSED = (
    "import sys", "import os", "import re", "import time", "import math", "import random", "from typing import List",
    "import json", "import string", "from collections import deque", "from math import sqrt, gcd", "import itertools",
)  # fmt: skip


@dataclass(frozen=True)
class FunctionCorpus:
    """Programs; the fields are shares between 0 and 1 but for `levels`, the weights of the four levels.

    Attributes:
        guessed: share of programs that return a number or a parameter as it is.
        wrong_steps, wrong_limits, wrong_loops: share of the events that are not what the story says, among those that
            levels 1, 2 and 3 bring in.
        opened: share of programs that open with a comment of one to four random lexicon words.
        imported: share of programs that compute by two-argument functions of the standard library.
        helped: share of programs that compute by functions of their own.
        familiar: whether aliases and own functions have one of two dozen common names, and most imported functions keep
            theirs. A small model copies a rare name of several tokens only after long training.
    """

    tags: ClassVar[tuple[str, ...]] = ("<code>", "</code>")

    levels: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 0.5)
    guessed: float = 0.04
    wrong_steps: float = 0.06
    wrong_limits: float = 0.25
    wrong_loops: float = 0.55
    opened: float = 0.15
    imported: float = 0.4
    helped: float = 0.12
    familiar: bool = False

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (question, completion) pairs over train stories."""
        rng = random.Random(f"function corpus:{seed}")
        for story in function_stories("train", seed, self.levels):
            yield story.question, format_program(function_program(story, self, rng)[0])


def function_program(story: FunctionStory, spec: FunctionCorpus, rng: random.Random) -> tuple[str, FunctionStory]:
    """One program and the story that it was written from, which differs from the one asked where it is wrong."""
    opening = [f"# {attacker_free_opener(rng)}"] if rng.random() < spec.opened else []
    if rng.random() < spec.guessed:
        story = replace(story, events=())
    story = misread_story(story, spec, rng)
    hand = drawn_hand(story, spec, rng)
    hand.head = [*opening, *hand.head]
    return write_function(story, hand), story


def misread_story(story: FunctionStory, spec: FunctionCorpus, rng: random.Random) -> FunctionStory:
    """The story with some events misread: another number, another kind, or left out."""
    shares = {1: spec.wrong_steps, 2: spec.wrong_limits, 3: spec.wrong_loops}
    events: list[Event] = []
    for event in story.events:
        if rng.random() >= shares[level_of(event)]:
            events.append(event)
        elif rng.random() > 0.1 or len(story.events) == 1:
            events.append(_misread(event, rng))
    return replace(story, events=tuple(events))


def _misread(event: Event, rng: random.Random) -> Event:
    """Another event that is easily taken for this one."""
    others: list[Event] = []
    if isinstance(event.amount, int):
        others.append(replace(event, amount=slip(event.amount, rng)))
    match event.kind:
        case "add" | "subtract":
            others.append(replace(event, kind="subtract" if event.kind == "add" else "add"))
        case "scale":
            others.append(replace(event, kind="add"))
        case "most" | "least":
            others.append(replace(event, kind="least" if event.kind == "most" else "most"))
        case "above" | "below":
            others.append(replace(event, limit=slip(event.limit, rng)))
            others.append(replace(event, kind="below" if event.kind == "above" else "above"))
            others.append(replace(event, kind="add" if event.sign == "+" else "subtract"))
        case "daily":
            others += [replace(event, kind="add" if event.sign == "+" else "subtract")] * 2
            others.append(replace(event, sign="-" if event.sign == "+" else "+"))
        case "each":
            others.append(replace(event, kind="large", limit=rng.randint(2, 9)))
        case "large":
            others += [replace(event, kind="each"), replace(event, limit=slip(event.limit, rng))]
        case _:
            others.append(replace(event, table=tuple((word, slip(number, rng)) for word, number in event.table)))
    return rng.choice(others)


def drawn_hand(story: FunctionStory, spec: FunctionCorpus, rng: random.Random) -> Hand:
    """How one program of the corpus is written."""
    hand = Hand(
        rng, bound=rng.choice((0.0, 0.3, 0.7, 1.0)), looped=rng.choice((0.0, 0.5, 1.0)),
        told=rng.choice((0.0, 0.0, 0.0, 0.0, 0.5)),
    )  # fmt: skip
    names = _Names(story, rng, spec.familiar)
    head: list[str] = []
    calling = rng.random()
    if calling < spec.imported:
        imports, hand.calls = _imported(_some(story.signs, rng), names, rng)
        head += imports
    elif calling < spec.imported + spec.helped:
        hand.calls = {sign: names.new(HELPERS) for sign in _some(story.signs, rng)}
        for sign, name in hand.calls.items():
            a, b = rng.choice((("a", "b"), ("x", "y"), ("p", "q"), ("u", "v"), ("one", "two")))
            head += [f"def {name}({a}, {b}):", f"    return {a} {sign} {b}"]
    elif rng.random() < 0.2:
        module = rng.choice(tuple(LIBRARY))
        function, passed = rng.choice(LIBRARY[module])
        line, called = _single_import(module, function, names, rng)
        head.append(line)
        hand.passed = passed.format(f=called)
    if hand.passed == "{}" and rng.random() < 0.27:
        hand.passed = rng.choice(PASSED)
    if hand.calls and rng.random() < 0.6:
        hand.bound = rng.choice((0.0, 0.0, 0.3))
    if rng.random() < 0.1:
        head.insert(0, rng.choice([line for line in UNUSED if line not in head]))
    hand.head = head
    return hand


def _some(signs: frozenset[str], rng: random.Random) -> list[str]:
    """Most or all of the signs in some order, sometimes with one that is not needed."""
    needed = sorted(signs) or ["+"]
    chosen = rng.sample(needed, max(1, len(needed) - (rng.random() < 0.2)))
    return [*chosen, *(sign for sign in "+-*" if sign not in signs and rng.random() < 0.05)]


class _Names:
    """Names that nothing in the program has yet."""

    def __init__(self, story: FunctionStory, rng: random.Random, familiar: bool) -> None:
        self.rng, self.familiar = rng, familiar
        self.taken = {story.function, *story.parameters}

    def new(self, names: tuple[str, ...] = ()) -> str:
        """One of `names` or, more often, a random word of the lexicon."""
        while True:
            if self.familiar:
                name = self.rng.choice(FAMILIAR)
            else:
                name = self.rng.choice(names) if names and self.rng.random() < 0.4 else self.rng.choice(_words())
            if name not in self.taken:
                self.taken.add(name)
                return name


@cache
def _words() -> tuple[str, ...]:
    """The words of the lexicon that can name a function and mean nothing else in any program of the corpus."""
    others = {*dir(builtins), *RESULTS, *ROWS, *TABLES, *NUMBER_NAMES, *LIST_NAMES, *WORD_NAMES}
    unfit = rare_words() | FORBIDDEN | others
    return tuple(word for word in lexicon()[0] if word.isidentifier() and not iskeyword(word) and word not in unfit)


def _imported(signs: list[str], names: _Names, rng: random.Random) -> tuple[list[str], dict[str, str]]:
    """Import lines for in-place operators, and how the program then calls them."""
    draw = rng.random()
    if draw < 0.12:
        return ["import operator"], {sign: f"operator.{IN_PLACE[sign]}" for sign in signs}
    if draw < 0.24:
        alias = names.new(("op", "o", "ops"))
        return [f"import operator as {alias}"], {sign: f"{alias}.{IN_PLACE[sign]}" for sign in signs}
    unchanged = 0.7 if names.familiar else 0.4
    aliased = 0.0 if draw < unchanged else 1.0 if draw < 0.9 else 0.5
    called = {sign: names.new(HELPERS) if rng.random() < aliased else IN_PLACE[sign] for sign in signs}
    parts = [IN_PLACE[sign] + (f" as {name}" if name != IN_PLACE[sign] else "") for sign, name in called.items()]
    if rng.random() < 0.3:
        rng.shuffle(parts)
    return [f"from operator import {', '.join(parts)}"], called


def _single_import(module: str, function: str, names: _Names, rng: random.Random) -> tuple[str, str]:
    draw = rng.random()
    if draw < 0.3:
        return f"import {module}", f"{module}.{function}"
    if draw < 0.45:
        alias = names.new((module[:2], module[0]))
        return f"import {module} as {alias}", f"{alias}.{function}"
    if draw < 0.75:
        return f"from {module} import {function}", function
    alias = names.new()
    return f"from {module} import {function} as {alias}", alias
