"""What a node can measure of its own model before it adopts an aggregate: held-out reward, and loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from thiefbench.averaging.spec import AveragingSpec
from thiefbench.engine.backends.base import RoundBackend
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.keys import generator
from thiefbench.engine.learning.cohort import Cohort
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.round_record import CompletionRow
from thiefbench.tasks.base import Item

MOST_COMPLETIONS = 64
"""Of a node's rewarded completions, at most so many count for the loss."""


class HeldOutProbe:
    """Measures a node's model as it is at the time of each call.

    Args:
        context, backend: the swarm's.
        cohort: the node's model.
        node: the node.
        exchange: the exchange's number; it draws the questions.
        rows: of the last round's pools.
        averaging: says how many questions.
    """

    def __init__(
        self,
        context: SwarmContext,
        backend: RoundBackend,
        cohort: Cohort,
        node: int,
        exchange: int,
        rows: Sequence[CompletionRow],
        averaging: AveragingSpec,
    ) -> None:
        self._context, self._backend, self._cohort, self._node = context, backend, cohort, node
        self._exchange, self._rows, self._count = exchange, rows, averaging.held_out

    def reward(self) -> float:
        """The mean task reward of one answer to each question; the questions and the noise are always the same."""
        items = self._questions
        answers = self._backend.answers("held out", items, self._exchange * self._count, [self._cohort] * len(items))
        return sum(self._backend.rewards(items, answers)) / len(items)

    @torch.no_grad()
    def loss(self) -> float:
        """The mean negative log-probability, per token, of the node's rewarded completions; 0 if it has none."""
        prompts, answers = self._rewarded
        cache, total, tokens = ForwardCache(self._cohort.policy, prompts), 0.0, 0
        for chunk in cache.chunks(answers):
            logprobs = chunk.logprobs(self._context.spec.sampling.temperature)
            total -= float(logprobs.double().sum())
            tokens += len(logprobs)
        return total / tokens if tokens else 0.0

    @cached_property
    def _questions(self) -> list[Item]:
        """Training questions that the node did not answer in the last round."""
        answered = {row.item_id for row in self._rows if row.node == self._node}
        known = [item for item in self._context.items_for(self._node) if item.id not in answered]
        rng = generator(self._context.seed, "held out", self._exchange, self._node)
        return rng.sample(known, min(self._count, len(known)))

    @cached_property
    def _rewarded(self) -> tuple[list[list[int]], list[CompletionKey]]:
        """The prompts, and the rewarded completions in the order of the pool."""
        items = {item.id: item for item in items_of(self._context.task, "train")}
        rows = [row for row in self._rows if row.node == self._node and row.reward > 0 and not row.refused]
        rows = rows[:MOST_COMPLETIONS]
        asked = list(dict.fromkeys(row.item_id for row in rows))
        eos = self._cohort.policy.eos
        answers = [(asked.index(row.item_id), (*row.ids, eos) if row.ended else row.ids) for row in rows]
        return [self._context.prompt(items[item_id], self._cohort) for item_id in asked], answers
