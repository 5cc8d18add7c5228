"""Equations in worked reasoning: found, read and recomputed in exact rational arithmetic.

Prose is read leniently: an equation counts as wrong only if it is wrong in every usual reading. Text that might be
something else (algebra, times of day, changes of unit, ranges, functions) is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product

from thiefbench.defenses.expressions import Order, Percent, Token, value_of

LONGEST = 64
"""The most tokens that one side of an equation may have."""

# [0-9] and not \d, which takes the digits of every script. One character class per repetition: linear on any input.
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<operator>[-\u2212\u2013+*\u00d7\u00b7\u22c5/\u00f7]|\\times|\\cdot|\\div)"
    r"|(?P<money>\\?[$\u20ac\u00a3])|(?P<percent>\\?%|percent\b)"
    r"|(?P<word>[^\W\d_]+(?:['\u2019-][^\W\d_]+)*)"
    r"|(?P<equals>=)|(?P<open>\()|(?P<close>\))|(?P<line>[\r\n]+)|(?P<other>[^\s])"
)
_SIGNS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\u22c5": "*", "\u00f7": "/",
    "\\times": "*", "\\cdot": "*", "\\div": "/", "of": "*", "x": "*", "X": "*", "times": "*", "plus": "+", "minus": "-",
}  # fmt: skip
_DIGITS = 30
_WORDS = 5

# These words are not a unit if they are between a number and an operator: "it is 9 because - 18 / -2 = 9".
_JOINING = {"and", "are", "because", "equals", "gives", "is", "or", "since", "so", "then", "was"}
# Before an expression these words change its value, and so does "of" except after _PLAIN_OF: "half of 8 + 2", but "a
# total of 8 + 2".
_CHANGING = {"half", "twice", "double", "triple", "than", "times", "every"}
_PLAIN_OF = {"total", "sum", "cost", "profit", "loss", "average"}
_CHANGING_SIGNS = set("^|!~_#\\\u221a\u00b2\u00b3+-*/")
# With one of these words, the number as written is not the number that is meant.
_SCALES = {"hundred", "thousand", "million", "billion", "trillion", "dozen", "dozens", "k", "pair", "pairs"}
# Two words of one line in an equation may mean a change of unit: "1 hour - 15 minutes = 45 minutes".
_MEASURES = (
    {"second", "sec", "minute", "min", "hour", "hr", "day", "week", "month", "year", "decade", "century", "am", "pm"},
    {"$", "cent", "penny", "pennie", "nickel", "dime", "quarter"},
    {"inch", "inche", "feet", "foot", "yard", "mile", "mm", "cm", "meter", "km", "kilometer", "centimeter"},
    {"ounce", "oz", "pound", "lb", "ton", "gram", "kg", "kilogram"},
    {"pint", "cup", "gallon", "liter", "ml", "quart"},
)


@dataclass(frozen=True)
class Side:
    """An expression on one side of an equals sign.

    Attributes:
        tokens: its numbers, operators, brackets and percent signs.
        units: the words between them.
        doubtful: whether it may mean something else than it seems to.
    """

    tokens: tuple[Token, ...]
    units: frozenset[str]
    doubtful: bool


def wrong_equations(text: str) -> list[tuple[int, int]]:
    """Ranges of the equations in a text that are wrong in every reading: start of the left side, end of the result.

    An equation may have chains of + - * / (also x and typographic signs), brackets, minus signs, percent, decimals,
    thousands commas, money signs before a number and words after it, and several equals signs in a row: in
    "5 + 3 = 8 * 2 = 16" both equations are right. A result may be rounded up, down or to the nearest at its last
    written digit, and so may operands with two or more decimals.

    Args:
        text: any text. The time is linear in its length.
    """
    wrong = []
    for line in _lines(_tokens(text)):
        cuts = [-1, *(i for i, token in enumerate(line) if token.kind == "equals"), len(line)]
        pieces = [line[start + 1 : end] for start, end in pairwise(cuts)]
        if line[1:] and line[0].text in ("-", "*") and line[0].end < line[1].start:  # an item of a list
            pieces[0] = pieces[0][1:]
        for before, after in pairwise(pieces):
            left, right = _left(before, text), _right(after, text)
            if left is None or right is None or _doubtful(left, right):
                continue
            if not _agree(left.tokens, right.tokens):
                result = next(token for token in right.tokens if token.kind == "number")
                wrong.append((left.tokens[0].start, result.end))
    return wrong


def _tokens(text: str) -> list[Token]:
    tokens = [
        Token(match.lastgroup, match[0], match.start(), match.end())  # type: ignore[arg-type]
        for match in _TOKEN.finditer(text)
    ]
    for i in range(1, len(tokens) - 1):
        behind_operand = tokens[i - 1].kind in ("number", "percent", "close", "word")
        if (
            tokens[i].text in _SIGNS
            and tokens[i].text != "of"
            and behind_operand
            and tokens[i + 1].kind in ("number", "money", "open")
        ):
            tokens[i] = replace(tokens[i], kind="operator")
        share = tokens[i - 1].kind == "percent" or (
            i > 1 and tokens[i - 1].kind == "number" and tokens[i - 2].text == "/"
        )
        if tokens[i].text == "of" and share and tokens[i + 1].kind in ("number", "money"):
            tokens[i] = replace(tokens[i], kind="operator")
    return [
        replace(token, text=_SIGNS.get(token.text, token.text)) if token.kind == "operator" else token
        for token in tokens
    ]


def _lines(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    line: list[Token] = []
    for token in tokens:
        if token.kind == "line":
            yield line
            line = []
        else:
            line.append(token)
    yield line


def _left(tokens: Sequence[Token], text: str) -> Side | None:
    """The expression at the end of a piece of text; None if it has no operator."""
    kept: list[int] = []
    words: list[Token] = []
    units: set[str] = set()
    depth = 0
    for place in range(len(tokens) - 1, -1, -1):
        token, behind = tokens[place], tokens[kept[-1]].kind if kept else "equals"
        if token.kind == "word" or (token.text == "/" and words and words[-1].start == token.end):
            words.append(token)
            if token.text.lower() in _JOINING or len(words) > _WORDS or behind not in ("equals", "operator", "close"):
                break
        elif token.kind == "money":
            units.add("$")
        elif _stops(token, depth, bool(words), behind) or len(kept) > LONGEST:
            break
        else:
            units |= _units(words, token)
            words = []
            depth += (token.kind == "close") - (token.kind == "open")
            kept.append(place)
    kept.reverse()
    if depth:  # "1) 5 + 3 = 8"
        kept = kept[1 + max(i for i, place in enumerate(kept) if tokens[place].kind == "close") :]
    if len(kept) > LONGEST or not any(tokens[place].kind == "operator" for place in kept[1:]):
        return None
    return Side(tuple(tokens[place] for place in kept), frozenset(units), _changed(tokens, kept[0], text))


def _stops(token: Token, depth: int, words: bool, behind: str) -> bool:
    """Whether an expression cannot extend back to this token."""
    if token.kind == "other" or (token.kind == "open" and not depth):
        return True
    return (words and token.kind not in ("number", "percent", "close")) or token.kind == "number" == behind


def _units(words: Sequence[Token], number: Token) -> set[str]:
    """Units after a number; a letter that touches the number is a variable."""
    units = {word.text.lower() for word in words if word.kind == "word"}
    variable = any(len(word.text) == 1 and word.start == number.end for word in words if word.text != "/")
    return units | ({"x"} if variable else set())


def _changed(tokens: Sequence[Token], start: int, text: str) -> bool:
    """Whether the text before an expression changes its value."""
    first = tokens[start]
    before = [token for token in tokens[max(0, start - _WORDS) : start] if token.kind != "money"]
    if first.kind == "operator" and (first.text != "-" or text[first.end].isspace()):
        return True
    if not before:
        return False
    last, touching = before[-1], before[-1].end == first.start
    if last.kind == "number":
        return True
    if last.kind == "word":
        preceding = [token.text.lower() for token in before]
        behind = next((token for token in reversed(before) if token.kind != "word"), last)
        of = preceding[-1] == "of" and not (len(preceding) > 1 and preceding[-2] in _PLAIN_OF)
        return of or preceding[-1] in _CHANGING or touching or len(preceding[-1]) == 1 or behind.kind == "operator"
    if last.kind == "open":
        return len(before) > 1 and before[-2].kind in ("operator", "number", "close")
    return last.text in _CHANGING_SIGNS or (touching and last.text in ".,:;\u2019'")


def _right(tokens: Sequence[Token], text: str) -> Side | None:
    """The expression or number at the beginning of a piece of text."""
    kept: list[Token] = []
    units: set[str] = set()
    depth, place, doubtful = 0, 0, False
    while place < len(tokens) and len(kept) <= LONGEST:
        token = tokens[place]
        rate = token.text == "/" and place + 1 < len(tokens) and tokens[place + 1].start == token.end
        if token.kind == "money":
            units.add("$")
        elif token.kind == "word" or (kept and rate and tokens[place + 1].kind == "word"):
            run = place + (token.kind != "word")
            while run < len(tokens) and tokens[run].kind == "word":
                run += 1
            if token.kind == "word" and kept:
                units |= _units(tokens[place : min(run, place + 2)], kept[-1])
            followed = run < len(tokens) and tokens[run].kind in ("operator", "close")
            if not kept or not followed or run - place > _WORDS:
                break
            place = run
            continue
        elif token.kind == "other" or (token.kind == "close" and not depth):
            goes_on = bool(kept) and token.start == kept[-1].end and text[token.end : token.end + 1].isdigit()
            doubtful = token.text in _CHANGING_SIGNS or (token.kind == "other" and goes_on)
            break
        elif token.kind == "number" and kept and kept[-1].kind in ("number", "percent", "close"):
            doubtful = len(token.text) == 3  # 10 000
            break
        else:
            depth += (token.kind == "open") - (token.kind == "close")
            kept.append(token)
        place += 1
    while kept and kept[-1].kind in ("operator", "open"):
        doubtful |= kept.pop().text in "*/("
    if not any(token.kind == "number" for token in kept) or len(kept) > LONGEST:
        return None
    return Side(tuple(kept), frozenset(units), doubtful)


def _doubtful(left: Side, right: Side) -> bool:
    words = left.units | right.units
    if left.doubtful or right.doubtful or words & _SCALES or any(len(w) == 1 and w not in ("$", "a") for w in words):
        return True
    if any(len(token.text) > _DIGITS for token in (*left.tokens, *right.tokens)):
        return True
    singular = {"$" if word in ("dollar", "dollars") else word.removesuffix("s") for word in words}
    return any(len(singular & line) > 1 for line in _MEASURES)


def _agree(left: Sequence[Token], right: Sequence[Token]) -> bool:
    """Whether some reading of the left side has the value of some reading of the right side."""
    first = next(i for i, token in enumerate(right) if token.kind == "number")
    number = right[: first + 1 + (right[first + 1 : first + 2] != () and right[first + 1].kind == "percent")]
    last = right[first]
    readings: tuple[Percent, ...] = ("plain",)
    if any(token.kind == "percent" for token in (*left, *right)):
        readings = ("hundredths", "plain", "relative")
    orders: tuple[Order, ...] = ("usual", "flat", "tight")
    for percent, written, order in product(readings, readings[:2], orders):
        value = value_of(left, percent, order)
        if value is None:
            return True  # a division by zero or an unfinished bracket cannot be judged
        slack = _slack(left, percent, order, value)
        unit = Fraction(1, 10**last.decimals) / (100 if written == "hundredths" and number[-1].kind == "percent" else 1)
        stated, whole = value_of(number, written, "usual"), value_of(right, written, order)
        rounded = (value / unit).denominator != 1
        if stated is not None and (abs(value - stated) <= slack or (rounded and abs(value - stated) < unit + slack)):
            return True
        if whole is not None and abs(value - whole) <= slack + _slack(right, written, order, whole):
            return True
    return False


def _slack(tokens: Sequence[Token], percent: Percent, order: Order, value: Fraction) -> Fraction:
    """How much the value changes if operands with two or more decimals are off by one in their last digit."""
    total = Fraction(0)
    for i, token in enumerate(tokens):
        if token.kind == "number" and token.decimals > 1:
            moved = replace(token, text=str(token.text)[:-1] + str((int(token.text[-1]) + 1) % 10))
            other = value_of([*tokens[:i], moved, *tokens[i + 1 :]], percent, order)
            step = abs(other - value) if other is not None else Fraction(0)
            total += step / 9 if token.text[-1] == "9" else step
    return total
