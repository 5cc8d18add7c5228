"""`length_quantile`: a length cap learned from the other senders' rewarded completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, PastRound, PoolCompletion, Verdict
from thiefbench.defenses.reference import others_quantile
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class LengthQuantile(Defense):
    """Reject rewarded completions that are longer than nearly all rewarded completions of other senders.

    A sender's cap is the median over the other senders, weighted by their completions, of the given quantile of their
    lengths in this round and the last ones. So no sender affects its own cap, and senders with less than half of the
    others' completions cannot determine it, however many pseudonyms they use.

    Completions that are only a little longer than usual also lengthen the honest models' answers, and with them the
    cap. So the cap never exceeds `growth` times its value over the first rounds. DoS can still succeed up to that
    bound, and honest reasoning that grows beyond it is rejected. DoS submits the longest of many honest samples, and a
    quantile accepts some of those by construction.

    Args:
        quantile: of every sender's lengths, in (0, 1). About a share of 1 - quantile of honest completions is rejected;
            more while few completions are known.
        window: how many past rounds count besides this one.
        first: the number of first rounds whose cap bounds the later ones.
        growth: later caps are at most this many times the first rounds' cap; at least 1.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "length_quantile"

    def __init__(
        self, quantile: float = 0.99, window: int = 10, first: int = 5, growth: float = 1.25, reject: Reject = "drop"
    ) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"length_quantile: quantile must lie between 0 and 1, got {quantile}")
        if window < 0 or first < 1 or growth < 1:
            raise ValueError("length_quantile: window is at least 0, first at least 1 and growth at least 1")
        self.quantile, self.window, self.first, self.growth = quantile, window, first, growth
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every rewarded completion above its sender's cap; the score is its length divided by the cap."""
        rewarded = {place: completion for place, completion in enumerate(view.completions) if completion.reward > 0}
        recent = view.history[max(0, len(view.history) - self.window) :]
        caps = self._caps([*_accepted(recent), *rewarded.values()], view)
        if len(view.history) >= self.first:
            bounds = self._caps(list(_accepted(view.history[: self.first])), view)
            caps = {s: min(cap, self.growth * bounds.get(s, cap)) for s, cap in caps.items()}
        objections = {}
        for place, completion in rewarded.items():
            cap = caps.get(completion.sender)
            if cap is not None and completion.length > cap:
                objections[place] = Objection(completion.length / cap, f"longer than {cap:.0f} tokens")
        return judged(view, objections, self.reject)

    def _caps(self, known: Sequence[PoolCompletion], view: DefenderView) -> dict[str, float]:
        """A cap for every sender of the pool for which there are other senders to compare with."""
        lengths: dict[str, list[float]] = {completion.sender: [] for completion in view.completions}
        for completion in known:
            lengths.setdefault(completion.sender, []).append(completion.length)
        return others_quantile(lengths, self.quantile, "higher")


def _accepted(rounds: Iterable[PastRound]) -> Iterable[PoolCompletion]:
    """The completions of past rounds that were rewarded and accepted."""
    for past in rounds:
        for completion, verdict in zip(past.completions, past.verdicts, strict=True):
            if completion.reward > 0 and verdict.action == "accept":
                yield completion
