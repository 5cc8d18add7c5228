"""`completeness`: if a sender leaves a slot empty, nothing is learned from it in that round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import ACCEPT, DefenderView, Defense, Verdict


class Completeness(Defense):
    """Drop every completion of a sender that has left a slot of this round empty.

    A node that sends some of its draws and withholds others chooses what is learned, although every token it sends is
    honest (`sift`). The remaining completions are unbiased only if none was left out. A node that is away for a whole
    round sends nothing and so loses nothing.

    A refused completion (too many tokens, a control token inside) counts as an empty slot, because it leaves its group
    too. A text that only this receiver's tokenizer cannot read is not the sender's fault and does not count.

    It counts empty slots by the pseudonym that owes them. So a node with a different pseudonym in every slot can
    withhold what it likes, unless pseudonyms have a cost or slots have a known owner.
    """

    name: ClassVar[str] = "completeness"

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Drop what a sender with empty slots has sent; the score counts these slots."""
        empty = Counter(each.sender for each in view.completions if each.refused and (each.ids or not each.text))
        return [
            Verdict("drop", float(empty[each.sender]), reason=f"its sender left {empty[each.sender]} slots empty")
            if each.sender in empty
            else ACCEPT
            for each in view.completions
        ]
