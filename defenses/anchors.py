"""Anchors: defenses that every table includes for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, Action, DefenderView, Defense, LabelledView, Verdict


class AcceptAll(Defense):
    """Accept everything: no defense at all (`none`)."""

    name: ClassVar[str] = "none"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Accept everything."""
        return [ACCEPT] * len(view.completions)


class RejectAll(Defense):
    """Reject everything (`reject_all`): perfectly safe and useless, because the models keep their start weights."""

    name: ClassVar[str] = "reject_all"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject everything."""
        return [Verdict("zero", reason="rejects everything")] * len(view.completions)


class Random(Defense):
    """Reject at random, at a given rate (`random`). A defense must beat it at the same rejection rate.

    Args:
        rate: share rejected, in [0, 1].
    """

    name: ClassVar[str] = "random"

    def __init__(self, rate: float = 0.25) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"random: rate must lie in [0, 1], got {rate}")
        self.rate = rate

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject each completion with probability `rate`."""
        rejected = Verdict("zero", reason="drawn at random")
        return [rejected if view.rng.random() < self.rate else ACCEPT for _ in view.completions]


class Oracle(Defense):
    """See the labels and reject exactly the poison (`oracle`). It is an anchor and cannot be submitted.

    Args:
        reject: "zero" or "drop".
    """

    name: ClassVar[str] = "oracle"
    sees_labels: ClassVar[bool] = True

    def __init__(self, reject: Action = "zero") -> None:
        self.rejected: Action = reject

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every completion that carries a payload."""
        if not isinstance(view, LabelledView):
            raise TypeError("oracle: needs a view with labels, which only the benchmark's own engine gives")
        return [Verdict(self.rejected, reason="labelled as payload") if bad else ACCEPT for bad in view.payload]
