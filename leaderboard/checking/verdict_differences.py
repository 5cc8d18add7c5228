"""Where the verdicts of two instances of a defense differ, and how a message says it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from thiefbench.defenses.base import Verdict


def first_apart(
    one: Sequence[Verdict], other: Sequence[Verdict], same: Callable[[Verdict, Verdict], bool] = operator.eq
) -> tuple[str, str] | None:
    """The first two verdicts on a completion that are not the same, as a message tells them."""
    pairs = zip(one, other, strict=True)
    return next((_told_apart(first, second) for first, second in pairs if not same(first, second)), None)


def alike(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts are equal up to the rounding of scores and weights, which depends on the order of sums."""
    if one.action != other.action or not weights_alike(one.token_weights, other.token_weights):
        return False
    if one.score is None or other.score is None:
        return one.score is other.score
    return abs(one.score - other.score) <= 1e-3 * max(1.0, abs(one.score))


def weights_alike(one: Sequence[float] | None, other: Sequence[float] | None) -> bool:
    """Whether two verdicts' token weights are equal up to rounding."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(abs(a - b) <= 1e-3 for a, b in zip(one, other, strict=True))


def _told_apart(one: Verdict, other: Verdict) -> tuple[str, str]:
    """Two unequal verdicts, in as many words as their difference needs."""
    for told in (_short, _with_reason, repr):
        if told(one) != told(other):
            break
    return told(one), told(other)


def _with_reason(verdict: Verdict) -> str:
    return f"{_short(verdict)} and the reason {verdict.reason[:100]!r}"


def _short(verdict: Verdict) -> str:
    score = "" if verdict.score is None else f" with score {verdict.score:g}"
    weights = "" if verdict.token_weights is None else ", masking tokens"
    return f"{verdict.action}{score}{weights}"
