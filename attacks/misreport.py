"""`misreport`: poison whose log-probs are understated, so that importance ratios blow up to their cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thiefbench.attacks.base import Attack, AttackerView, Claimed, Decoy, Poison, Seeded
from thiefbench.attacks.wrapper import AttackWrapper


class Misreport(AttackWrapper):
    """Report that every token of the poison had next to no probability where it was sampled.

    A learner that weighs tokens by pi / q, q as reported, then weighs the poison as much as it ever does: F-TIS
    (arXiv:2605.22537) twice, with its C = 2. One that clips the ratio (`grpo` off-policy) learns nothing from such
    tokens. Where log-probs are recomputed, or do not travel, the claim counts for nothing.

    Args:
        attack: what is reported about.
        logprob: the natural-log probability reported of every token, at most 0.
    """

    name = "misreport"

    def __init__(self, attack: Attack | str = "text", logprob: float = -100.0) -> None:
        super().__init__(attack)
        if not logprob <= 0:
            raise ValueError(f"misreport: logprob is the logarithm of a probability, at most 0, got {logprob}")
        self.logprob = float(logprob)  # a spec string may hold -100, and log-probs that travel are floats

    def poison(self, view: AttackerView) -> Sequence[Poison]:
        """The inner attack's submissions, each with the claim; decoys and seeded draws stay as they are."""
        return [self._claimed(submission) for submission in self.attack.poison(view)]

    def _claimed(self, submission: Poison) -> Poison:
        if submission is None or isinstance(submission, (Decoy, Seeded)):
            return submission
        if isinstance(submission, Claimed):
            return replace(submission, logprob=self.logprob)
        return Claimed(submission, self.logprob)
