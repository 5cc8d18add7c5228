"""`staleness`: reject completions from weights that are too old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged


class Staleness(Defense):
    """Reject completions whose version says that their weights are too many updates old.

    The version is the sender's claim. This defense detects a false claim only if it is impossible.

    Args:
        limit: by how many updates a completion's weights may lag behind the current ones.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "staleness"
    requires: ClassVar[frozenset[Requirement]] = frozenset({"versions"})

    def __init__(self, limit: int = 8, reject: Reject = "drop") -> None:
        if limit < 0:
            raise ValueError(f"staleness: limit is a number of updates, at least 0, got {limit}")
        self.limit = limit
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject completions older than the limit or with a version that does not exist yet; the score is the age."""
        objections = {}
        for place, completion in enumerate(view.completions):
            age = view.round - 1 - (-1 if completion.version is None else completion.version)
            if completion.version is None or not 0 <= age <= self.limit:
                reason = "says no version" if completion.version is None else f"{age} updates old"
                objections[place] = Objection(float(age), reason)
        return judged(view, objections, self.reject)
