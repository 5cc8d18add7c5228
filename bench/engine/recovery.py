"""What a returning node checks before it adopts a peer's weights: that they keep its own rewarded answers probable."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow

MOST_COMPLETIONS = 64
"""Of a node's rewarded completions, at most so many count."""


class RecoveryCheck:
    """Compares offered weights with those that a node had when it crashed, on its own last rewarded completions.

    This is Gauntlet's loss before and after a contribution (arXiv:2505.21684), on data that only the node has: what it
    sent in the last round in which one of its completions was rewarded. A node without any adopts no peer's weights.

    Args:
        context: the swarm's parts; its spec has `churn` with a tolerance.
    """

    def __init__(self, context: SwarmContext) -> None:
        self._context = context
        self._rewarded: dict[int, dict[tuple[str, tuple[int, ...]], CompletionRow]] = {}
        self._round: dict[int, int] = {}

    def remember(self, rows: Iterable[CompletionRow]) -> None:
        """Note the pools of a finished round, of which each node keeps its own part."""
        population = self._context.population
        for row in rows:
            own = population.cohorts[row.cohort].kind == population.classes[row.node] if row.node >= 0 else False
            if row.phase != "train" or not own or row.reward <= 0 or row.refused or not row.ids:
                continue
            if self._round.get(row.node) != row.round:
                self._round[row.node], self._rewarded[row.node] = row.round, {}
            self._rewarded[row.node].setdefault((row.item_id, row.ids), row)

    def passes(self, node: int, own: Policy, offered: Policy) -> bool:
        """Whether a node may adopt offered weights.

        Args:
            node: the node.
            own: its model as it was when it crashed.
            offered: a peer's.
        """
        churn = self._context.spec.churn
        assert churn is not None and churn.tolerance is not None, "only then is there a check"
        before, after = self.loss(node, own), self.loss(node, offered)
        return before is not None and after is not None and after <= before * (1 + churn.tolerance)

    @torch.no_grad()
    def loss(self, node: int, policy: Policy) -> float | None:
        """The mean negative log-probability, per token, of a node's rewarded completions; None if it has none."""
        rows = list(self._rewarded.get(node, {}).values())[:MOST_COMPLETIONS]
        if not rows:
            return None
        items = {item.id: item for item in items_of(self._context.task, "train")}
        asked = list(dict.fromkeys(row.item_id for row in rows))
        prompts = [policy.prompt_ids(self._context.task.messages(items[item_id])) for item_id in asked]
        answers: list[CompletionKey] = [
            (asked.index(row.item_id), (*row.ids, policy.eos) if row.ended else row.ids) for row in rows
        ]
        total, tokens = 0.0, 0
        for chunk in ForwardCache(policy, prompts).chunks(list(dict.fromkeys(answers))):
            logprobs = chunk.logprobs(self._context.spec.sampling.temperature)
            total -= float(logprobs.double().sum())
            tokens += len(logprobs)
        return total / tokens
