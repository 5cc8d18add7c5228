"""Which values a measured number may have, by its name: no honest record has a share above 1 or a negative length.

Records and entries come from strangers. Whether a number is the right one, only its completions tell; whether it can be
one at all is told here, before anybody sees it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from thiefbench import registry

MOST: Final = 1e12
"""A limit far beyond any real measure; sums of such numbers do not overflow."""
_CLOSE: Final = 1e-5
"""Entries round to six digits, so a value may leave its interval by as much, relative to it."""
_LAST_BITS: Final = 1e-9
"""How far the last bits of a mean of numbers from 0 to 1 may lie outside."""

_OUTCOMES: Final = frozenset({"asr", "peak_asr", "altered_asr", "spill", "eval_asr", "train_asr"})
"""Means of an attack's outcome."""
_LENGTHS: Final = frozenset({"dos"})
"""The attacks whose outcome is a number of tokens; that of all others in the package is a share."""
_SHARES: Final = frozenset(
    {
        "stop_rate", "false_rejection_rate", "masked_rate", "clean_reward", "start_reward", "unearned_reward",
        "judge_agreement", "own_expert", "drift", "vector_stop_rate", "vector_clip_rate", "vector_false_rejection_rate",
        "vector_false_clip_rate", "stage_false_rejection_rate", "recomputed_share", "skipped_share", "eval_reward",
        "train_reward", "poison_reward", "train_rule_reward", "poison_rule_reward",
    }
)  # fmt: skip
_AMOUNTS: Final = frozenset(
    {
        "mean_length", "eval_length", "train_length", "refused_vectors", "exchange_bytes", "altered_rounds",
        "clean_rounds", "caught_round", "refused_passes", "lost_stages", "activation_bytes", "malicious_length",
        "honest_length", "malicious_moved", "honest_moved",
    }
)  # fmt: skip
"""Lengths, counts and times. The divergence is none of them: its estimate may lie below 0."""


def measured(number: float | None) -> bool:
    """Whether a number is absent, or finite and below every limit of what is measured."""
    return number is None or (math.isfinite(number) and abs(number) <= MOST)


def known(name: str) -> bool:
    """Whether a cell has a score or a curve of this name, by itself or for one class of nodes."""
    return name.partition(" of ")[0] in _OUTCOMES | _SHARES | _AMOUNTS | {"divergence"}


def wrong_score(name: str, attack: str, value: float | None, low: float | None, high: float | None, count: int) -> str:
    """Why a score is not a measured number, in a clause; empty if it may be one.

    Args:
        name: of the score.
        attack: the spec string of its cell's attack.
        value, low, high, count: see `thiefbench.suite.store.records.Score`.
    """
    if not 0 <= count <= MOST or not all(map(measured, (value, low, high))):
        return f"its {name} is not a measured number"
    if value is None:
        return "" if low is high is None else f"its {name} has an interval and no value"
    for number in (value, low, high):
        if wrong := _outside(name, attack, number):
            return wrong
    slack = _CLOSE * max(abs(number) for number in (value, low, high) if number is not None)
    if (low is not None and low > value + slack) or (high is not None and high < value - slack):
        return f"its {name} is {value:g}, outside of its interval from {_shown(low)} to {_shown(high)}"
    return ""


def wrong_curve(name: str, attack: str, points: Iterable[tuple[int, float | None, float | None, float | None]]) -> str:
    """Why a curve is not a measured one, in a clause; empty if it may be one.

    Args:
        name: of the curve.
        attack: the spec string of its cell's attack.
        points: round, value, low and high of each.
    """
    before = -1
    for number, value, low, high in points:
        if number <= before:
            return f"its curve {name} has round {number} after round {before}"
        before = number
        if wrong := wrong_score(name, attack, value, low, high, 0):
            return f"in round {number} of its curve, {wrong}"
    return ""


def _outside(name: str, attack: str, number: float | None) -> str:
    least, most = _limits(name.partition(" of ")[0], attack)  # of one class of nodes, as in "asr of micro-math"
    if number is None or least - _LAST_BITS <= number <= most + _LAST_BITS:
        return ""
    where = f"below {least:g}" if number < least else f"above {most:g}"
    return f"its {name} is {number:g}, and it cannot be {where}"


def _limits(name: str, attack: str) -> tuple[float, float]:
    if name in _SHARES or (name in _OUTCOMES and _outcome_of(attack) == "share"):
        return 0, 1
    if name in _AMOUNTS or (name in _OUTCOMES and _outcome_of(attack) == "tokens"):
        return 0, math.inf
    return -math.inf, math.inf


@lru_cache(maxsize=1024)
def _outcome_of(attack: str) -> str:
    """What the outcome of an attack is: "share", "tokens", or "unknown" where it does not come with the package."""
    words = set(re.findall(r"\w+", attack))
    if ":" in attack or not words.isdisjoint(_foreign()):
        return "unknown"
    return "share" if words.isdisjoint(_LENGTHS) else "tokens"


def _foreign() -> frozenset[str]:
    """The attacks that other packages declare."""
    kinds: tuple[registry.Kind, ...] = ("attack", "weight_attack", "stage_attack")
    declared = {name: registry.entry(kind, name).dist for kind in kinds for name in registry.names(kind)}
    return frozenset(name for name, dist in declared.items() if dist is None or dist.name != "thiefbench")


def _shown(number: float | None) -> str:
    return "nothing" if number is None else f"{number:g}"
