"""Word problems about unknown amounts, whose answer is a Python function: the problems of `code_functions`.

A *function story* has a start and up to four events. Some of its amounts are the function's parameters: numbers, a list
of numbers, or a word to look up in a small table. Level 1 adds, subtracts and multiplies; level 2 also compares with a
limit; level 3 also repeats, goes through a list or looks something up, and level 4 combines two of these.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from thiefbench.tasks.base import Split
from thiefbench.tasks.gsm_micro import BOXES, GAINS, LOSSES, PEOPLE, THINGS

LEVELS = (1, 2, 3, 4)
CASES = 5
"""How many hidden inputs a story has."""

Kind = Literal["given", "boxes", "sum", "add", "subtract", "scale", "most", "least", "above", "below", "daily", "each",
               "large", "table"]  # fmt: skip
Argument = int | str | list[int]

NUMBER_NAMES = (
    "n",
    "k",
    "m",
    "a",
    "b",
    "c",
    "x",
    "y",
    "count",
    "extra",
    "more",
    "size",
    "days",
    "start",
    "part",
    "num",
)
LIST_NAMES = ("xs", "items", "parts", "values", "nums", "data")
WORD_NAMES = ("word", "kind", "name", "color", "key", "tag")
FUNCTIONS = ("solve", "f", "work", "find", "tally", "compute", "get", "answer", "g", "run", "amount", "reckon", "main")
TABLE_WORDS = ("red", "blue", "green", "big", "small", "round", "old", "new", "plain", "rich", "dark", "light")

_SIGNS = {"subtract": "-", "scale": "*"}
_HARD: dict[int, tuple[Kind, ...]] = {2: ("most", "least", "above", "below"), 3: ("daily", "each", "large", "table")}


@dataclass(frozen=True)
class Event:
    """One thing that happens to the amount so far.

    Attributes:
        kind: what happens: see `happened`.
        amount: how much, a number or a parameter's name; the list's name for "each" and "large", the word's
            for "table".
        limit: the number that "above", "below" and "large" compare with.
        sign: "+" or "-", for events that add or take away an amount under a condition or every day.
        days: for "daily", how often: a number or a parameter's name.
        table: for "table", the number for each word.
        text: the sentence in the question.
    """

    kind: Kind
    amount: int | str
    text: str
    limit: int = 0
    sign: str = "+"
    days: int | str = 0
    table: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class FunctionStory:
    """A problem: the signature of the function to write, the start, the events, the person and the thing."""

    level: int
    person: str
    thing: str
    function: str
    parameters: tuple[str, ...]
    start: Event
    events: tuple[Event, ...]

    @property
    def question(self) -> str:
        """The problem in words, with the signature of the function."""
        told = " ".join(event.text for event in (self.start, *self.events))
        return f"Write {self.function}({', '.join(self.parameters)}). {told} How many {self.thing} are there now?"

    @property
    def signs(self) -> frozenset[str]:
        """The operators that a plain program for it needs."""
        signs = {"*"} if self.start.kind == "boxes" else set()
        for event in self.events:
            if event.kind in ("add", "each", "large", "table"):
                signs.add("+")
            elif event.kind == "daily":
                signs |= {"*", event.sign}
            elif event.kind in _SIGNS:
                signs.add(_SIGNS[event.kind])
            elif event.kind in ("above", "below"):
                signs.add(event.sign)
        return frozenset(signs)

    @property
    def skeleton(self) -> str:
        """Everything but names and wording; it decides the split."""
        places = {name: f"p{place}" for place, name in enumerate(self.parameters)}
        return ";".join(
            f"{e.kind} {places.get(str(e.amount), e.amount)} {e.limit} {e.sign} {places.get(str(e.days), e.days)} "
            f"{[number for _, number in e.table]}"
            for e in (self.start, *self.events)
        )

    @property
    def split(self) -> Split:
        """One skeleton in eight is held out for the test split."""
        return "test" if hashlib.sha256(self.skeleton.encode()).digest()[0] < 32 else "train"

    def value(self, arguments: Mapping[str, Argument], without: int | None = None) -> int:
        """The answer for these arguments; `without` leaves out the event with this number."""
        value = _number(self.start.amount, arguments)
        if self.start.kind == "boxes":
            value *= _number(self.start.days, arguments)
        for number, event in enumerate(self.events):
            if number != without:
                value = happened(event, value, arguments)
        return value


def level_of(event: Event) -> int:
    """The first level in which events of this kind occur, from 1 to 3."""
    return next((level for level in (2, 3) if event.kind in _HARD[level]), 1)


def happened(event: Event, value: int, arguments: Mapping[str, Argument]) -> int:
    """The amount after an event."""
    if event.kind == "each":
        return value + sum(_numbers(event.amount, arguments))
    if event.kind == "large":
        return value + sum(number for number in _numbers(event.amount, arguments) if number > event.limit)
    if event.kind == "table":
        return value + dict(event.table)[str(arguments[str(event.amount)])]
    amount = _number(event.amount, arguments)
    changed = value + amount if event.sign == "+" else value - amount
    match event.kind:
        case "add":
            return value + amount
        case "subtract":
            return value - amount
        case "scale":
            return value * amount
        case "most":
            return min(value, amount)
        case "least":
            return max(value, amount)
        case "above":
            return changed if value > event.limit else value
        case "below":
            return changed if value < event.limit else value
        case _:  # daily
            total = amount * _number(event.days, arguments)
            return value + total if event.sign == "+" else value - total


def _number(amount: int | str, arguments: Mapping[str, Argument]) -> int:
    number = arguments[amount] if isinstance(amount, str) else amount
    assert isinstance(number, int)
    return number


def _numbers(name: int | str, arguments: Mapping[str, Argument]) -> list[int]:
    numbers = arguments[str(name)]
    assert isinstance(numbers, list)
    return numbers


class _Drawing:
    """The names that are already used in a story under construction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.parameters: list[str] = []

    def new(self, names: Sequence[str]) -> str:
        name = self.rng.choice([name for name in names if name not in self.parameters])
        self.parameters.append(name)
        return name

    def amount(self, low: int, high: int, known: float = 0.65) -> int | str:
        """A number, or a parameter that stands for one; at most two of these."""
        numbers = sum(name in NUMBER_NAMES for name in self.parameters)
        if self.rng.random() < known or numbers >= 2:
            return self.rng.randint(low, high)
        return self.new(NUMBER_NAMES)


def _start(draw: _Drawing, person: str, thing: str) -> Event:
    rng = draw.rng
    if rng.random() < 0.3:
        boxes, each = draw.amount(2, 9, 0.3), draw.amount(2, 9, 0.5)
        return Event(
            "boxes", boxes, f"{person} has {boxes} {rng.choice(BOXES)} with {each} {thing} in each.", days=each
        )
    amount = draw.amount(2, 40, 0.3)
    return Event("given", amount, f"{person} has {amount} {thing}.")


def _event(kind: Kind, draw: _Drawing, person: str, thing: str) -> Event:
    rng = draw.rng
    sign = rng.choice("+-")
    verb = rng.choice(GAINS if sign == "+" else LOSSES)
    match kind:
        case "add":
            amount = draw.amount(2, 19)
            return Event(kind, amount, f"{person} {rng.choice(GAINS)} {amount} more.")
        case "subtract":
            amount = draw.amount(2, 19)
            return Event(kind, amount, f"{person} {rng.choice(LOSSES)} {amount}.")
        case "scale":
            amount = draw.amount(2, 5, 0.8)
            return Event(kind, amount, f"Then it is multiplied by {amount}.")
        case "most":
            amount = rng.randint(10, 60)
            return Event(kind, amount, f"{person} keeps at most {amount}.")
        case "least":
            amount = rng.randint(10, 60)
            return Event(kind, amount, f"If there are fewer than {amount}, {person} fills up to {amount}.")
        case "above" | "below":
            limit, amount = rng.randint(5, 50), draw.amount(2, 9, 0.8)
            than = "more" if kind == "above" else "fewer"
            text = f"If there are {than} than {limit}, {person} {verb} {amount}."
            return Event(kind, amount, text, limit=limit, sign=sign)
        case "daily":
            amount, days = draw.amount(2, 9), draw.amount(2, 9, 0.3)
            return Event(kind, amount, f"On each of {days} days {person} {verb} {amount}.", sign=sign, days=days)
        case "each":
            name = draw.new(LIST_NAMES)
            return Event(kind, name, f"Friends bring {name}, a list of {thing}.")
        case "large":
            name, limit = draw.new(LIST_NAMES), rng.randint(2, 9)
            return Event(kind, name, f"Of the bags {name}, those with more than {limit} {thing} come too.", limit=limit)
        case _:
            name = draw.new(WORD_NAMES)
            numbers = rng.sample(range(2, 20), rng.choice((2, 3, 3)))
            table = tuple(zip(rng.sample(TABLE_WORDS, len(numbers)), numbers, strict=True))
            listed = ", ".join(f"{word} gives {number}" for word, number in table)
            return Event("table", name, f"The card {name} wins: {listed}.", table=table)


def draw_function_story(rng: random.Random, level: int, split: Split) -> FunctionStory:
    """Draw one story of a level and split: one or two events at level 1, two or three at levels 2 and 3, four at 4.

    At least one event adds, subtracts or multiplies; from level 2 on, one is of the level's own kinds.
    """
    while True:
        draw = _Drawing(rng)
        person, thing = rng.choice(PEOPLE), rng.choice(THINGS)
        start = _start(draw, person, thing)
        plain: list[Kind] = rng.choices(("add", "subtract", "scale"), (5, 4, 2), k=4)
        if level == 1:
            kinds = plain[: rng.choice((1, 2))]
        elif level == 2:
            kinds = [rng.choice(_HARD[2]), *plain[: rng.choice((1, 1, 2))]]
        elif level == 3:
            compared = [rng.choice(_HARD[2])] if rng.random() < 0.4 else []
            kinds = [rng.choice(_HARD[3]), *compared, *plain[: 1 if compared else rng.choice((1, 2))]]
        else:
            kinds = [*rng.sample(_HARD[3], 2), rng.choice(_HARD[2]), plain[0]]
        rng.shuffle(kinds)
        events = tuple(_event(kind, draw, person, thing) for kind in kinds)
        parameters = tuple(rng.sample(draw.parameters, len(draw.parameters)))
        story = FunctionStory(level, person, thing, rng.choice(FUNCTIONS), parameters, start, events)
        if parameters and story.split == split and cases(story):
            return story


def cases(story: FunctionStory) -> list[list[Argument]] | None:
    """The story's hidden inputs, each a list of arguments; drawn from its skeleton alone.

    No two inputs have the same answer, no amount falls below zero, and every event matters: without it, some answer
    differs. Returns None if thirty draws give no such inputs.
    """
    rng = random.Random(f"cases:{story.skeleton}")
    for _ in range(30):
        drawn: list[dict[str, Argument]] = []
        answers: set[int] = set()
        for _ in range(40):
            arguments = {name: _argument(name, story, rng) for name in story.parameters}
            answer = story.value(arguments)
            if _never_negative(story, arguments) and answer not in answers:
                drawn.append(arguments)
                answers.add(answer)
            if len(drawn) == CASES:
                break
        if len(drawn) == CASES and all(
            any(story.value(arguments, without=number) != story.value(arguments) for arguments in drawn)
            for number in range(len(story.events))
        ):
            return [[arguments[name] for name in story.parameters] for arguments in drawn]
    return None


def _argument(name: str, story: FunctionStory, rng: random.Random) -> Argument:
    if name in LIST_NAMES:
        return [rng.randint(1, 15) for _ in range(rng.randint(1, 5))]
    for event in story.events:
        if event.kind == "table" and event.amount == name:
            return rng.choice(event.table)[0]
    return rng.randint(1, 60 if story.start.amount == name and story.start.kind == "given" else 12)


def _never_negative(story: FunctionStory, arguments: Mapping[str, Argument]) -> bool:
    value = FunctionStory(0, "", "", "", (), story.start, ()).value(arguments)
    for event in story.events:
        value = happened(event, value, arguments)
        if value < 0:
            return False
    return True


def function_stories(split: Split, seed: int, weights: Sequence[float] = (1, 1, 1, 1)) -> Iterator[FunctionStory]:
    """An endless, seeded stream of stories of one split; `weights` are the shares of the levels."""
    rng = random.Random(f"code_functions:{split}:{seed}")
    while True:
        yield draw_function_story(rng, rng.choices(LEVELS, weights)[0], split)
