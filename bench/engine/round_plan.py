"""The plan of a round before anything is sampled, and the malicious nodes' work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Offer
from thiefbench.tasks.base import Item

ClaimCache = dict[tuple[int, int, int, tuple[int, ...]], tuple[float, ...]]
"""Log-probs that receivers have recomputed, by cohort number, version, group and token ids."""


@dataclass(frozen=True)
class RoundPlan:
    """The tasks of the nodes in a round.

    Attributes:
        number: the round's, from 1.
        items: of every group.
        assignments: those of the nodes that are present, ordered by group and index.
        caches: by cohort, the forward passes of its current model over the round's prompts; the sampler, the defense
            and the update share them.
        recomputed: log-probs that were recomputed in this round, so that none is computed twice.
    """

    number: int
    items: Sequence[Item]
    assignments: Sequence[Assignment]
    caches: Mapping[Cohort, ForwardCache]
    recomputed: ClaimCache = field(default_factory=dict)

    def item(self, assignment: Assignment) -> Item:
        """The item of an assignment."""
        return self.items[assignment.group]

    def prompt_indices(self) -> dict[str, int]:
        """The index of each item's prompt in a cache, by item id."""
        return distinct_indices(self.items)

    def in_order(self, offers: Iterable[Offer]) -> list[Offer]:
        """A round's offers in the order of the assignments."""
        by_position = {offer.at: offer for offer in offers}
        return [by_position[assignment.at] for assignment in self.assignments]


@dataclass(frozen=True)
class MaliciousWork:
    """The malicious nodes' offers in a round.

    Attributes:
        offers: one for each of their assignments, in any order.
        payload: places in the pool of the completions with the payload: the labels, which no defense sees.
    """

    offers: list[Offer] = field(default_factory=list)
    payload: set[PoolPosition] = field(default_factory=set)


def distinct_indices(items: Sequence[Item]) -> dict[str, int]:
    """By item id, the index of each item among the distinct ones."""
    return {item_id: i for i, item_id in enumerate(dict.fromkeys(item.id for item in items))}
