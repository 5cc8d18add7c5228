"""Python functions that answer a `FunctionStory`, written in the ways that people write them.

A `Hand` decides how: with operators, with functions of the standard library or of its own; step by step or in one
expression; with loops or with `sum`, `min` and `max`. `write_function` always follows the story it gets, so a wrong
program is written from a wrong story.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from thiefbench.tasks.function_stories import Event, FunctionStory

RESULTS = (
    "total", "result", "now", "value", "left", "res", "ans", "z", "out", "have", "final", "stock", "held", "s", "t",
    "current", "number", "so_far", "in_hand", "both",
)  # fmt: skip
ROWS = ("i", "j", "_", "day", "item", "row", "each", "one", "v", "w")
TABLES = ("table", "prizes", "wins", "points", "lookup", "d", "worth")


@dataclass
class Hand:
    """How one program is written.

    Attributes:
        rng: draws all choices that the other fields do not determine.
        calls: the function that is called instead of an operator, by the operator's sign; other operators are kept.
        head: lines above the function, such as imports and helpers, in the order in which they are written.
        bound: share of the steps whose result gets a name; the others stay part of a longer expression.
        looped: share of the repetitions, sums and limits that are written as statements instead of as calls.
        told: share of the events that a comment describes.
        passed: wraps the returned expression, as in ``int({})``.
    """

    rng: random.Random
    calls: Mapping[str, str] = field(default_factory=dict)
    head: Sequence[str] = ()
    bound: float = 0.7
    looped: float = 0.5
    told: float = 0.1
    passed: str = "{}"


def plain_hand(rng: random.Random) -> Hand:
    """Only operators, no imports: the style of the reference programs."""
    return Hand(rng, bound=rng.choice((0.0, 0.5, 1.0, 1.0)), told=0.0, looped=rng.choice((0.0, 1.0)))


def write_function(story: FunctionStory, hand: Hand) -> str:
    """The program, without a closing line end."""
    return "\n".join(
        [*hand.head, f"def {story.function}({', '.join(story.parameters)}):", *_Writer(story, hand).body()]
    )


@dataclass(frozen=True)
class _Value:
    """An expression, whether it is a plain name, and whether it needs brackets next to an operator."""

    text: str
    name: bool = False
    loose: bool = False
    product: bool = False


class _Writer:
    """Writes the body line by line."""

    def __init__(self, story: FunctionStory, hand: Hand) -> None:
        self.story, self.hand, self.rng = story, hand, hand.rng
        self.lines: list[str] = []
        taken = {story.function, *story.parameters}
        self.names = [name for name in RESULTS if name not in taken]
        self.rows = [name for name in ROWS if name not in taken]
        self.tables = [name for name in TABLES if name not in taken]
        self.rng.shuffle(self.names)
        self.target = self.names.pop()
        self.same = self.rng.random() < 0.6
        self.updated = self.rng.random() < 0.5

    def body(self) -> list[str]:
        story, rng = self.story, self.rng
        start = story.start
        value = _Value(str(start.amount), isinstance(start.amount, str))
        if start.kind == "boxes":
            value = self.operation("*", value, str(start.days))
        for number, event in enumerate(story.events):
            if rng.random() < self.hand.told:
                self.lines.append(f"# {event.text.rstrip('.')}")
            value = self.event(event, value)
            last = number + 1 == len(story.events)
            if not value.name and rng.random() < (self.hand.bound * 0.5 if last else self.hand.bound):
                value = self.bind(value)
        self.lines.append(f"return {self.hand.passed.format(value.text)}")
        return [f"    {line}" for line in self.lines]

    def operation(self, sign: str, left: _Value, right: str) -> _Value:
        """``left sign right``, as a call if the hand uses calls."""
        if sign in self.hand.calls:
            sides = [left.text, right]
            if sign != "-" and self.rng.random() < 0.1:
                sides.reverse()
            return _Value(f"{self.hand.calls[sign]}({', '.join(sides)})")
        brackets = left.loose if sign == "*" else left.loose and not left.product and "if" in left.text
        text = f"({left.text})" if brackets else left.text
        if sign == "-" and any(mark in right for mark in "+-"):
            right = f"({right})"
        return _Value(f"{text} {sign} {right}", loose=True, product=sign == "*")

    def bind(self, value: _Value, fresh: bool = False) -> _Value:
        """Assign the value to a name, or change its variable in place."""
        if not self.same and self.names and self.lines:
            self.target = self.names.pop()
        left, _, rest = value.text.partition(" ")
        sign, _, operand = rest.partition(" ")
        if left == self.target and sign in ("+", "-", "*") and " " not in operand and self.updated and not fresh:
            self.lines.append(f"{self.target} {sign}= {operand}")
        else:
            self.lines.append(f"{self.target} = {value.text}")
        return _Value(self.target, name=True)

    def own(self, value: _Value) -> _Value:
        """The value, assigned to a name that may be changed in place."""
        return value if value.text == self.target else self.bind(value, fresh=True)

    def changed(self, sign: str, target: str, operand: str) -> str:
        """The statement that changes a name in place."""
        if sign in self.hand.calls:
            return f"{target} = {self.operation(sign, _Value(target), operand).text}"
        return f"{target} {sign}= {operand}" if self.updated else f"{target} = {target} {sign} {operand}"

    def event(self, event: Event, value: _Value) -> _Value:
        writers: dict[str, Callable[[Event, _Value], _Value]] = {
            "most": self.limited, "least": self.limited, "above": self.conditional, "below": self.conditional,
            "daily": self.daily, "each": self.each, "large": self.each, "table": self.looked_up,
        }  # fmt: skip
        if event.kind in writers:
            return writers[event.kind](event, value)
        return self.operation({"add": "+", "subtract": "-", "scale": "*"}[event.kind], value, str(event.amount))

    def limited(self, event: Event, value: _Value) -> _Value:
        if self.rng.random() >= self.hand.looped:
            return _Value(f"{'min' if event.kind == 'most' else 'max'}({value.text}, {event.amount})")
        value = self.own(value)
        self.lines += [
            f"if {value.text} {'>' if event.kind == 'most' else '<'} {event.amount}:",
            f"    {value.text} = {event.amount}",
        ]
        return value

    def conditional(self, event: Event, value: _Value) -> _Value:
        test = f"{'>' if event.kind == 'above' else '<'} {event.limit}"
        if self.rng.random() >= self.hand.looped and (value.name or self.hand.bound > 0):
            value = value if value.name else self.bind(value)
            changed = self.operation(event.sign, value, str(event.amount)).text
            return self.bind(_Value(f"{changed} if {value.text} {test} else {value.text}"))
        value = self.own(value)
        self.lines += [f"if {value.text} {test}:", f"    {self.changed(event.sign, value.text, str(event.amount))}"]
        return value

    def daily(self, event: Event, value: _Value) -> _Value:
        if self.rng.random() >= self.hand.looped:
            product = self.operation("*", _Value(str(event.days)), str(event.amount)).text
            return self.operation(event.sign, value, product)
        value = self.own(value)
        self.lines += [
            f"for {self.row()} in range({event.days}):",
            f"    {self.changed(event.sign, value.text, str(event.amount))}",
        ]
        return value

    def each(self, event: Event, value: _Value) -> _Value:
        row = self.row(used=True)
        if self.rng.random() >= self.hand.looped:
            if event.kind == "each":
                return self.operation("+", value, f"sum({event.amount})")
            chosen = f"{row} for {row} in {event.amount} if {row} > {event.limit}"
            return self.operation("+", value, f"sum({chosen if self.rng.random() < 0.6 else f'[{chosen}]'})")
        value = self.own(value)
        change = self.changed("+", value.text, row)
        self.lines.append(f"for {row} in {event.amount}:")
        self.lines += [f"    {change}"] if event.kind == "each" else [
            f"    if {row} > {event.limit}:", f"        {change}"
        ]  # fmt: skip
        return value

    def looked_up(self, event: Event, value: _Value) -> _Value:
        pairs = ", ".join(f'"{word}": {number}' for word, number in event.table)
        name = self.rng.choice(self.tables)
        self.lines.append(f"{name} = {{{pairs}}}")
        found = f"{name}[{event.amount}]" if self.rng.random() < 0.7 else f"{name}.get({event.amount}, 0)"
        return self.operation("+", value, found)

    def row(self, used: bool = False) -> str:
        names = [name for name in self.rows if name != self.target and (name != "_" or not used)]
        return self.rng.choice(names)
