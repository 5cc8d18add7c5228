"""`termination`: a completion must end where its sampler plausibly would have ended (INTELLECT-2, arXiv:2505.07291)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, cut_short, judged


class Termination(Defense):
    """Reject completions that end where EOS is improbable, or that stop early without EOS.

    It catches senders that cut completions short or append EOS themselves. An honest sampler at temperature 1 also
    draws an improbable EOS now and then; in three rounds of the built-in model (one seed) none of 550 rewarded
    completions did.

    Args:
        minimum: the probability that EOS must exceed at the end, at the sampler's temperature; 0.1 in the source.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "termination"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, minimum: float = 0.1, reject: Reject = "drop") -> None:
        if not 0 <= minimum < 1:
            raise ValueError(f"termination: minimum is a probability below 1, got {minimum}")
        self.minimum = minimum
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every completion with an improbable end; the score is 1 - the probability of EOS there."""
        objections = {}
        for place, (completion, logprobs) in enumerate(
            zip(view.completions, view.policy.token_logprobs(view.completions), strict=True)
        ):
            if completion.ended:
                probability = exp(float(logprobs[-1]))
                if probability <= self.minimum:
                    objections[place] = Objection(1 - probability, f"ends where EOS has probability {probability:.2g}")
            elif cut_short(completion, view.sampling.max_new_tokens):
                objections[place] = Objection(1.0, "stops without EOS before the length limit")
        return judged(view, objections, self.reject)
