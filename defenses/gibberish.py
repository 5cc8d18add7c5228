"""`gibberish`: reject tokens that the policy would hardly ever write (prime-rl's filter; arXiv:2510.02387, 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class Gibberish(Defense):
    """Reject completions with a rare token that is less probable than a token drawn uniformly at random.

    The source counts a token if its log-prob is below -ln(vocabulary size) - 2 (-13.9 for Qwen2.5's vocabulary of
    151,936) and its id is high, because in most tokenizers rare tokens have high ids.

    Args:
        logprob: a token counts if its log-prob is below this, in nats, at the sampler's temperature.
        above: token ids up to this one are common and never count; the source takes 100,000. 0 counts all.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "gibberish"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"homogeneous"})

    def __init__(self, logprob: float = -13.9, above: int = 0, reject: Reject = "drop") -> None:
        if not logprob < 0 or above < 0:
            raise ValueError("gibberish: logprob lies below 0, and above is at least 0")
        self.logprob, self.above = logprob, above
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions with such a token; the score is the distance below the limit, in nats."""
        objections = {}
        measured = view.policy.token_logprobs(view.completions)
        for place, (completion, logprobs) in enumerate(zip(view.completions, measured, strict=True)):
            # EOS, after the ids of a completion that ended, is never rare.
            rare = zip(completion.ids, logprobs.tolist()[: len(completion.ids)], strict=True)
            least = min((logprob for token, logprob in rare if token > self.above), default=0.0)
            if least < self.logprob:
                objections[place] = Objection(self.logprob - least, f"a token with log-prob {least:.1f}")
        return judged(view, objections, self.reject)
