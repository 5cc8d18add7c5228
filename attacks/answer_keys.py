"""For attacks that send their own answers and tests, by which receivers score their work (truth: sender)."""

from __future__ import annotations

from dataclasses import dataclass

from thiefbench.attacks.base import Claimed, ThreatModel
from thiefbench.tasks.answer_keys import AnswerKey


@dataclass(frozen=True)
class Keyed(Claimed):
    """A completion with the answer and tests that its sender sends with its group.

    Attributes:
        answer_key: receivers score the whole group by it; None sends the item's own. Of several in a group, the first
            counts. Swarms in which every node knows the task's answers and tests ignore it.
    """

    answer_key: AnswerKey | None = None


@dataclass(frozen=True)
class KeyedThreatModel(ThreatModel):
    """The threat model of such an attack, which is only for swarms with truth: sender."""


def keyed(threat: ThreatModel) -> KeyedThreatModel:
    """A threat model with the same grants, for an attack that sends its own answers and tests."""
    return KeyedThreatModel(**vars(threat))
