"""A round's pool as every honest node receives it, and a defense's view of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from thiefbench.defenses.answer_keys import KeyedView, PublicSet
from thiefbench.defenses.base import (
    DefenderView,
    Defense,
    ItemFacts,
    LabelledView,
    PastRound,
    PoolCompletion,
    Verdict,
)
from thiefbench.defenses.skipping import ACTIONS, SKIP
from thiefbench.engine.answer_keys import PublishedItems, scored_item, stated_facts, with_key
from thiefbench.engine.context import SwarmContext
from thiefbench.engine.exchange import on_the_wire
from thiefbench.engine.keys import generator, is_secret, key
from thiefbench.engine.learning.cohort import TrainingRow
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.reward_judge import RewardJudge
from thiefbench.engine.rewarding import PoolRewards, judged, shows_rule, with_rule
from thiefbench.engine.round_plan import RoundPlan
from thiefbench.engine.sampler import without_setting
from thiefbench.engine.topology import Assignment, PoolPosition
from thiefbench.engine.transport import Received
from thiefbench.engine.views.defender import DefenderJudge, DefenderPolicy, Judge
from thiefbench.tasks.base import Completion, Item, Sampling

LOGPROB_DITHER = 1e-4
"""Most by which a log-prob that a defense is shown at a secret seed is lower than the one that came, in nats."""


@dataclass(frozen=True)
class Pool:
    """All completions of a round, ordered by group and index.

    Attributes:
        round: the round's number.
        items: of every group.
        offered: the completions as defenses see them. Refused ones leave their groups whatever the verdict.
        answers: the same, as the policy reads them.
        cache: the policy's forward passes over them, shared by the defense and the update.
        prompts: the index of each item's prompt in the cache, by item id.
        public: the task's published items, if completions are scored by what arrives with them.
        by_rule: the task's own rewards of the completions, if a judge's count.
    """

    round: int
    items: Sequence[Item]
    offered: Sequence[PoolCompletion]
    answers: Sequence[CompletionKey]
    cache: ForwardCache
    prompts: dict[str, int]
    public: PublicSet | None = None
    by_rule: Sequence[float] | None = None

    @classmethod
    def collected(
        cls,
        context: SwarmContext,
        plan: RoundPlan,
        assignments: Sequence[Assignment],
        received: Sequence[Received],
        rewards: Sequence[float],
        cache: ForwardCache,
        by_rule: Sequence[float] | None = None,
    ) -> Self:
        """The completions of a round as an honest node receives them.

        Args:
            context: the swarm's parts.
            plan: the round's.
            assignments: the assignments whose completions the node receives.
            received: the received completion for each assignment, in the node's tokens.
            rewards: of each of them.
            cache: the forward cache of the node's model over the plan's prompts.
            by_rule: the task's rewards, where `rewards` are a judge's.
        """
        spec, prompts = context.spec, plan.prompt_indices()
        offered, answers = [], []
        for place, (assignment, arrival, reward) in enumerate(zip(assignments, received, rewards, strict=True)):
            item, completion = plan.item(assignment), arrival.completion
            offered.append(
                PoolCompletion(
                    item.id, assignment.group, assignment.index, context.sender(plan.number, assignment),
                    completion.ids, completion.text, completion.ended, 0.0 if arrival.refused else reward,
                    seed=arrival.seed if spec.seeds == "announced" else context.slot_seed(plan, assignment),
                    proof=arrival.proof, logprobs=completion.logprobs if spec.logprobs != "none" else None,
                    version=arrival.version, refused=bool(arrival.refused),
                )
            )  # fmt: skip
            if spec.truth == "sender":
                offered[-1] = with_key(offered[-1], arrival.answer_key)
            if by_rule is not None:
                offered[-1] = with_rule(offered[-1], by_rule[place] if shows_rule(spec, item.id) else None)
            answers.append((prompts[item.id], on_the_wire(completion, cache.policy)))
        public = PublishedItems(context.task, plan.items) if spec.truth == "sender" else None
        return cls(plan.number, plan.items, offered, answers, cache, prompts, public, by_rule)

    def with_gradient(self) -> list[CompletionKey]:
        """Answers of groups with different rewards, from which the update learns unless the defense prevents it."""
        rewards: dict[int, set[float]] = {}
        pairs = [pair for pair in zip(self.answers, self.offered, strict=True) if not pair[1].refused]
        for _, offered in pairs:
            rewards.setdefault(offered.group, set()).add(offered.reward)
        return [answer for answer, offered in pairs if len(rewards[offered.group]) > 1]

    def training_rows(self, verdicts: Sequence[Verdict]) -> list[TrainingRow]:
        """The rows as they enter the update; one verdict per row, in order."""
        return [
            TrainingRow(
                prompt=answer[0],
                targets=answer[1],
                reward=offered.reward if verdict.action in ("accept", SKIP) else 0.0,
                kept=verdict.action != "drop" and not offered.refused,
                learned=verdict.action != SKIP,
                token_weights=verdict.token_weights,
                group=offered.group,
                old_logprobs=offered.logprobs,
            )
            for answer, offered, verdict in zip(self.answers, self.offered, verdicts, strict=True)
        ]

    def inspected(
        self,
        defense: Defense,
        payload: set[PoolPosition],
        sampling: Sampling,
        history: Sequence[PastRound],
        seed: int,
        judge: Judge | None = None,
    ) -> tuple[list[Verdict], PastRound]:
        """A defense's verdicts in pool order, and the inspection as later rounds remember it.

        Args:
            defense: the defense, which sees the pool in a keyed shuffled order.
            payload: places of the completions with the payload, for defenses that see labels.
            sampling: the swarm's settings.
            history: of finished rounds.
            seed: the cell's.
            judge: whom the defense may ask.

        Raises:
            ValueError: the defense did not return one valid verdict per completion.
        """
        order = shuffled(seed, self.round, len(self.offered))
        offered = tuple(self.offered[i] for i in order)
        # Copies, since a frozen dataclass can be changed all the same, and rows are made from the pool's own.
        copies = tuple(replace(completion) for completion in offered)
        noise = key(seed, "defense", self.round)  # hashed, because the seed itself would reveal the payload
        shown = {
            "round": self.round,
            "completions": _with_dither(copies, generator(seed, "logprobs", self.round)) if is_secret(seed) else copies,
            "items": self._facts(),
            "sampling": without_setting(sampling),
            "history": tuple(history),
            "rng": generator(seed, "defense", self.round),
            "policy": DefenderPolicy(self.cache, sampling, self.prompts, (noise,)),
            "judge": None if judge is None else DefenderJudge(judge, key(seed, "judge", self.round)),
        }
        view = DefenderView(**shown)  # type: ignore[arg-type]
        if self.public is not None:
            view = KeyedView(**shown, public=self.public)  # type: ignore[arg-type]
        if defense.sees_labels:
            truth = tuple((completion.group, completion.index) in payload for completion in offered)
            view = LabelledView(**shown, payload=truth)  # type: ignore[arg-type]
        verdicts = _checked_verdicts(defense.inspect(view), offered, defense.name)
        by_index = dict(zip(order, verdicts, strict=True))
        past = tuple(replace(completion, seed=None, proof=None, logprobs=None) for completion in offered)
        return [by_index[i] for i in range(len(by_index))], PastRound(self.round, past, verdicts)

    def _facts(self) -> dict[str, ItemFacts]:
        """What every node knows of the round's items."""
        if self.public is not None:
            return stated_facts(self.items, self.offered)
        return {item.id: ItemFacts(item.question, item.answer) for item in self.items}


def reward_pool(
    context: SwarmContext,
    plan: RoundPlan,
    received: Sequence[Received],
    task_rewards: Callable[[Sequence[Item], Sequence[Completion]], list[float]],
    known: dict[tuple[str, str], float] | None = None,
    judge: RewardJudge | None = None,
) -> PoolRewards:
    """The rewards of a round's received completions: the task's, or a judge's where the swarm says so.

    Args:
        context: the swarm's parts.
        plan, received, task_rewards, known: see `rule_rewards`.
        judge: whom to ask instead of the swarm's judge of rewards, such as one that caches.

    Raises:
        JudgeError: the judge does not answer, or without decisions.
    """
    by_rule = rule_rewards(plan, received, task_rewards, known)
    return judged(context.spec, context.seed, judge or context.reward_judge, plan, received, by_rule)


def rule_rewards(
    plan: RoundPlan,
    received: Sequence[Received],
    task_rewards: Callable[[Sequence[Item], Sequence[Completion]], list[float]],
    known: dict[tuple[str, str], float] | None = None,
) -> list[float]:
    """The task's rewards of a round's received completions; 0 for refused ones.

    Args:
        plan: the round's.
        received: for all of its assignments, in order.
        task_rewards: computes them.
        known: known rewards, by item id and text; new ones are added.
    """
    rewards = {} if known is None else known
    counted = {
        i: (scored_item(plan.item(assignment), arrival.answer_key), arrival.completion)
        for i, (assignment, arrival) in enumerate(zip(plan.assignments, received, strict=True))
        if not arrival.refused
    }
    new = [(item, done) for item, done in counted.values() if (item.id, done.text) not in rewards]
    worked_out = task_rewards([item for item, _ in new], [done for _, done in new])
    rewards |= {(item.id, done.text): reward for (item, done), reward in zip(new, worked_out, strict=True)}
    by_index = {i: rewards[item.id, done.text] for i, (item, done) in counted.items()}
    return [by_index.get(i, 0.0) for i in range(len(received))]


def shuffled(seed: int, number: int, size: int) -> list[int]:
    """Pool indices in the order that the defense sees in a round."""
    return generator(seed, "shuffle", number).sample(range(size), size)


def _with_dither(offered: Sequence[PoolCompletion], rng: random.Random) -> tuple[PoolCompletion, ...]:
    """Completions with log-probs that are lower by up to `LOGPROB_DITHER` each.

    An honest node's log-probs come from decoding, those of a malicious node from a forward pass over its submission.
    The two differ in their last bits (1e-6), by which a defense could recognise the sender. Noise a hundred times as
    large hides that, and no rule on log-probs needs more digits. Under a public seed, a defense could compute the noise
    and take it off; so there is none, and a trial at a secret seed finds out a defense that relies on last bits.
    """
    return tuple(
        completion if completion.logprobs is None
        else replace(completion, logprobs=tuple(v - LOGPROB_DITHER * rng.random() for v in completion.logprobs))
        for completion in offered
    )  # fmt: skip


def _checked_verdicts(given: object, offered: Sequence[PoolCompletion], defense: str) -> tuple[Verdict, ...]:
    """What a defense's `inspect` returned, if it is one valid verdict for each of the offered completions.

    Raises:
        ValueError: it is not; the message says what to return.
    """
    expected = "inspect returns a list with one Verdict per completion, such as ACCEPT or Verdict('zero')"
    if not isinstance(given, Iterable):
        raise ValueError(f"the defense {defense} gave {given!r:.100}; {expected}")
    verdicts = tuple(given)
    if strange := [verdict for verdict in verdicts if not isinstance(verdict, Verdict)]:
        raise ValueError(f"the defense {defense} gave {strange[0]!r:.100}, which is not a Verdict; {expected}")
    if len(verdicts) != len(offered):
        raise ValueError(
            f"the defense {defense} gave {len(verdicts)} verdicts for {len(offered)} completions; inspect returns one "
            "per completion, in the view's order"
        )
    for verdict, completion in zip(verdicts, offered, strict=True):
        _check_verdict(verdict, completion, defense)
    return verdicts


def _check_verdict(verdict: Verdict, completion: PoolCompletion, defense: str) -> None:
    """Raise ValueError if a verdict is not valid for this completion."""
    if verdict.action not in ACTIONS:
        raise ValueError(f"the defense {defense} gave {verdict!r}; a verdict's action is accept, zero, drop or skip")
    weights = verdict.token_weights
    if weights is None:
        return
    if len(weights) != completion.length:
        raise ValueError(
            f"the defense {defense} gave {len(weights)} token weights for {completion.length} tokens (EOS included); "
            "it gives one number per token"
        )
    if wrong := [weight for weight in weights if not 0 <= weight <= 1]:  # NaN is neither
        raise ValueError(f"the defense {defense} gave the token weight {wrong[0]!r:.80}; weights lie in [0, 1]")
