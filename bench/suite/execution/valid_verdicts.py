"""Verdicts on stages and on vectors, looked at before they count.

A check that writes "rejected" for "reject" would otherwise count as one that accepts, and a score that no table holds
would end its cell only after the last round. The sandbox looks in the same way at what a submission says. This stands
beside `thiefbench.pipeline` and `thiefbench.averaging`, whose code is part of the identity of their cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast, get_args, get_type_hints

import numpy as np

from thiefbench.defenses.aggregation.base import Aggregate, Aggregation, AggregationView, VectorVerdict
from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView

_Said = TypeVar("_Said", StageVerdict, VectorVerdict)


class ValidatedCheck(StageCheck):
    """A stage check whose verdicts are looked at; a ValueError says what is wrong with one.

    Args:
        check: the stage check.
    """

    name: str  # type: ignore[misc]  # of plain checks a constant of the class, here that of the one inside

    def __init__(self, check: StageCheck) -> None:
        self.inner, self.name = check, check.name

    def check(self, view: StageView) -> StageVerdict:
        """Its verdict."""
        return _plain(self.inner.check(view), StageVerdict, f"the stage check {self.name}")

    def state(self) -> dict[str, Any]:
        """Its state."""
        return self.inner.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Take back its state."""
        self.inner.restore(state)


class ValidatedRule(Aggregation):
    """An aggregation whose verdicts are looked at; a ValueError says what is wrong with one.

    Args:
        rule: the aggregation.
    """

    name: str  # type: ignore[misc]  # as of a stage check

    def __init__(self, rule: Aggregation) -> None:
        self.inner, self.name = rule, rule.name

    def aggregate(self, view: AggregationView) -> Aggregate:
        """Its aggregate."""
        joined, who = self.inner.aggregate(view), f"the aggregation {self.name}"
        if not isinstance(joined, Aggregate):
            raise ValueError(f"{who} gave {type(joined).__name__}, which is not an Aggregate")
        return replace(joined, verdicts=tuple(_plain(each, VectorVerdict, who) for each in joined.verdicts))

    def state(self) -> dict[str, Any]:
        """Its state."""
        return self.inner.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Take back its state."""
        self.inner.restore(state)


def _plain(verdict: object, kind: type[_Said], who: str) -> _Said:
    """A verdict, with its score as a plain float.

    Raises:
        ValueError: it is none.
    """
    actions: Sequence[str] = get_args(get_type_hints(kind)["action"])
    if not isinstance(verdict, kind):
        raise ValueError(f"{who} gave {type(verdict).__name__}, which is not a {kind.__name__}")
    if not isinstance(verdict.action, str) or verdict.action not in actions:
        raise ValueError(f"{who} gave the verdict {verdict.action!r:.80}; it is one of {', '.join(actions)}")
    if not isinstance(verdict.reason, str) or not _is_text(verdict.reason):
        raise ValueError(f"{who} gave a verdict whose reason is not text")
    score: object = verdict.score
    if score is None:
        return verdict
    number = score.item() if isinstance(score, np.generic) else score
    sound = isinstance(number, float | int) and not isinstance(number, bool) and abs(number) < 1e300
    if not sound:
        raise ValueError(f"{who} gave a verdict whose score is not a finite number")
    return replace(verdict, score=float(cast(float, number)))


def _is_text(text: str) -> bool:
    """Whether a text can be stored: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
