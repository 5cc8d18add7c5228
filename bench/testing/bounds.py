"""Bounds on measures as users write them: "<0.05", or with the measure "worst_case<0.9". Loads nothing heavy."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thiefbench.errors import UserError

TRAINED = ("asr", "stop_rate", "false_rejection_rate", "utility", "harm_prevented", "drift", "divergence")
"""Measures of one attack that need trained swarms."""

OF_LEARNING = ("asr", "harm_prevented")
"""Those of them that say nothing if the attack does not work without a defense. Drift does: it asks for no attack."""

METRICS = (*TRAINED, "worst_case")
"""Measures that a threshold can be set on: the above, under every attack of a suite, and the least harm prevented."""

MORE_IS_BETTER = {
    "asr": False, "stop_rate": True, "false_rejection_rate": False, "clean_reward": True, "utility": True,
    "harm_prevented": True, "drift": False,
}  # fmt: skip
"""What a baseline is compared in. Not in divergence: two honest swarms lie further apart in it than its intervals over
completions say, so that below `FEW_SEEDS` seeds another course of training alone would count as worse."""

_RATES = frozenset({"stop_rate", "false_rejection_rate", "placebo_rejection_rate"})
"""Measures that are always shares, as the asr of `dos` is not: a limit beyond 0 and 1 is a mistake, as in percent."""

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WORDS = {"<": "below", "<=": "at-most", ">": "above", ">=": "at-least"}
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)"
_BOUND = re.compile(rf"\s*(<=|>=|<|>)\s*({_NUMBER})\s*")
_THRESHOLD = re.compile(rf"\s*(\w+)\s*(?:<=|>=|<|>)\s*{_NUMBER}\s*")


class MisuseError(UserError, ValueError):
    """An option, marker or argument cannot be used. One sentence for the user."""


@dataclass(frozen=True)
class Bound:
    """One side of a number line, such as < 0.05."""

    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Whether a value lies on that side."""
        return _HOLDS[self.sign](value, self.limit)

    @property
    def words(self) -> str:
        """The bound as a name that `pytest -k` can select, such as "below-0.05"."""
        return f"{_WORDS[self.sign]}-{self.limit:g}"

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"


@dataclass(frozen=True)
class Threshold:
    """A rule that fails a defense whose measure lies within the bound."""

    metric: str
    bound: Bound

    def __str__(self) -> str:
        return f"{self.metric} {self.bound}"


def parse_bound(text: object, metric: str) -> Bound:
    """Read a bound such as "<0.05".

    Args:
        text: as the user wrote it.
        metric: the measure, for the message.

    Raises:
        MisuseError: it is malformed.
    """
    match = _BOUND.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise MisuseError(
            f"{metric}={text!r} is not a bound; write one of <, <=, >, >= and a number, as in "
            f"{metric}={'>0.95' if MORE_IS_BETTER.get(metric, metric == 'worst_case') else '<0.05'!r}"
        )
    bound = Bound(match[1], float(match[2]))
    if metric in _RATES and not 0 <= bound.limit <= 1:
        holds = "always" if bound.holds(0) else "never"
        raise MisuseError(
            f"{metric} lies between 0 and 1, so {bound} {holds} holds; write a share, such as 0.05 for 5 %"
        )
    return bound


def parse_threshold(text: str) -> Threshold:
    """Read a threshold such as "worst_case<0.9".

    Raises:
        MisuseError: it is malformed, or there is no such measure.
    """
    match = _THRESHOLD.fullmatch(text)
    if match is None:
        raise MisuseError(
            f"{text!r} is not a threshold; write a measure, one of <, <=, >, >= and a number, as in worst_case<0.9"
        )
    metric = match[1]
    check_metric(metric, METRICS)
    return Threshold(metric, parse_bound(text.partition(metric)[2], metric))


def check_metric(metric: str, metrics: Iterable[str]) -> None:
    """Check that there is such a measure.

    Raises:
        MisuseError: there is none; the message names the nearest.
    """
    allowed = tuple(metrics)
    if metric not in allowed:
        near = difflib.get_close_matches(metric, allowed, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise MisuseError(f"there is no measure {metric!r}; {hint}known: {', '.join(allowed)}")
