"""`misreport`: poison reported with too low log-probs, so that importance ratios rise to their cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Claimed, Decoy, Poison, Seeded, Withheld
from thiefbench.attacks.wrapper import AttackWrapper


class Misreport(AttackWrapper):
    """Claim that every token of the poison had next to no probability when it was sampled.

    A learner that weights tokens by pi / q, with the reported q, then gives the poison its largest possible weight: 2
    in F-TIS (arXiv:2605.22537), whose C is 2. A learner that clips the ratio (`grpo` off-policy) learns nothing from
    such tokens. The claim has no effect if log-probs are recomputed or not sent.

    Args:
        attack: the attack whose poison gets the claim.
        logprob: the natural-log probability claimed for every token, at most 0.
    """

    name = "misreport"

    def __init__(self, attack: Attack | str = "text", logprob: float = -100.0) -> None:
        super().__init__(attack)
        if not logprob <= 0:
            raise ValueError(f"misreport: logprob is the logarithm of a probability, at most 0, got {logprob}")
        self.logprob = float(logprob)  # a spec string may contain -100, an integer; log-probs are sent as floats

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's submissions, each with the claim; decoys and seeded draws stay as they are."""
        return [self._claimed(submission) for submission in self.attack.poison(view)]

    def _claimed(self, submission: Poison) -> Poison:
        if submission is None or isinstance(submission, (Decoy, Seeded, Withheld)):
            return submission
        if isinstance(submission, Claimed):
            return replace(submission, logprob=self.logprob)
        return Claimed(submission, self.logprob)
