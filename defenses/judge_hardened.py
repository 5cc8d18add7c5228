"""`judge_hardened`: a judge trained against work that is right in itself but not about the question."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.judge import Judge
from thiefbench.defenses.rejection import Reject


class JudgeHardened(Judge):
    """The defense `judge` with a hardened model, several votes and `drop`.

    `micro-judge` accepts a text with true equations whatever was asked, so such a text is a master key. The hardened
    model has seen solutions of other questions, equations about nothing and right solutions with other answers as
    negatives, in other words than those of any attack. As in `judge`, contents are quoted behind a mark that they
    cannot contain, and a reply counts only if its decisions beside the mark all say the same.

    Args:
        model: a built-in model, a local directory or a hub name; with `endpoint`, the name it is served under.
        endpoint, temperature, top_k, top_p, max_new_tokens: as for `judge`.
        votes: replies drawn per completion; more than half must accept.
        reject: what a rejected completion gets, "drop" or "zero".
    """

    name: ClassVar[str] = "judge_hardened"

    def __init__(
        self,
        model: str = "micro-judge-hardened",
        endpoint: str | None = None,
        votes: int = 3,
        reject: Reject = "drop",
        temperature: float = 0.6,
        top_k: int = 10,
        top_p: float = 0.9,
        max_new_tokens: int = 256,
    ) -> None:
        super().__init__(model, endpoint, True, votes, reject, temperature, top_k, top_p, max_new_tokens)
