"""Arithmetic expressions of numbers, + - * /, brackets and percent signs, evaluated exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["number", "operator", "open", "close", "equals", "word", "money", "percent", "line", "other"]
Percent = Literal["hundredths", "plain", "relative"]
Order = Literal["usual", "flat", "tight"]


@dataclass(frozen=True)
class Token:
    """A piece of the text: its kind, its text (operators as + - * /), and its start and end."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def value(self) -> Fraction:
        """The value of a number."""
        return Fraction(self.text.replace(",", ""))

    @property
    def decimals(self) -> int:
        """How many digits a number has after the point."""
        return len(self.text.partition(".")[2])


def value_of(tokens: Sequence[Token], percent: Percent, order: Order) -> Fraction | None:
    """The value of an expression; None if the tokens are not an expression or divide by zero.

    Args:
        tokens: numbers, operators, brackets and percent signs.
        percent: what 20% means: 0.2 ("hundredths"), 20 ("plain"), or, after + and -, that share of the value before it
            ("relative").
        order: "usual" precedence; "flat", from left to right without precedence; or "tight", which evaluates fractions
            written without blanks first, as in 14 / 1/4.
    """
    reader = _Reader(list(tokens), percent, order)
    try:
        value = reader.sum()
    except (_UnreadableError, ZeroDivisionError):
        return None
    return value if reader.place == len(reader.tokens) else None


class _UnreadableError(Exception):
    pass


@dataclass
class _Reader:
    """A recursive descent parser that evaluates as it reads."""

    tokens: list[Token]
    percent: Percent
    order: Order
    place: int = 0

    def sum(self) -> Fraction:
        total = self.product()
        flat = self.order == "flat"
        while sign := self._operator("+-*/" if flat else "+-"):
            first = self.place
            value = self.signed() if flat else self.product()
            if self.percent == "relative" and sign in "+-" and self._bare_percent(first):
                value *= total
            total = _applied(total, sign, value)
        return total

    def product(self) -> Fraction:
        total = self.signed()
        while self.order != "flat":
            if sign := self._operator("*/"):
                total = _applied(total, sign, self.signed())
            elif self._next("open"):  # 2(3 + 4)
                total *= self.signed()
            else:
                break
        return total

    def signed(self) -> Fraction:
        sign = self._operator("+-")
        value = self.operand()
        return -value if sign == "-" else value

    def operand(self) -> Fraction:
        if self._next("number"):
            value = self.tokens[self.place].value
            self.place += 1
            if self.order == "tight" and self._next("operator") and self._touching():
                value /= self.tokens[self.place + 1].value
                self.place += 2
        elif self._next("open"):
            self.place += 1
            value = self.sum()
            if not self._next("close"):
                raise _UnreadableError
            self.place += 1
        else:
            raise _UnreadableError
        if self._next("percent"):
            self.place += 1
            value = value if self.percent == "plain" else value / 100
        return value

    def _next(self, kind: Kind) -> bool:
        return self.place < len(self.tokens) and self.tokens[self.place].kind == kind

    def _touching(self) -> bool:
        """Whether a slash comes next, with a number on both sides and no blanks."""
        before, slash, *after = self.tokens[self.place - 1 : self.place + 2]
        return (
            slash.text == "/"
            and before.end == slash.start
            and any(token.kind == "number" and token.start == slash.end for token in after)
        )

    def _operator(self, allowed: str) -> str:
        if self._next("operator") and self.tokens[self.place].text in allowed:
            self.place += 1
            return self.tokens[self.place - 1].text
        return ""

    def _bare_percent(self, first: int) -> bool:
        return self.place == first + 2 and self.tokens[first + 1].kind == "percent"


def _applied(left: Fraction, sign: str, right: Fraction) -> Fraction:
    if sign == "*":
        return left * right
    if sign == "/":
        return left / right
    return left + right if sign == "+" else left - right
