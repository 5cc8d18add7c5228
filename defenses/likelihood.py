"""`likelihood`: a completion must be about as probable as others, on average and at its least probable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.reference import others_quantile
from thiefbench.defenses.rejection import Objection, Reject, checked, judged

# Far above the numerical noise of a mean log-prob, and far below the difference that foreign text makes.
SLACK = 0.02
LOWEST = -1e3


class Likelihood(Defense):
    """Reject completions with an unusually low mean log-prob, over all or over their least probable tokens.

    All honest completions of a round are drawn from one policy, so the other senders' completions show which values are
    usual, at no extra cost. A sender's thresholds are the median over the other senders, weighted by their completions,
    of a low quantile of their values in this round and the last ones. They assume no distribution (both values are
    skewed, so a median and a spread would misjudge honest tails), do not depend on what the sender itself submits, and
    hold as long as less than half of the others' completions come from attackers.

    It rejects any text that the policy would hardly write, poisoned or not, including an attacker's clean oracle
    solutions. It accepts text that an honest model might write, such as the wrong digit of `equations` and the long
    samples of `dos`.

    Args:
        false_rejection: share of honest completions that may be rejected, half of it for each of the two values; the
            share is higher while few completions are known.
        tail: the number of least probable tokens in the second mean.
        window: how many past rounds count besides this one; few, as the policy changes.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "likelihood"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, false_rejection: float = 0.01, tail: int = 3, window: int = 3, reject: Reject = "drop") -> None:
        if not 0 < false_rejection < 1 or tail < 1 or window < 0:
            raise ValueError(
                "likelihood: false_rejection lies between 0 and 1, tail is at least 1 and window at least 0"
            )
        self.false_rejection, self.tail, self.window = false_rejection, tail, window
        self.reject: Reject = checked(self.name, reject)
        self.past: list[dict[str, list[list[float]]]] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions below a threshold; the score is the distance from it, in nats per token."""
        measured = {
            place: [_mean(logprobs), _mean(np.sort(logprobs)[: self.tail])]
            for place, logprobs in enumerate(view.policy.token_logprobs(view.completions))
            if len(logprobs)
        }
        now: dict[str, list[list[float]]] = {}
        for place, values in measured.items():
            now.setdefault(view.completions[place].sender, []).append(values)
        self.past.append(now)
        thresholds = [self._thresholds(kind) for kind in (0, 1)]
        self.past = self.past[-self.window :] if self.window else []
        objections = {}
        for place, values in measured.items():
            usual = [by_sender.get(view.completions[place].sender, LOWEST) for by_sender in thresholds]
            shortfall, which = max((usual[kind] - values[kind], kind) for kind in (0, 1))
            if shortfall > SLACK:
                what = ("mean log-prob", f"log-prob of the {self.tail} least probable tokens")[which]
                objections[place] = Objection(
                    shortfall, f"{what} {values[which]:.2f}, usual at least {usual[which]:.2f}"
                )
        return judged(view, objections, self.reject)

    def state(self) -> dict[str, Any]:
        """The values of the last rounds by sender."""
        return {"past": self.past} if self.past else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.past = list(state.get("past", []))

    def _thresholds(self, kind: int) -> dict[str, float]:
        """The threshold of every sender, for the mean (0) or the tail (1)."""
        values: dict[str, list[float]] = {}
        for past_round in self.past:
            for sender, pairs in past_round.items():
                values.setdefault(sender, []).extend(pair[kind] for pair in pairs)
        return others_quantile(values, self.false_rejection / 2, "lower")


def _mean(logprobs: NDArray[np.float32]) -> float:
    return max(LOWEST, float(np.mean(logprobs, dtype=np.float64)))
