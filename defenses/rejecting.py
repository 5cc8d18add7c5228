"""`rejecting`: another defense, with all of its rejections turned into one action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import Action, DefenderView, Defense, JudgeSpec, Requirement, Verdict
from thiefbench.defenses.skipping import ACTIONS, SKIP

REJECTIONS = tuple(action for action in ACTIONS if action != "accept")


class Rejecting(Defense):
    """Reject what the inner defense rejects, but always by the same action.

    It compares rules of rejection with otherwise equal verdicts, also for a defense that has no choice of its own. What
    the inner defense accepts or masks keeps its verdict.

    Args:
        defense: the inner defense.
        reject: "skip", "drop" or "zero", as in `Verdict`.
    """

    name: ClassVar[str] = "rejecting"

    def __init__(self, defense: Defense | str = "logit", reject: Action = SKIP) -> None:
        if isinstance(defense, str):
            raise TypeError(f"rejecting: defense is a Defense; thiefbench.registry.make makes one of {defense!r}")
        if reject not in REJECTIONS:
            raise ValueError(f"rejecting: reject must be one of {', '.join(REJECTIONS)}, not {reject!r}")
        self.defense, self.reject = defense, reject

    @property
    def requires(self) -> frozenset[Requirement]:  # type: ignore[override]  # of plain defenses a constant
        """What the inner defense needs."""
        return self.defense.requires

    @property
    def sees_labels(self) -> bool:  # type: ignore[override]  # as requires
        """Whether the inner defense sees labels."""
        return self.defense.sees_labels

    @property
    def judge(self) -> JudgeSpec | None:  # type: ignore[override]  # as requires
        """The judge of the inner defense."""
        return self.defense.judge

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """As the inner defense."""
        return self.defense.prove(states)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """The inner verdicts; rejections have the one action, with their score and reason."""
        return [
            verdict if verdict.action == "accept" else replace(verdict, action=self.reject)
            for verdict in self.defense.inspect(view)
        ]

    def state(self) -> dict[str, Any]:
        """The inner defense's state."""
        return self.defense.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Give it back to the inner defense."""
        self.defense.restore(state)
