"""The completion format of the maths tasks, and the rule that decides whether an answer is right.

A completion is one think block and one answer block with nothing around them. The whole answer block must be ONE value:
anything else in it would be rewarded and reinforced without ever being checked. So a closed grammar decides what a
value is, and exact arithmetic decides whether two values are equal. math-verify searches a text for anything that looks
like an answer, so it is only used for closed forms with roots or pi that the grammar has already accepted.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

MAX_COMPLETION = 65_536
"""Longest completion text that can earn a reward, in characters."""
MAX_ANSWER = 100
"""Longest answer, in characters, without the white space at its ends."""

# Only ASCII white space may be added freely: a no-break or zero-width space could be an attacker's mark.
_SPACE = " \t\r\n"

# Everything that a lenient reader could take for one of the tags, so that none can hide inside a block. The time is
# linear on any input: each `<` is followed by one run of a single character class.
_TAG = re.compile(r"<[\s/]*(?:think|answer)[\s/]*>|</?(?:think|answer)\b", re.IGNORECASE)
_TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
_FORMAT = re.compile(rf"[{_SPACE}]*<think>(.*)</think>[{_SPACE}]*<answer>(.*)</answer>[{_SPACE}]*", re.DOTALL)

# [0-9] and not \d, which matches the digits of every script. The number of digits is bounded, and so is the time.
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3}){1,9}|[0-9]{1,30})"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]{{1,30}})?|\.[0-9]{{1,30}})"
_NUMBER = re.compile(
    r"(?P<sign>[+-]?(?:\\?\$)?|\\?\$[+-])"
    rf"(?:(?P<decimal>{_DECIMAL})"
    rf"|(?P<top>{_INTEGER}) ?/ ?(?P<bottom>{_INTEGER})"
    rf"|\\[dt]?frac\{{(?P<latex_top>{_INTEGER})\}}\{{(?P<latex_bottom>{_INTEGER})\}})"
)

# Closed forms: up to four terms over one denominator. No powers and no nested roots, so sympy's work is bounded too.
_COEFFICIENT = r"[0-9]{1,6}(?:\.[0-9]{1,6})?"
_TERM = rf"(?:(?:{_COEFFICIENT} ?)?(?:\\sqrt\{{[0-9]{{1,6}}\}}|\\pi)|{_COEFFICIENT})"
_SUM = rf"[+-]?{_TERM}(?: ?[+-] ?{_TERM}){{0,3}}"
_CLOSED_FORM = re.compile(
    rf"{_SUM}|[+-]?\\[dt]?frac\{{{_SUM}\}}\{{{_SUM}\}}|(?:{_TERM}|[+-]{_TERM}|[+-]?\({_SUM}\)) ?/ ?[0-9]{{1,6}}"
)

_WRAPPERS = (("\\boxed{", "}"), ("{", "}"), ("(", ")"), ("$", "$"))
_SYMPY = threading.Lock()  # math-verify's parser has global caches that are not known to be thread-safe

Value = Fraction | str
"""A parsed answer: an exact rational, or the LaTeX text of a closed form with roots or pi."""


@dataclass(frozen=True)
class Units:
    """The trailing units a task allows.

    Attributes:
        names: ASCII words or phrases in upper or lower case; singular and plural are listed separately. A unit is
            dropped and never converted, so no name may be a scale: "18%" is not 18, and "m" would make "18M" 18.
    """

    names: tuple[str, ...]

    def strip_from(self, text: str) -> str:
        """`text` without the longest listed unit at its end; `text` itself if it ends with none."""
        lowered = text.lower()
        longest = max((len(name) for name in self.names if lowered.endswith(name.lower())), default=0)
        return text[: len(text) - longest].rstrip(_SPACE)


def format_completion(reasoning: str, answer: str) -> str:
    """The completion text that contains `reasoning` and `answer`."""
    return f"<think> {reasoning} </think><answer> {answer} </answer>"


def parse_completion(text: str) -> tuple[str, str] | None:
    """The contents of the think and the answer block, or None if the format is wrong.

    The text must be exactly one think block, then exactly one answer block, with only ASCII white space outside them,
    and at most `MAX_COMPLETION` characters long. It may contain no other tag, whether nested, doubled, unclosed, in
    upper case, or with blanks or attributes. Blocks may be empty. The time is linear in the length of `text`.
    """
    if len(text) > MAX_COMPLETION or _TAG.findall(text) != _TAGS:
        return None
    match = _FORMAT.fullmatch(text)
    return (match[1], match[2]) if match else None


def parse_answer(text: str, units: Units) -> Value | None:
    """The value that the whole of `text` is, or None if it is anything else.

    Accepted: an integer or decimal with an optional sign, dollar sign (``-$5``, ``$-5``, ``\\$5``) and thousands
    commas; a fraction of integers (``1/2``, ``\\frac{1}{2}``), reduced or not; a closed form of at most four terms with
    roots or pi (``2\\sqrt{3}``, ``\\frac{\\pi}{4}``). It may be inside at most two pairs of ``{}``, ``()``, ``$$`` or
    ``\\boxed{}``, with one of `units` after it, and a full stop at the very end (``18.``, ``18 dollars.``). Everything
    else is not accepted, including exponents, percentages, unfinished arithmetic such as ``9*2``, mixed numbers, signs
    or digits beyond ASCII, more than 30 digits on either side of the point, and more than `MAX_ANSWER` characters.
    """
    text = text.strip(_SPACE)
    if len(text) > MAX_ANSWER or not text.isascii():
        return None
    text = text.removesuffix(".")
    value = _parse_value(_unwrap(text))
    return _parse_value(_unwrap(units.strip_from(text))) if value is None else value


def same_value(value: Value, gold: Value) -> bool:
    """Whether two parsed answers are equal.

    Rationals are compared exactly: 0.3333 is not 1/3. Two closed forms are compared by math-verify. A closed form never
    equals a rational, so a task whose answers are all numbers never needs math-verify.
    """
    if isinstance(value, str) and isinstance(gold, str):
        return value == gold or _same_closed_form(value, gold)
    return value == gold


def format_reward(text: str, answer: str, units: Units) -> float:
    """1.0 when `text` has the right format and its answer equals `answer`, else 0.0.

    Never raises, whatever the text. If `answer` is not a value itself, no completion earns a reward.
    """
    blocks = parse_completion(text)
    if blocks is None:
        return 0.0
    value, gold = parse_answer(blocks[1], units), parse_answer(answer, units)
    return float(value is not None and gold is not None and same_value(value, gold))


def _unwrap(text: str) -> str:
    for _ in range(2):
        for left, right in _WRAPPERS:
            if len(text) > len(left) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip(_SPACE)
                break
    return text


def _parse_value(text: str) -> Value | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        has_root_or_pi = "\\sqrt" in text or "\\pi" in text
        return text if has_root_or_pi and _CLOSED_FORM.fullmatch(text) else None
    top = match["decimal"] or match["top"] or match["latex_top"]
    bottom = int((match["bottom"] or match["latex_bottom"] or "1").replace(",", ""))
    if bottom == 0:
        return None
    size = Fraction(top.replace(",", "")) / bottom
    return -size if "-" in match["sign"] else size


@lru_cache(maxsize=1024)
def _same_closed_form(value: str, gold: str) -> bool:
    import math_verify  # sympy takes about a second to import, and most tasks never need it
    from math_verify import grader, parser

    with _SYMPY:
        # The library's time limits use SIGALRM, which only works in the main thread. The grammar bounds the work
        # instead, so users need no warning that the limits are off.
        parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True
        latex = [math_verify.LatexExtractionConfig()]
        both = [math_verify.parse(f"${text}$", latex, "no_fallback", parsing_timeout=None) for text in (gold, value)]
        return bool(math_verify.verify(*both, timeout_seconds=None))
