"""`length_budget`: a sender may not give long answers more often than the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.defenses.reference import others_quantile
from thiefbench.defenses.rejection import Objection, Reject, checked, judged

Answered = tuple[int, str]
"""A round and an item answered in it."""


class LengthBudget(Defense):
    """Reject the long rewarded completions of a sender that has more long ones than other senders.

    The longest of many honest samples is still an honest sample, so a single completion cannot show DoS. A sender whose
    completions are all long can. For each of several quantiles q, a sender's cap is the median over the other senders,
    weighted by their completions, of that quantile of their lengths. Of completions like theirs, a share of 1 - q lies
    above the cap. Completions of one item have similar lengths, so the unit is the item: the share of its completions
    above the cap lies between 0 and 1 with mean 1 - q, and so has a variance of at most q (1 - q). A sender whose mean
    share over its last items is above ``1 - q + deviations * sqrt(q (1 - q) / items)`` has all completions above that
    cap rejected in this round.

    By chance, a few long completions of honest senders are rejected in some rounds. A sender that stays just within its
    budget makes the models' answers a little longer, and with them, slowly, the caps; `length_quantile` bounds this
    growth.

    Args:
        quantiles: for which shares of the other senders' completions, each in (0, 1), a sender's own are compared with
            the length that so many of theirs do not exceed.
        window: how many past rounds count besides this one.
        deviations: how many standard deviations above the expected share a sender may be.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "length_budget"

    def __init__(
        self,
        quantiles: Sequence[float] = (0.5, 0.75, 0.9),
        window: int = 10,
        deviations: float = 3.0,
        reject: Reject = "drop",
    ) -> None:
        if not quantiles or not all(0 < q < 1 for q in quantiles):
            raise ValueError(f"length_budget: quantiles lie between 0 and 1, got {quantiles}")
        if window < 0 or deviations <= 0:
            raise ValueError("length_budget: window is at least 0 and deviations above 0")
        self.quantiles, self.window, self.deviations = tuple(sorted(quantiles)), window, deviations
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions above a cap that their sender exceeds too often; the score is length divided by cap."""
        answered, usual = self._known(view)
        senders = {completion.sender for completion in view.completions}
        lowest: dict[str, float] = {}
        for quantile in self.quantiles:  # in ascending order, as the lowest exceeded cap rejects most
            caps = others_quantile(
                {sender: usual.get(sender, ()) for sender in senders | usual.keys()}, quantile, "higher"
            )
            for sender in senders - lowest.keys():
                if sender in caps and self._over(answered.get(sender, {}), caps[sender], quantile):
                    lowest[sender] = caps[sender]
        objections = {}
        for place, completion in enumerate(view.completions):
            cap = lowest.get(completion.sender)
            if cap is not None and completion.reward > 0 and completion.length > cap:
                objections[place] = Objection(
                    completion.length / cap, f"its sender is too often above {cap:.0f} tokens"
                )
        return judged(view, objections, self.reject)

    def _known(
        self, view: DefenderView
    ) -> tuple[Mapping[str, Mapping[Answered, Sequence[int]]], Mapping[str, Sequence[float]]]:
        """By sender, the lengths of its rewarded completions (by round and item), and of those that were accepted.

        Rejected completions count against their sender, but do not raise the caps of others.
        """
        answered: dict[str, dict[Answered, list[int]]] = {}
        usual: dict[str, list[float]] = {}
        for number, completion, accepted in self._rewarded(view):
            answered.setdefault(completion.sender, {}).setdefault((number, completion.item_id), []).append(
                completion.length
            )
            if accepted:
                usual.setdefault(completion.sender, []).append(float(completion.length))
        return answered, usual

    def _rewarded(self, view: DefenderView) -> Iterable[tuple[int, PoolCompletion, bool]]:
        for past in view.history[max(0, len(view.history) - self.window) :]:
            for completion, verdict in zip(past.completions, past.verdicts, strict=True):
                if completion.reward > 0:
                    yield past.round, completion, verdict.action == "accept"
        for completion in view.completions:
            if completion.reward > 0:
                yield view.round, completion, True

    def _over(self, answered: Mapping[Answered, Sequence[int]], cap: float, quantile: float) -> bool:
        """Whether a sender's items have too large a share above the cap."""
        if not answered:
            return False
        share = sum(sum(length > cap for length in lengths) / len(lengths) for lengths in answered.values()) / len(
            answered
        )
        return share > 1 - quantile + self.deviations * sqrt(quantile * (1 - quantile) / len(answered))
