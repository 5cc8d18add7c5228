"""`divergence`: how far a completion is from the draw of its slot's seed, on average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.reference import others_quantile
from thiefbench.defenses.rejection import Objection, Reject, checked, cut_short, judged

GRID = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Tolerances, in logits, at which a completion is replayed. A token's shortfall counts at most as the last of them."""
SLACK = 0.01
"""In logits per token: far above float32's noise, and far below the mean shortfall from choosing between near-ties."""


class Divergence(Defense):
    """Reject completions whose tokens, on average, fall short of the seed's draw by more than is usual.

    A replay with a fixed tolerance per token (`seed_replay(tolerance=0.7)`) lets a sender exploit it at every token.
    The mean shortfall cannot be exploited in this way: honest completions rarely miss their draw, and then only by
    little. This is the score of Token-DiFR (arXiv:2511.20621), the mean over tokens of min(shortfall, cap), where a
    token's shortfall is the difference, in logits, between the largest score (scaled logit plus noise) and its own. It
    is computed from replays at the tolerances of `GRID`, as the integral over the tolerance of the share of tokens that
    miss, by the trapezoidal rule.

    The usual value is the median over the other senders, weighted by their completions, of a high quantile of their
    scores in this round and the last ones. So the threshold adapts to the numerical precision: it is 0 if all nodes
    compute alike.

    Args:
        false_rejection: share of honest completions that may be rejected.
        window: how many past rounds count besides this one.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "divergence"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous", "beacon"})

    def __init__(self, false_rejection: float = 0.01, window: int = 3, reject: Reject = "drop") -> None:
        if not 0 < false_rejection < 1 or window < 0:
            raise ValueError("divergence: false_rejection lies between 0 and 1, and window is at least 0")
        self.false_rejection, self.window = false_rejection, window
        self.reject: Reject = checked(self.name, reject)
        self.past: list[dict[str, list[float]]] = []

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions above the threshold or cut short; the score is the mean shortfall, in logits."""
        scores = self._scores(view)
        now: dict[str, list[float]] = {}
        for completion, score in zip(view.completions, scores, strict=True):
            if not completion.refused:
                now.setdefault(completion.sender, []).append(score)
        self.past = [*self.past, now]
        known: dict[str, list[float]] = {}
        for past_round in self.past:
            for sender, values in past_round.items():
                known.setdefault(sender, []).extend(values)
        self.past = self.past[-self.window :] if self.window else []
        usual = others_quantile(known, 1 - self.false_rejection, "higher")
        objections = {}
        for place, (completion, score) in enumerate(zip(view.completions, scores, strict=True)):
            limit = usual.get(completion.sender, 0.0) + SLACK
            cut = cut_short(completion, view.sampling.max_new_tokens)
            if score > limit or cut:
                reason = f"{score:.3f} logits a token short of its seed's draw, usual at most {limit:.3f}"
                objections[place] = Objection(score, reason + ", stops without EOS below the limit" * cut)
        return judged(view, objections, self.reject)

    def _scores(self, view: DefenderView) -> list[float]:
        """The mean shortfall of every completion, in logits per token."""
        missed = np.array([
            [float(np.mean(~matches)) if len(matches) else 0.0 for matches in view.policy.replay(view.completions, at)]
            for at in (None, *GRID)
        ])  # fmt: skip
        shares: list[float] = np.trapezoid(missed, (0.0, *GRID), axis=0).tolist()
        return shares

    def state(self) -> dict[str, Any]:
        """The scores of the last rounds by sender."""
        return {"past": self.past} if self.past else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.past = list(state.get("past", []))
