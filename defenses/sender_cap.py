"""`sender_cap`: no sender gets more than its share of a round, however much it offers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.rejection import Objection, judged


class SenderCap(Defense):
    """Keep only a fair share of every sender's groups, drawn by the round's generator.

    The fair share is the mean number of groups per sender. A group with several senders, as in the horizontal topology,
    counts for each of them. A node with several pseudonyms has several shares.

    Args:
        share: how many fair shares one sender may keep.
    """

    name: ClassVar[str] = "sender_cap"

    def __init__(self, share: float = 1.0) -> None:
        if share <= 0:
            raise ValueError(f"sender_cap: share must be above 0, got {share}")
        self.share = share

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Drop the completions of every sender's groups beyond the cap; the score is the sender's number of groups."""
        groups: dict[str, set[int]] = {}
        for completion in view.completions:
            groups.setdefault(completion.sender, set()).add(completion.group)
        count = sum(map(len, groups.values()))
        cap = max(1, math.ceil(self.share * count / max(1, len(groups))))
        kept: dict[str, set[int]] = {}
        # In the order of their groups, because senders choose their own pseudonyms.
        for sender, sent in sorted(groups.items(), key=lambda pair: sorted(pair[1])):
            kept[sender] = set(view.rng.sample(sorted(sent), min(cap, len(sent))))
        objections = {
            place: Objection(float(len(groups[completion.sender])), f"beyond {cap} groups of one sender")
            for place, completion in enumerate(view.completions)
            if completion.group not in kept[completion.sender]
        }
        return judged(view, objections, "drop")
