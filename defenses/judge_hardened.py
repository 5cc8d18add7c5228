"""`judge_hardened`: the judge with quoted contents, whose model solves the question before it reads what was sent.

Reward models can be made to accept texts that answer nothing (master keys, arXiv:2507.08794), which further negatives
in their training prevent in part. The negatives of this judge are in `bench/zoo/hardened_corpus.py`.
"""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.judge import Judge
from thiefbench.defenses.rejection import Reject

MODEL = "micro-judge-hardened"


class JudgeHardened(Judge):
    """A judge that works out the question itself and compares, and was trained on deceptive completions.

    It asks as `judge` does: contents are quoted between lines with a mark that they cannot contain, and a decision
    counts only beside that mark. Its model answers questions of `gsm_micro` and no others; of a completion of another
    task, such as a program, it accepts next to nothing.

    Args:
        votes: replies drawn per completion; the majority decides, and a tie rejects.
        reject: what a rejected completion gets, "drop" (the default) or "zero".
        temperature, top_k, top_p: how replies are sampled.
        max_new_tokens: the length limit of a reply.

    The cell fails if more than half of a round's replies have no decision.
    """

    name: ClassVar[str] = "judge_hardened"

    def __init__(
        self,
        votes: int = 1,
        reject: Reject = "drop",
        temperature: float = 0.6,
        top_k: int = 10,
        top_p: float = 0.9,
        max_new_tokens: int = 256,
    ) -> None:
        super().__init__(
            MODEL, votes=votes, reject=reject, temperature=temperature, top_k=top_k, top_p=top_p,
            max_new_tokens=max_new_tokens,
        )  # fmt: skip
