"""`overlap`: refuse the work of senders who mostly repeat what others sent before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged

WORDS = 4
"""Words of a run that two texts may have in common."""


class Overlap(Defense):
    """Reject work that repeats another sender's earlier work on the item, if most of what its sender sends does so.

    Models that have learned the same may write the same, so a single repetition proves nothing, and neither does one
    within a round, where nobody came first. What tells is a sender's share of repetitions in a round.

    Args:
        share: a sender's repetitions are rejected if they are more than this share of its completions in the round.
        similar: a completion repeats another if at least this share of its runs of four words occur in it.
        reject: "drop" (the default) or "zero".

    The objection's score is the sender's share.
    """

    name: ClassVar[str] = "overlap"

    def __init__(self, share: float = 0.5, similar: float = 0.8, reject: Reject = "drop") -> None:
        if not 0 <= share < 1:
            raise ValueError(f"overlap: share must be at least 0 and below 1, got {share}")
        if not 0 < similar <= 1:
            raise ValueError(f"overlap: similar must be above 0 and at most 1, got {similar}")
        self.share, self.similar = share, similar
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject the repetitions of senders who repeat too much."""
        earlier: dict[str, list[tuple[str, frozenset[str]]]] = defaultdict(list)
        asked = {completion.item_id for completion in view.completions}
        for past in view.history:
            for sent in past.completions:
                if sent.item_id in asked and not sent.refused:
                    earlier[sent.item_id].append((sent.sender, _runs(sent.text)))
        repeats = [self._repeats(completion, earlier[completion.item_id]) for completion in view.completions]
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for completion, repeated in zip(view.completions, repeats, strict=True):
            counts[completion.sender][0] += repeated
            counts[completion.sender][1] += 1
        shares = {sender: repeated / sent for sender, (repeated, sent) in counts.items()}
        objections = {
            place: Objection(shares[completion.sender], "its sender repeats what others sent before")
            for place, (completion, repeated) in enumerate(zip(view.completions, repeats, strict=True))
            if repeated and shares[completion.sender] > self.share
        }
        return judged(view, objections, self.reject)

    def _repeats(self, completion: PoolCompletion, earlier: Sequence[tuple[str, frozenset[str]]]) -> bool:
        """Whether somebody else sent it, or nearly it, before its sender did."""
        if completion.refused:
            return False
        runs = _runs(completion.text)
        for sender, others in earlier:  # oldest first: who sent it first may send it again
            if len(runs & others) >= self.similar * len(runs):
                return sender != completion.sender
        return False


def _runs(text: str) -> frozenset[str]:
    """All runs of four words of a text; a shorter text is one run."""
    words = text.lower().split()
    return frozenset(" ".join(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1)))
