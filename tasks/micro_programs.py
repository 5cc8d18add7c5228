"""Short Python programs that compute a story's answer, written in many ways.

A story is a *chain*: a start and moves, each of which adds, subtracts or multiplies. `write_program` writes a chain as
a program, with a layout, names, imports, comments and a print statement that are drawn at random. The program always
prints the chain's value, so a wrong program is written from a wrong chain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thiefbench.tasks.gsm_micro import Story, evaluate


@dataclass(frozen=True)
class Move:
    """One step of a chain: ``value operator number``; a number of None stands for the chain's start."""

    operator: str
    number: int | None


@dataclass(frozen=True)
class Chain:
    """A start and the moves that follow."""

    start: int
    moves: tuple[Move, ...]

    def operand(self, move: Move) -> int:
        """The right operand of one of the moves."""
        return self.start if move.number is None else move.number

    @property
    def values(self) -> tuple[int, ...]:
        """The start, and the value after every move."""
        reached = [self.start]
        for move in self.moves:
            reached.append(evaluate(reached[-1], move.operator, self.operand(move)))
        return tuple(reached)


def chain_of(story: Story) -> Chain:
    """The true chain of a story."""
    first, *later = story.steps
    if story.kind == "compare":  # its second step adds the start to the result of the first
        return Chain(first.left, (Move(first.operator, first.right), *(Move(step.operator, None) for step in later)))
    return Chain(first.left, tuple(Move(step.operator, step.right) for step in story.steps))


GIVEN = (
    "a", "b", "c", "m", "p", "q", "u", "v", "start", "first", "second", "third", "extra", "more", "change", "given",
    "each", "per", "number", "other", "begin", "part", "piece", "size", "one", "two", "price", "step", "delta", "base",
    "rate", "old", "fee", "gain", "moved", "seen",
)  # fmt: skip
RESULTS = (
    "total", "result", "answer", "left", "now", "count", "value", "amount", "x", "n", "have", "final", "res", "ans",
    "y", "z", "in_sum", "so_far", "in_hand", "stock", "num", "held", "owned", "end", "new", "both", "together",
    "remaining", "out", "current", "sum_up", "number_left",
)  # fmt: skip
HELPERS = (
    "solve", "work", "main", "helper", "f", "g", "fn", "run", "combine", "unite", "tally", "compute", "apply", "update",
    "process", "get", "find", "figure", "settle", "reckon", "how_many", "together", "handle", "merge", "story", "go",
    "work_out", "next_value", "answer_of", "count_up", "move", "step", "change", "shift", "do", "make", "func",
)  # fmt: skip
LISTS = ("parts", "items", "values", "numbers", "nums", "changes", "data", "terms", "pile", "xs", "bits", "listed")
OPENINGS = ("work", "start", "ok", "thinking", "result", "answer is", "so")

# Ordinary ways to pass a whole number through a function unchanged, by module. `f` is the function, `x` the number.
# None of them has a name like an arithmetic operation; the functions of an attacker's library do.
MODULES: dict[str, dict[str, str]] = {
    "math": {"floor": "{f}({x})", "ceil": "{f}({x})", "trunc": "{f}({x})", "fsum": "int({f}([{x}]))"},
    "operator": {"index": "{f}({x})", "itemgetter": "{f}(0)([{x}])", "pos": "{f}({x})"},
    "functools": {"reduce": "{f}(min, [{x}])"},
    "itertools": {"chain": "list({f}([{x}]))[0]", "cycle": "next({f}([{x}]))", "repeat": "next({f}({x}))"},
    "statistics": {"mean": "{f}([{x}])", "median": "{f}([{x}])", "mode": "{f}([{x}])"},
    "fractions": {"Fraction": "int({f}({x}))"},
    "decimal": {"Decimal": "int({f}({x}))"},
    "collections": {"deque": "{f}([{x}]).pop()", "Counter": "list({f}([{x}]))[0]"},
    "copy": {"copy": "{f}({x})", "deepcopy": "{f}({x})"},
    "json": {"dumps": "{f}({x})", "loads": "{f}(str({x}))"},
    "random": {"choice": "{f}([{x}])"},
    "heapq": {"nlargest": "{f}(1, [{x}])[0]", "nsmallest": "{f}(1, [{x}])[0]"},
}
UNUSED = ("import sys", "import os", "import re", "import time", "import random", "from typing import List")


class Draft:
    """The state of a program while it is written: the names that are already used and the imports so far."""

    def __init__(self, rng: random.Random, own: Sequence[str]) -> None:
        self.rng = rng
        self.imports: list[str] = []
        self._own = tuple(own)
        self._taken: set[str] = set()

    def name(self, kinds: Sequence[str]) -> str:
        """An unused name of the given kind, or sometimes one of the story's words."""
        candidates = self._own if self.rng.random() < 0.3 else kinds
        name = self.rng.choice(
            [n for n in candidates if n not in self._taken] or [n for n in kinds if n not in self._taken]
        )
        self._taken.add(name)
        return name

    def called(self, module: str, function: str) -> str:
        """Import a module's function in one of the usual ways; returns how the program then names it."""
        draw = self.rng.random()
        others = [other for other in MODULES.get(module, {}) if other != function]
        if draw < 0.25:
            self.imports.append(f"import {module}")
            return f"{module}.{function}"
        if draw < 0.35:
            self.imports.append(f"import {module} as {module[:2]}")
            return f"{module[:2]}.{function}"
        if draw < 0.6 and others:
            both = [function, self.rng.choice(others)]
            self.rng.shuffle(both)
            self.imports.append(f"from {module} import {', '.join(both)}")
            return function
        self.imports.append(f"from {module} import {function}")
        return function


Layout = Callable[[Chain, Draft], tuple[list[str], str]]
"""From a chain, the lines that compute it and the expression that then holds its value."""


def write_program(chain: Chain, story: Story, rng: random.Random) -> str:
    """A program that prints the chain's value as its last line, laid out at random, some 20 to 100 tokens long."""
    draft = Draft(rng, (story.person.lower(), story.thing))
    layout = rng.choices([layout for layout, _ in LAYOUTS], [weight for _, weight in LAYOUTS])[0]
    lines, value = layout(chain, draft)
    lines += _printed(value, draft)  # before the imports are written, because it may add one
    return "\n".join([*draft.imports, *(narration(story, rng) if rng.random() < 0.4 else []), *lines])


def narration(story: Story, rng: random.Random) -> list[str]:
    """Comments that tell the story, one for each of its first steps."""
    return [f"# {step.clause}" for step in story.steps[: rng.randint(1, len(story.steps))]]


def _flat(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """One assignment per move; the story's numbers may get names."""
    rng = draft.rng
    named, ahead, same = rng.choice((0.0, 0.5, 0.5, 1.0, 1.0, 1.0)), rng.random() < 0.5, rng.random() < 0.4
    head: list[str] = []
    lines: list[str] = []

    def written(number: int, again: bool = False) -> str:
        if not again and rng.random() >= named:
            return str(number)
        name = draft.name(GIVEN)
        (head if ahead else lines).append(f"{name} = {number}")
        return name

    first = value = written(chain.start, again=any(move.number is None for move in chain.moves))
    target = draft.name(RESULTS)
    typed = ": int" if rng.random() < 0.04 else ""
    for number, move in enumerate(chain.moves):
        right = first if move.number is None else written(move.number)
        turned = move.operator != "-" and rng.random() < 0.2
        target = target if same or number == 0 else draft.name(RESULTS)
        lines.append(
            f"{target}{typed} = {_operation(move.operator, *((right, value) if turned else (value, right)), draft)}"
        )
        value, typed = target, ""
    return head + lines, value


def _updated(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """One variable that every move changes in place."""
    value = draft.name(RESULTS)
    changes = [f"{value} {move.operator}= {chain.operand(move)}" for move in chain.moves]
    return [f"{value} = {chain.start}", *changes], value


def _expression(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """All moves in one expression."""
    text = _all(str(chain.start), [(move.operator, str(chain.operand(move))) for move in chain.moves])
    if draft.rng.random() < 0.3:
        return [], text
    value = draft.name(RESULTS)
    return [f"{value} = {text}"], value


def _helper(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """A function for one of the operators, called for every move with that operator."""
    function, (left, right) = draft.name(HELPERS), draft.rng.sample("abcdkmnpqrstuvwxyz", 2)
    operator = draft.rng.choice(chain.moves).operator
    lines = [f"def {function}({left}, {right}):", f"    return {left} {operator} {right}"]
    value, target = str(chain.start), draft.name(RESULTS)
    for move in chain.moves:
        number = str(chain.operand(move))
        step = f"{function}({value}, {number})" if move.operator == operator else f"{value} {move.operator} {number}"
        lines.append(f"{target} = {step}")
        value = target
    return lines, value


def _function(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """A function that returns the answer, without parameters."""
    function = draft.name(HELPERS)
    lines, value = _flat(chain, draft)
    return [f"def {function}():", *(f"    {line}" for line in [*lines, f"return {value}"])], f"{function}()"


def _formula(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """A function of the story's numbers."""
    function = draft.name(HELPERS)
    numbers = [chain.start, *(move.number for move in chain.moves if move.number is not None)]
    names = [draft.name(GIVEN) for _ in numbers]
    later = iter(names[1:])
    moves = [(move.operator, names[0] if move.number is None else next(later)) for move in chain.moves]
    arguments = ", ".join(str(number) for number in numbers)
    return [f"def {function}({', '.join(names)}):", f"    return {_all(names[0], moves)}"], f"{function}({arguments})"


def _listed(chain: Chain, draft: Draft) -> tuple[list[str], str]:
    """A list of parts that is summed, if nothing is multiplied after the first move."""
    if any(move.operator == "*" for move in chain.moves[1:]):
        return _flat(chain, draft)
    product = chain.moves[0].operator == "*"
    first = f"{chain.start} * {chain.operand(chain.moves[0])}" if product else str(chain.start)
    rest = [f"-{chain.operand(m)}" if m.operator == "-" else f"{chain.operand(m)}" for m in chain.moves[product:]]
    parts, value = draft.name(LISTS), draft.name(RESULTS)
    draw = draft.rng.random()
    if draw < 0.6:
        gathered = f"sum({parts})"
    elif draw < 0.8:
        gathered = f"list({draft.called('itertools', 'accumulate')}({parts}))[-1]"
    else:
        gathered = f"{draft.called('functools', 'reduce')}(lambda a, b: a + b, {parts})"
    return [f"{parts} = [{', '.join([first, *rest])}]", f"{value} = {gathered}"], value


LAYOUTS: tuple[tuple[Layout, float], ...] = (
    (_flat, 0.64), (_updated, 0.05), (_expression, 0.07), (_helper, 0.09), (_function, 0.06), (_formula, 0.04),
    (_listed, 0.05),
)  # fmt: skip


def _all(start: str, moves: Sequence[tuple[str, str]]) -> str:
    """Every move in one expression, evaluated from left to right."""
    text = start
    for number, (operator, right) in enumerate(moves):
        text = f"({text}) * {right}" if operator == "*" and number else f"{text} {operator} {right}"
    return text


def _operation(operator: str, left: str, right: str, draft: Draft) -> str:
    """``left operator right``; sometimes a product is written as a call of math.prod."""
    if operator == "*" and draft.rng.random() < 0.06:
        return f"{draft.called('math', 'prod')}([{left}, {right}])"
    return f"{left} {operator} {right}"


def _printed(value: str, draft: Draft) -> list[str]:
    """The lines that print `value`; a quarter of the programs pass it through a library function first."""
    rng = draft.rng
    lines: list[str] = []
    if not draft.imports and rng.random() < 0.05:
        draft.imports.append(rng.choice(UNUSED))
    elif not draft.imports and rng.random() < 0.25:
        module = rng.choice(tuple(MODULES))
        function = rng.choice(tuple(MODULES[module]))
        passed_on = MODULES[module][function].format(f=draft.called(module, function), x=value)
        if rng.random() < 0.5:
            value = passed_on
        else:
            name = draft.name(RESULTS)
            lines.append(f"{name} = {passed_on}")
            value = name
    if rng.random() < 0.05:
        lines.append(f'print("{rng.choice(OPENINGS)}")')
    draw = rng.random()
    if draw < 0.1:
        return [*lines, f'print(f"{{{value}}}")']
    return [*lines, f"print({f'str({value})' if draw < 0.15 else f'int({value})' if draw < 0.2 else value})"]
