"""`distribution`: a sender's token probabilities must look like those of samples (grail's soft check)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged

MEDIAN, MINIMUM, LOW = 0.30, 1e-5, 0.10
"""Largest median and least probability at which a completion looks foreign; for `LOW` see `bimodal`."""
COEFFICIENT = 0.58
"""The bimodality coefficient above which two kinds of tokens are likely; 5/9 is that of a uniform distribution."""
BEGINNING = 50
"""Number of tokens at the beginning that are also checked separately, because a prefill would be there."""


class Distribution(Defense):
    """Reject a sender's completions of a round if many of them have probabilities implausible for samples.

    The check of grail's validator (one-covenant/grail, `validators/distribution.py` and `shared/constants.py`, whose
    limits these are): a completion fails if the median of its tokens' probabilities is at most 0.3, if one of them is
    at most 1e-5, or if they fall into two kinds (`bimodal`), in the whole completion or in its first 50 tokens. One
    failure proves nothing. If more than a share of a sender's completions fail, all of its completions of that round
    are rejected.

    Args:
        share: the share of a sender's completions that may fail; 0.26 in the source.
        shortest: completions with fewer tokens are not counted. The source rejects completions below 30 tokens; many
            answers of the built-in models are shorter.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "distribution"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, share: float = 0.26, shortest: int = 10, reject: Reject = "drop") -> None:
        if not 0 <= share < 1 or shortest < 2:
            raise ValueError("distribution: share lies between 0 and 1, and shortest is at least 2")
        self.share, self.shortest = share, shortest
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject all completions of a sender with too many failures; the score is their share."""
        counted, failed = Counter[str](), Counter[str]()
        measured = view.policy.token_logprobs(view.completions)
        for completion, logprobs in zip(view.completions, measured, strict=True):
            if not completion.refused and len(logprobs) >= self.shortest:
                counted[completion.sender] += 1
                failed[completion.sender] += foreign(np.exp(logprobs.astype(np.float64)))
        shares = {sender: failed[sender] / count for sender, count in counted.items()}
        objections = {
            place: Objection(share, f"{share:.0%} of its sender's completions are no plausible samples")
            for place, completion in enumerate(view.completions)
            if (share := shares.get(completion.sender, 0.0)) > self.share
        }
        return judged(view, objections, self.reject)


def foreign(probabilities: NDArray[np.float64]) -> bool:
    """Whether the probabilities of a completion's tokens (at least one) fail the check."""
    return bool(
        np.median(probabilities) <= MEDIAN
        or probabilities.min() <= MINIMUM
        or bimodal(probabilities)
        or bimodal(probabilities[:BEGINNING])
    )


def bimodal(probabilities: NDArray[np.float64]) -> bool:
    """Whether a tenth of the probabilities is at most `LOW` and their bimodality coefficient at least `COEFFICIENT`.

    The coefficient is (skewness^2 + 1) / kurtosis, from uncorrected sample moments; 0 if all probabilities are equal.
    """
    deviations = probabilities - probabilities.mean()
    variance = float(np.mean(deviations**2))
    if variance < 1e-12 or np.quantile(probabilities, 0.1) > LOW:
        return False
    skewness, kurtosis = np.mean(deviations**3) / variance**1.5, np.mean(deviations**4) / variance**2
    return bool((skewness**2 + 1) / kurtosis >= COEFFICIENT)
