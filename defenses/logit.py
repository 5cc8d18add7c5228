"""`logit`: every token must lie in the sampler's own support (HTTT, arXiv:2511.09780)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, Action, DefenderView, Defense, Requirement, Verdict


class Logit(Defense):
    """One forward pass; a completion with a token that the sampler could not have drawn is rejected.

    Args:
        reject: what a rejected completion gets, "zero" or "drop".
        tolerance: by how many logits a token may miss the support; None takes the dtype's numerical noise.
    """

    name: ClassVar[str] = "logit"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, reject: Action = "zero", tolerance: float | None = None) -> None:
        self.rejected: Action = reject
        self.tolerance = tolerance

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every completion with at least one token outside the support; the score counts them."""
        verdicts = []
        for inside in view.policy.in_support(view.completions, self.tolerance):
            outside = int((~inside).sum())
            reason = f"{outside} tokens outside the sampler's support"
            verdicts.append(Verdict(self.rejected, float(outside), reason=reason) if outside else ACCEPT)
        return verdicts
