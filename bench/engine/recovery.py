"""What a returning node checks before it adopts a peer's weights: that they keep its own right answers probable."""

from __future__ import annotations

import torch

from thiefbench.engine.context import SwarmContext
from thiefbench.engine.keys import generator, key
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy

QUESTIONS = 64
"""A returning node asks its own model so many questions."""


class RecoveryCheck:
    """Compares offered weights with those that a node had when it crashed, on answers that nobody else has seen.

    The node asks the model that it crashed with some training questions, keeps the right answers, and compares their
    mean negative log-probability per token: Gauntlet's loss before and after a contribution (arXiv:2505.21684). What it
    sent in earlier rounds would not do, because everybody has that, and a peer could teach its model to keep just these
    completions probable. A node whose model has no right answer adopts no peer's weights.

    A model that says something else in a share p of its answers loses at least -ln(1 - p) nats per answer, if it is
    otherwise as it was. So a tolerance t, at a loss of L per token and n tokens per answer, lets p = 1 - exp(-t L n)
    pass at most.

    Args:
        context: the swarm's parts; its spec has `churn` with a tolerance.
    """

    def __init__(self, context: SwarmContext) -> None:
        self._context = context
        self._last: tuple[tuple[int, int], tuple[list[list[int]], list[CompletionKey]]] | None = None

    def passes(self, number: int, node: int, own: Policy, offered: Policy) -> bool:
        """Whether a node may adopt offered weights.

        Args:
            number: the round in which it is back.
            node: the node.
            own: its model as it was when it crashed.
            offered: a peer's.
        """
        churn = self._context.spec.churn
        assert churn is not None and churn.tolerance is not None, "only then is there a check"
        prompts, answers = self._asked(number, node, own)
        if not answers:
            return False
        before, after = (self._loss(policy, prompts, answers) for policy in (own, offered))
        return after <= before * (1 + churn.tolerance)

    def loss(self, number: int, node: int, own: Policy, policy: Policy) -> float | None:
        """The mean negative log-probability, per token, of the own model's right answers; None if it has none."""
        prompts, answers = self._asked(number, node, own)
        return self._loss(policy, prompts, answers) if answers else None

    def _asked(self, number: int, node: int, own: Policy) -> tuple[list[list[int]], list[CompletionKey]]:
        """As `_ask`, once for all peers of a node that is back."""
        if self._last is None or self._last[0] != (number, node):
            self._last = ((number, node), self._ask(number, node, own))
        return self._last[1]

    def _ask(self, number: int, node: int, own: Policy) -> tuple[list[list[int]], list[CompletionKey]]:
        """Prompts, and the right ones among the own model's answers to them."""
        context = self._context
        known = context.items_for(node)
        items = generator(context.seed, "check", number, node).sample(known, min(QUESTIONS, len(known)))
        prompts = [own.prompt_ids(context.task.messages(item)) for item in items]
        keys = [key(context.seed, "check", number, node, item.id) for item in items]
        drawn = sample(own, prompts, range(len(items)), keys, context.spec.sampler)
        right = [context.task.reward(item, [done.text])[0] > 0 for item, done in zip(items, drawn, strict=True)]
        answers = [
            (place, (*done.ids, own.eos) if done.ended else done.ids)
            for place, (done, kept) in enumerate(zip(drawn, right, strict=True))
            if kept and done.ids
        ]
        return prompts, answers

    @torch.no_grad()
    def _loss(self, policy: Policy, prompts: list[list[int]], answers: list[CompletionKey]) -> float:
        total, tokens = 0.0, 0
        for chunk in ForwardCache(policy, prompts).chunks(answers):
            logprobs = chunk.logprobs(self._context.spec.sampling.temperature)
            total -= float(logprobs.double().sum())
            tokens += len(logprobs)
        return total / tokens
