"""All nodes of a swarm in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from thiefbench.engine.answer_keys import with_answer_keys, with_checked_keys
from thiefbench.engine.colluders import Colluders, choose_items
from thiefbench.engine.context import SwarmContext
from thiefbench.engine.exchange import arrived, on_the_wire, proven, with_logprobs
from thiefbench.engine.keys import key
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan, distinct_indices
from thiefbench.engine.spec import Batches
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer, Received
from thiefbench.tasks.answer_keys import keyed_rewards
from thiefbench.tasks.base import Completion, Item


class LocalBackend:
    """Simulates all nodes (a `RoundBackend`).

    Args:
        batches: what is sampled together: "cohort" (all completions from the same weights) or "node" (one node's, as
            under torchrun). Tokens are the same except at near-ties.
    """

    cohort_class = Cohort
    context: SwarmContext

    def __init__(self, batches: Batches = "cohort") -> None:
        self.batches = batches

    def attach(self, context: SwarmContext) -> None:
        """Take the swarm's parts."""
        self.context = context
        self.colluders = Colluders(context, self)

    def items(self, number: int, assignments: Sequence[Assignment]) -> list[Item]:
        """Items are drawn, except for those that malicious nodes pick."""
        return self.context.assign_items(number, assignments, partial(choose_items, self.context, number))

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """Every node samples with the swarm's settings from its weights."""
        context, spec = self.context, self.context.spec
        offers: dict[Assignment, Offer] = {}
        prompts = plan.prompt_indices()
        for cohort, version, batch in self._batched(plan.number, assignments):
            seeds = [context.slot_seed(plan, assignment) for assignment in batch]
            cache, current = plan.caches[cohort], version == plan.number - 1
            completions = sample(
                cohort.policy if current else cohort.as_of(version),
                cache.prompts,
                [prompts[plan.item(assignment).id] for assignment in batch],
                seeds,
                spec.sampler,
                logprobs=spec.logprobs == "reported",
                prefix=cache.prefix() if current else None,
            )
            for assignment, completion, seed in zip(batch, completions, seeds, strict=True):
                ids = on_the_wire(completion, cohort.policy)
                offer = Offer(assignment.node, assignment.group, assignment.index, ids, seed, None, completion.logprobs)
                offers[assignment] = replace(offer, version=version) if spec.delay else offer
        return [offers[assignment] for assignment in assignments]

    def malicious_work(
        self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]
    ) -> MaliciousWork:
        """The attack submits."""
        return self.colluders.work(plan, assignments, honest)

    def with_proofs(self, plan: RoundPlan, offers: list[Offer]) -> list[Offer]:
        """The offers with their senders' proofs, if the defense requires them."""
        population = self.context.population
        if "proofs" not in population.cohorts[0].defense.requires:
            return offers
        return proven(population, plan.items, offers, self.context.prompt)

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """The offers, with their proofs and log-probs, after the receivers' checks."""
        population = self.context.population
        sent = self.with_proofs(plan, plan.in_order(offers))
        if self.context.spec.logprobs != "none":
            sent = with_logprobs(population, plan.number, plan.items, sent, self.context.prompt, plan.recomputed)
        received = arrived(population, sent, known)
        if self.context.spec.truth == "public":
            return received
        return with_checked_keys(self.context.task, plan.items, with_answer_keys(plan.items, sent), received)

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards."""
        texts = [completion.text for completion in completions]
        if self.context.spec.truth == "sender":
            return keyed_rewards(self.context.task, items, texts)
        return self.context.task.rewards(items, texts)

    def answers(self, phase: str, items: Sequence[Item], first: int, cohorts: Sequence[Cohort]) -> list[Completion]:
        """Each answer is sampled with a key that depends only on the seed, the item and its number."""
        answers: dict[int, Completion] = {}
        for cohort in dict.fromkeys(cohorts):
            numbers = [i for i, answering in enumerate(cohorts) if answering is cohort]
            asked = [items[i] for i in numbers]
            prompts = distinct_indices(asked)
            completions = sample(
                cohort.policy,
                self.context.forward_cache(cohort, asked).prompts,
                [prompts[item.id] for item in asked],
                [key(self.context.seed, "eval", 0, -1, 0, items[i].id, first + i) for i in numbers],
                self.context.spec.sampler,
            )
            answers |= dict(zip(numbers, completions, strict=True))
        return [answers[i] for i in range(len(items))]

    def _batched(
        self, number: int, assignments: Sequence[Assignment]
    ) -> Iterator[tuple[Cohort, int, list[Assignment]]]:
        """Assignments that are sampled together, with the cohort and the version of its weights that they come from."""
        for (cohort, version), same_weights in self.context.population.by_weights(number, assignments).items():
            if self.batches == "cohort":
                yield cohort, version, same_weights
                continue
            for node in sorted({assignment.node for assignment in same_weights}):
                yield cohort, version, [assignment for assignment in same_weights if assignment.node == node]
