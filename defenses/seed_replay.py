"""`seed_replay`: every token must be the one that the slot's seed draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Reject, checked, cut_short


class SeedReplay(Defense):
    """Reject completions that their slot's seed would not have drawn; this takes one forward pass.

    Sampling is Gumbel-max, so weights and seed determine the completion, and any node can recompute it. If the seed
    comes from a public beacon that is fixed after the weights, a node cannot choose anything: forged text, the best of
    many samples and edited samples all differ somewhere from the draw. A slot has one seed, whatever pseudonym answers
    it. HTTT (arXiv:2511.09780) mentions the idea but does not build it; INTELLECT-2 (arXiv:2505.07291) checks the
    sampling of tokens and the end of completions.

    It does not stop a node that picks its items by their draws after the beacon is known (`item_grind`), nor one that
    withholds draws (`sift`), for which there is `completeness`. With announced seeds, it does not stop a node that
    draws many times and announces its favourite seed (`seed_grind`). The default tolerance also gives an attacker a
    little choice: of 5,061 tokens in honest micro-math completions, a second token would have passed at 1 with
    float32's tolerance (1e-3), and at 462 with bfloat16's (0.7).

    Args:
        reject: "drop" or "zero".
        tolerance: by how many logits a token may miss the drawn one; None uses the dtype's numerical noise.
        allowed: how many tokens of a completion may differ from the drawn ones.
        announced: trust the seeds that senders announce, in a swarm without a beacon. This is not safe.
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
        """Reject completions that differ from the draw; the score counts differing tokens, plus one if cut short."""
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
