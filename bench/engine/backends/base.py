"""The interface of backends: who samples, how completions reach the nodes, who computes rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from thiefbench.engine.context import SwarmContext
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.base import Completion, Item


class RoundBackend(Protocol):
    """Does the work of a round. `Swarm.round` calls these methods in this order; the rest is the same for all backends.

    `LocalBackend` simulates all nodes in one process, `RankBackend` plays one node in a process of its own,
    `RecordedBackend` takes completions from a record, and `TrainerBackend` from a trainer.
    """

    @property
    def cohort_class(self) -> type[Cohort]:
        """The class of the population's cohorts: `ObserverCohort` if the swarm does not train its models."""

    def attach(self, context: SwarmContext) -> None:
        """Receive the swarm's parts; called once, before all other methods.

        Raises:
            SpecError: the backend cannot play such a swarm.
        """

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """The item of every group of round `number`."""

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The honest nodes' offers, one for each of the given assignments, in order."""

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The malicious nodes' offers for their assignments; they may have seen the honest offers."""

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """The received offers of a round, in the order of the plan's assignments and in the senders' tokens.

        Args:
            plan: the round's.
            offers: one for every assignment, in any order.
            known: results for offers that were already received, by the offer's `id`.
        """

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards of completions, each for the item at the same position."""

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """The answers to the items of an evaluation, each by the model of the cohort at the same position.

        Args:
            phase: "eval" or "probe".
            items: the items to answer.
            first: the number of the first one within this evaluation.
            cohorts: one for each item.
        """
