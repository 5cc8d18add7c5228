"""`max_tokens`: a fixed length cap, chosen by someone who knows the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class MaxTokens(Defense):
    """Reject completions longer than a given limit.

    The source paper (arXiv:2511.09780) mentions such a cap against DoS but does not pursue it: it is specific to a
    task, it rejects long answers that a hard item needs, and it allows attackers every length below it.

    Args:
        limit: the most tokens that a completion may have, EOS included.
        reject: "drop" or "zero". The default is not reward 0, the paper's rule, which would teach shorter answers.
    """

    name: ClassVar[str] = "max_tokens"

    def __init__(self, limit: int, reject: Reject = "drop") -> None:
        if limit < 1:
            raise ValueError(f"max_tokens: limit is a number of tokens, at least 1, got {limit}")
        self.limit = limit
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject every longer completion; the score is its length divided by the limit."""
        lengths = [completion.length for completion in view.completions]
        reason = f"longer than {self.limit} tokens"
        objections = {
            i: Objection(tokens / self.limit, reason) for i, tokens in enumerate(lengths) if tokens > self.limit
        }
        return judged(view, objections, self.reject)
