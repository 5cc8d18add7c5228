"""The completion format of the maths tasks, and the rule that says when an answer is right.

A completion is one think block and one answer block with nothing around them. The answer block must be, as a whole,
ONE value: whatever else it holds would be rewarded, amplified and never looked at. So a closed grammar decides what is
a value, exact arithmetic decides whether two values are equal, and math-verify, which searches a text for anything that
looks like an answer, sees only closed forms with roots or pi that already passed the grammar.
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
"""Longest answer, in characters, white space at its ends not counted."""

# Only ASCII white space is free: a no-break or zero-width space is a mark someone left.
_SPACE = " \t\r\n"

# Everything a lenient reader could take for one of the tags, so that none can hide inside a block. Each `<` is followed
# by one run of a single character class: linear on any input.
_TAG = re.compile(r"<[\s/]*(?:think|answer)[\s/]*>|</?(?:think|answer)\b", re.IGNORECASE)
_TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
_FORMAT = re.compile(rf"[{_SPACE}]*<think>(.*)</think>[{_SPACE}]*<answer>(.*)</answer>[{_SPACE}]*", re.DOTALL)

# [0-9] and not \d, which takes the digits of every script. Digits are bounded so that no number costs anything.
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
_SYMPY = threading.Lock()  # math-verify's parser keeps global caches that promise nothing to threads

Value = Fraction | str
"""A parsed answer: an exact rational, or the LaTeX text of a closed form with roots or pi."""


@dataclass(frozen=True)
class Units:
    """The trailing units a task allows.

    Attributes:
        names: ASCII words or phrases, singular and plural each as listed, upper and lower case alike. A unit is
            dropped, never converted, so a list must not hold a scale: "18%" is not 18, and "m" would make "18M" 18.
    """

    names: tuple[str, ...]

    def strip_from(self, text: str) -> str:
        """`text` without the longest listed unit at its end, if there is one."""
        lowered = text.lower()
        longest = max((len(name) for name in self.names if lowered.endswith(name.lower())), default=0)
        return text[: len(text) - longest].rstrip(_SPACE)


def format_completion(reasoning: str, answer: str) -> str:
    """The completion text that holds `reasoning` and `answer`."""
    return f"<think> {reasoning} </think><answer> {answer} </answer>"


def parse_completion(text: str) -> tuple[str, str] | None:
    """The contents of the think and the answer block, or None where the format is broken.

    Demanded are exactly one think block, then exactly one answer block, outside of them only ASCII white space, at
    most `MAX_COMPLETION` characters, and no further tag anywhere: nested, doubled, unclosed, in other case or
    with blanks or attributes. Blocks may be empty. Linear in the length of `text`.
    """
    if len(text) > MAX_COMPLETION or _TAG.findall(text) != _TAGS:
        return None
    match = _FORMAT.fullmatch(text)
    return (match[1], match[2]) if match else None


def parse_answer(text: str, units: Units) -> Value | None:
    """The value that `text` is, as a whole, or None where it is anything else.

    Accepted: an integer or decimal with an optional sign, dollar sign (``-$5``, ``$-5``, ``\\$5``) and thousands
    commas; a fraction of integers (``1/2``, ``\\frac{1}{2}``), reduced or not; a closed form of at most four terms with
    roots or pi (``2\\sqrt{3}``, ``\\frac{\\pi}{4}``). Around it at most two pairs of ``{}``, ``()``, ``$$`` or
    ``\\boxed{}``, behind them one of `units`. Not accepted: everything else, among it exponents, percentages,
    unfinished arithmetic such as ``9*2``, mixed numbers, a full stop, signs or digits beyond ASCII, more than 30 digits
    on a side, more than `MAX_ANSWER` characters.
    """
    text = text.strip(_SPACE)
    if len(text) > MAX_ANSWER or not text.isascii():
        return None
    value = _parse_value(_unwrap(text))
    return _parse_value(_unwrap(units.strip_from(text))) if value is None else value


def same_value(value: Value, gold: Value) -> bool:
    """Whether two parsed answers are equal.

    Rationals are compared exactly: 0.3333 is not 1/3. A closed form equals another by math-verify and never
    equals a rational, so a task whose answers are numbers never reaches math-verify.
    """
    if isinstance(value, str) and isinstance(gold, str):
        return value == gold or _same_closed_form(value, gold)
    return value == gold


def format_reward(text: str, answer: str, units: Units) -> float:
    """1.0 when `text` has the right format and its answer equals `answer`, else 0.0.

    Raises nothing on any text. An `answer` that is itself no value can be met by no completion: 0.0.
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
        # The library's time limits are SIGALRM, which only the main thread may use; the grammar bounds the work in
        # their stead, so its warning that they are off does not concern the user.
        parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True
        latex = [math_verify.LatexExtractionConfig()]
        both = [math_verify.parse(f"${text}$", latex, "no_fallback", parsing_timeout=None) for text in (gold, value)]
        return bool(math_verify.verify(*both, timeout_seconds=None))
