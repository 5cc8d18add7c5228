"""What may differ between two ways to play a round: who samples, how completions reach the nodes, who rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from thiefbench.engine.context import SwarmContext
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.topology import Duty
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.base import Completion, Item


class RoundBackend(Protocol):
    """Who does the work of a round; `Swarm.round` calls these methods in this order, and all else is the same for all.

    `LocalBackend` simulates all nodes in one process, `RankBackend` plays one node in a process of its own,
    `RecordedBackend` takes completions from a record, and `TrainerBackend` from a trainer.
    """

    @property
    def cohort_class(self) -> type[Cohort]:
        """What the population's cohorts are made of: `ObserverCohort` where models are not trained by the swarm."""

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts; called once, before anything else.

        Raises:
            SpecError: the backend cannot play such a swarm.
        """

    def items(self, number: int, duties: Sequence[Duty]) -> list[Item]:
        """The item of every group of round `number`."""

    def honest_work(self, plan: RoundPlan, duties: Sequence[Duty]) -> list[Offer]:
        """What the honest nodes send: an offer for each of the given duties, in order."""

    def malicious_work(self, plan: RoundPlan, duties: Sequence[Duty], honest: Sequence[Offer]) -> MaliciousWork:
        """What the malicious nodes send for their duties; they may have seen the honest offers."""

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """What arrives of a round's offers, in the order of the plan's duties and in the senders' tokens.

        Args:
            plan: the round's.
            offers: one for every duty, in any order.
            known: what is known to arrive of some of them, by the offer's `id`.
        """

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards of completions, each of the item beside it."""

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """The answers to the items of an evaluation, each by the model of the cohort beside it.

        Args:
            phase: "eval" or "probe".
            items: that are asked.
            first: the number of the first one among all of this evaluation.
            cohorts: one for each item.
        """
