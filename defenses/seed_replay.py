"""`seed_replay`: every token must be the one that the slot's own noise draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Reject, checked, cut_short


class SeedReplay(Defense):
    """One forward pass; a completion that its slot's seed would not have drawn is rejected.

    Sampling is Gumbel-max, so given weights and seed there is one completion, and any node can tell it. Where the seed
    comes from a public beacon that is fixed after the weights, a node has nothing left to choose: forged text, the best
    of many samples and edited samples all differ somewhere. A slot has one seed, whatever pseudonym it is answered
    under. The idea is named, not built, in HTTT (arXiv:2511.09780); INTELLECT-2 (arXiv:2505.07291) checks token
    sampling and the end of completions.

    Not stopped: a node that picks its items after it knows the beacon picks those whose draws suit it (`item_grind`),
    and with announced seeds everyone draws many times and announces the seed it likes best (`seed_grind`).

    The default tolerance is a little room for an attacker as well: on micro-math's honest completions a second token
    would have passed at 1 of 5,061 places in float32's (1e-3), at 462 in bfloat16's (0.7).

    Args:
        reject: what a rejected completion gets, "zero" or "drop".
        tolerance: by how many logits a token may miss the drawn one; None takes the dtype's numerical noise.
        allowed: how many tokens of a completion may be others than the drawn ones.
        announced: trust the seeds that senders announce where the swarm has no beacon. Not safe.
    """

    name: ClassVar[str] = "seed_replay"

    def __init__(
        self, reject: Reject = "drop", tolerance: float | None = None, allowed: int = 0, announced: bool = False
    ) -> None:
        if allowed < 0 or (tolerance is not None and tolerance < 0):
            raise ValueError("seed_replay: allowed and tolerance must be at least 0")
        self.reject: Reject = checked(self.name, reject)
        self.tolerance, self.allowed, self.announced = tolerance, allowed, announced

    @property
    def requires(self) -> frozenset[Requirement]:  # type: ignore[override]  # of most defenses a constant
        """Equal weights, and a beacon unless announced seeds are trusted."""
        return frozenset({"homogeneous"} if self.announced else {"homogeneous", "beacon"})

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """The score counts the tokens that were not drawn, and one more where the end was not."""
        limit = view.sampling.max_new_tokens
        redrawn = view.policy.replay(view.completions, self.tolerance)
        return [
            self._verdict(int((~matches).sum()), cut_short(completion, limit))
            for completion, matches in zip(view.completions, redrawn, strict=True)
        ]

    def _verdict(self, misses: int, cut: bool) -> Verdict:
        if misses <= self.allowed and not cut:
            return ACCEPT
        reason = f"{misses} tokens that its seed does not draw" + ", stops without EOS below the limit" * cut
        return Verdict(self.reject, float(misses + cut), reason=reason)
