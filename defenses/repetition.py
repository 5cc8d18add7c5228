"""`repetition`: reject completions stuck in a loop (prime-rl's filter; arXiv:2506.13585, 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class Repetition(Defense):
    """Reject completions with many nearly certain tokens in a row, as in a loop.

    A model that repeats itself is certain of every next token, whatever it repeats. This is a filter against degenerate
    samples; it does not object to text merely because it is not the policy's.

    Args:
        window: how many tokens in a row; 3,000 in the source, so shorter completions need a smaller one. Confident
            models also write ordinary answers with nearly certain tokens, so measure the false rejection rate before
            you lower it.
        probability: the probability that each of them must exceed, at the sampler's temperature; 0.99 in the source.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "repetition"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, window: int = 3000, probability: float = 0.99, reject: Reject = "drop") -> None:
        if window < 1 or not 0 < probability < 1:
            raise ValueError("repetition: window is at least 1, and probability lies between 0 and 1")
        self.window, self.probability = window, probability
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions with such a run; the score is the run's length in tokens."""
        runs = [longest_run(values > log(self.probability)) for values in view.policy.token_logprobs(view.completions)]
        objections = {
            place: Objection(float(run), f"{run} nearly certain tokens in a row")
            for place, run in enumerate(runs)
            if run >= self.window
        }
        return judged(view, objections, self.reject)


def longest_run(marks: NDArray[np.bool_]) -> int:
    """How many marks in a row are set, at most."""
    ends = np.flatnonzero(np.concatenate(([True], ~marks, [True])))
    return int(np.diff(ends).max()) - 1
