"""The malicious nodes in a round: they pick items, submit the attack's completions, and query the defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from thiefbench.attacks.base import Claimed, Decoy, DefenseAnswer, Seeded, Submission, Withheld
from thiefbench.defenses.base import Defense
from thiefbench.engine.answer_keys import claimed_key
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.exchange import arrived, read_by
from thiefbench.engine.keys import generator
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.pool import Pool, reward_pool
from thiefbench.engine.reward_judge import CachedRewardJudge
from thiefbench.engine.round_plan import MaliciousWork, RoundPlan
from thiefbench.engine.topology import Assignment
from thiefbench.engine.transport import Offer, Received, reencode
from thiefbench.engine.views.attacker import AttackerPolicy, DefenseQueries, SlotKey, answered
from thiefbench.engine.views.defender import CachedJudge
from thiefbench.tasks.base import Completion, Item

# Number of items with which an attack can teach the model for a recovering node.
TEACHING_ITEMS = 64


class HonestNodes(Protocol):
    """The honest nodes, as malicious ones use them: some of the methods of `RoundBackend`."""

    def honest_work(self, plan: RoundPlan, assignments: Sequence[Assignment]) -> list[Offer]:
        """The offers that honest nodes would send in these slots."""

    def receive(
        self, plan: RoundPlan, offers: Sequence[Offer], known: Mapping[int, Received] | None = None
    ) -> list[Received]:
        """The offers of a round as they would be received."""

    def rewards(self, items: Sequence[Item], completions: Sequence[Completion]) -> list[float]:
        """The task's rewards."""


class Colluders:
    """The malicious nodes, which work together.

    Args:
        context: the swarm's parts.
        honest_nodes: samples for slots that the attack leaves to an honest sample, and plays the round in which the
            attack tries submissions.
    """

    def __init__(self, context: SwarmContext, honest_nodes: HonestNodes) -> None:
        self._context, self._nodes = context, honest_nodes

    def work(self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]) -> MaliciousWork:
        """The submissions of the attack, or in a placebo their clean counterparts, for malicious nodes' assignments.

        Args:
            plan: the round's.
            assignments: the malicious nodes' assignments.
            honest: the honest nodes' offers.

        Raises:
            TypeError: the attack did not return a list, or one with something other than submissions.
            ValueError: it returned the wrong number of submissions.
        """
        if not assignments:
            return MaliciousWork()
        context, attack = self._context, self._context.attack
        slots = [context.views.slot(plan.number, plan.item(assignment), assignment) for assignment in assignments]
        queries = self._queries(plan, assignments, honest) if attack.threat.queries else None
        # Colluders of several classes work with the first one's model.
        view = context.views.round(plan.number, slots, context.population.of(context.honest), queries)
        submissions: object = attack.poison(view) if context.role == "attack" else attack.placebo(view)
        if not isinstance(submissions, Sequence) or isinstance(submissions, str | bytes):
            given = type(submissions).__name__
            raise TypeError(f"the attack {attack.name} gave a {given} instead of a list with one submission per slot")
        if len(submissions) != len(assignments):
            raise ValueError(
                f"the attack {attack.name} gave {len(submissions)} completions for {len(assignments)} slots"
            )
        work, left = MaliciousWork(), []
        for assignment, submission in zip(assignments, submissions, strict=True):
            if submission is None:
                left.append(assignment)
                continue
            work.offers.append(self._offer(plan, assignment, submission))
            if context.role == "attack" and not isinstance(submission, (Decoy, Withheld)):
                work.payload.add(assignment.at)
        work.offers.extend(self._nodes.honest_work(plan, left))
        return work

    def _queries(self, plan: RoundPlan, assignments: Sequence[Assignment], honest: Sequence[Offer]) -> DefenseQueries:
        """The defense of the honest nodes of the attacker's class, for trying submissions in the round's own pool."""
        context, population = self._context, self._context.population
        cohort = population.of(context.honest)
        others = {offer.at: offer for offer in (*honest, *self._nodes.honest_work(plan, assignments))}
        assignment_of = {(each.node, each.group, each.sample): each for each in assignments}
        # The pool hardly changes between trials, so received offers, forward passes, replies and rewards are kept.
        known = dict(zip(map(id, others.values()), arrived(population, list(others.values())), strict=True))
        cache = context.forward_cache(cohort, plan.items)
        judge = context.judge and CachedJudge(context.judge)
        reward_judge = context.reward_judge and CachedRewardJudge(context.reward_judge)
        rewards: dict[tuple[str, str], float] = {}

        def trial(defense: Defense, submissions: Mapping[SlotKey, Submission]) -> dict[SlotKey, DefenseAnswer]:
            tried = [self._offer(plan, assignment_of[slot], submission) for slot, submission in submissions.items()]
            offers = others | {offer.at: offer for offer in tried}
            received = self._nodes.receive(plan, list(offers.values()), known)
            rewarded = reward_pool(context, plan, received, self._nodes.rewards, rewards, reward_judge)
            as_read = read_by(cohort, population, plan.assignments, rewarded.received)
            pool = Pool.collected(context, plan, plan.assignments, as_read, rewarded.rewards, cache, rewarded.by_rule)
            payload = {offer.at for offer in tried}
            verdicts, _ = pool.inspected(defense, payload, context.spec.sampler, cohort.history, context.seed, judge)
            by_position = {
                assignment.at: (verdict, each.completion)
                for assignment, verdict, each in zip(plan.assignments, verdicts, as_read, strict=True)
            }
            return {slot: answered(*by_position[assignment_of[slot].at], cohort.policy) for slot in submissions}

        return DefenseQueries(cohort.defense, trial, context.attack.threat.queries)

    def _offer(self, plan: RoundPlan, assignment: Assignment, submission: Submission) -> Offer:
        """A submission on the wire; text is encoded, cut to the limit and ended with EOS."""
        context = self._context
        if isinstance(submission, Withheld):
            return Offer(assignment.node, assignment.group, assignment.index, (), missing="withheld")
        if isinstance(submission, Decoy):
            submission = submission.content
        seed, policy = context.slot_seed(plan, assignment), context.population.of(assignment.node).policy
        answer_key = claimed_key(submission) if context.spec.truth == "sender" else None
        logprob, version = None, None
        if isinstance(submission, Claimed):
            logprob, version, submission = submission.logprob, submission.version, submission.content
        given: object = submission
        if isinstance(given, bytes) or not isinstance(given, Seeded | Sequence):
            raise TypeError(
                f"the attack {context.attack.name} gave a {type(given).__name__} as a submission; it is text or token "
                "ids, Seeded, Claimed, Decoy, Withheld or None"
            )
        if isinstance(submission, Seeded):
            ids, seed = tuple(submission.ids), submission.seed
        elif isinstance(submission, str):
            ids = (*policy.encode(submission), policy.eos)[: context.spec.sampling.max_new_tokens]
        else:
            ids = reencode(context.population.of(context.honest).policy, policy, tuple(submission))
        offer = Offer(assignment.node, assignment.group, assignment.index, ids, seed, answer_key=answer_key)
        if logprob is not None and context.spec.logprobs != "none":
            offer = replace(offer, logprobs=(logprob,) * len(ids))
        if context.spec.delay is None:
            return offer
        return replace(offer, version=plan.number - 1 if version is None else version)


def choose_items(context: SwarmContext, number: int, node: int, count: int) -> list[Item]:
    """The items that a malicious node picks for itself in round `number`."""
    items = items_of(context.task, "train")
    by_id = {item.id: item for item in items}
    granted = [context.views.item(item) for item in items]
    rng = generator(context.seed, "choice", number, node)
    view = context.views.choice(number, node, count, context.population.of(node), rng)
    if view is None:
        chosen = context.attack.choose_items(granted, count, rng)
    else:
        chosen = context.attack.choose_items_from(granted, view)
    return [by_id[item.id] for item in chosen]


def handed_over(context: SwarmContext, number: int, node: int) -> Policy | None:
    """The model that a malicious node gives to a node that recovers from it; None for its class's honest model."""
    if context.role != "attack":
        return None
    known = context.items_for(node)
    items = generator(context.seed, number, "handed over", node).sample(known, min(TEACHING_ITEMS, len(known)))
    model = context.attack.hand_over(context.views.recovery(number, node, items, context.population.of(node)))
    return model.policy if isinstance(model, AttackerPolicy) else None
