"""`public_items`: refuse work whose answer or tests differ from the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.answer_keys import ANSWER_KEYS, key_of, public_of
from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class PublicItems(Defense):
    """Reject every completion of a group whose answer or tests are not those that the task has published.

    In a swarm with truth: sender, a forged answer makes wrong work right. Where the items come from a published set,
    nobody needs the sender's word for it. Answers and tests are compared as text, without white space at the ends, so
    a sender that words them differently is rejected too. Items that are not published are accepted.

    Args:
        reject: "drop" (the default, which leaves nothing of the group to learn from) or "zero".
    """

    name: ClassVar[str] = "public_items"
    requires: ClassVar[frozenset[Requirement]] = frozenset({ANSWER_KEYS})

    def __init__(self, reject: Reject = "drop") -> None:
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject what came with another answer or other tests."""
        reasons = {place: _difference(view, completion) for place, completion in enumerate(view.completions)}
        return judged(view, {place: Objection(1.0, why) for place, why in reasons.items() if why}, self.reject)


def _difference(view: DefenderView, completion: PoolCompletion) -> str:
    """What differs from the published item, in words; empty if nothing does."""
    sent, public = key_of(completion), public_of(view)
    published = None if public is None else public.answer_key(completion.item_id)
    if sent is None or published is None:
        return ""
    if sent.answer.strip() != published.answer.strip():
        return "its answer is not the published one"
    return "its tests are not the published ones" if sent.tests.strip() != published.tests.strip() else ""
