"""`logit`: every token must lie in the sampler's own support (HTTT, arXiv:2511.09780)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import RejectOrMask, checked, masked, touching

# The end of a sentence or line: after its mark, if white space, a tag or nothing follows; or before a closing tag.
_END = re.compile(r"(?<=[.!?])(?=\s|<|$)|(?=\n|</)")


class Logit(Defense):
    """Reject completions with a token that the sampler could not have drawn; this takes one forward pass.

    Args:
        reject: what happens to a rejected completion: "zero", the paper's rule, which at the built-in models' learning
            rate destroys the models of horizontal swarms; "drop", which does not; or "mask": it is accepted, but
            nothing is learned from the tokens outside the support and those around them. A masked completion still
            counts in its group's mean and standard deviation, and its advantage goes to the other tokens.
        tolerance: by how many logits a token may miss the support; None uses the dtype's numerical noise.
        reach: how many tokens before and after each token outside the support are masked too. None masks up to the end
            of its sentence or line: once a phrase has begun, its later tokens are mostly inside the support, and
            learning them would teach the phrase. An honest node might have written the text before the first token
            outside.
    """

    name: ClassVar[str] = "logit"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, reject: RejectOrMask = "zero", tolerance: float | None = None, reach: int | None = None) -> None:
        self.reject: RejectOrMask = checked(self.name, reject, RejectOrMask)
        if reach is not None and (reach < 0 or reject != "mask"):
            raise ValueError(f'logit: reach is a number of tokens, at least 0, beside reject="mask", got {reach}')
        self.tolerance, self.reach = tolerance, reach

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every completion with at least one token outside the support; the score counts them."""
        verdicts = [ACCEPT] * len(view.completions)
        outside = {
            place: ~inside
            for place, inside in enumerate(view.policy.in_support(view.completions, self.tolerance))
            if not inside.all()
        }
        spans = view.policy.spans([view.completions[place] for place in outside]) if self.reject == "mask" else []
        for number, (place, tokens) in enumerate(outside.items()):
            score, reason = float(tokens.sum()), f"{tokens.sum()} tokens outside the sampler's support"
            if self.reject == "mask":
                hidden = self._around(tokens, spans[number], view.completions[place].text)
                verdicts[place] = masked(hidden, score, reason)
            else:
                verdicts[place] = Verdict(self.reject, score, reason=reason)
        return verdicts

    def _around(self, tokens: NDArray[np.bool_], spans: NDArray[np.int64], text: str) -> NDArray[np.bool_]:
        """The tokens outside the support and those within reach of them."""
        hidden = tokens.copy()
        for token in np.flatnonzero(tokens):
            if self.reach is not None:
                hidden[max(0, token - self.reach) : token + self.reach + 1] = True
            else:
                start, last = spans[token]
                end = _END.search(text, max(start, last - 1))
                hidden |= touching(spans, [(start, end.start() if end else len(text))])
        return hidden
