"""What upper floors hand down: the cohort's policy as a defender may use it, and as an attacker may sample it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from thiefbench.defenses.base import Offered
from thiefbench.engine.decoding import sample, support
from thiefbench.engine.noise import key
from thiefbench.engine.policy import Policy, Scored
from thiefbench.tasks.base import Completion, Item, Message, Sampling, Task


class DefenderPolicy:
    """The defender's model (`thiefbench.defenses.base.PolicyView`).

    Args:
        policy: the cohort's current policy.
        sampling: the swarm's sampling settings.
        prompts: prompt token ids by item id.
        noise: parts of the key that `generate` draws with.
    """

    def __init__(
        self, policy: Policy, sampling: Sampling, prompts: dict[str, list[int]], noise: tuple[int | str, ...]
    ) -> None:
        self._policy, self._sampling, self._prompts, self._noise = policy, sampling, prompts, noise
        self._calls = 0

    def token_logprobs(self, completions: Sequence[Offered]) -> list[NDArray[np.float32]]:
        """Natural-log probability of every token."""

        def measure(scored: Scored) -> torch.Tensor:
            logprobs = (scored.logits / self._sampling.temperature).log_softmax(-1)
            return logprobs.gather(1, scored.targets[:, None])[:, 0]

        return self._per_token(completions, measure, np.float32)

    def ranks(self, completions: Sequence[Offered]) -> list[NDArray[np.int64]]:
        """How many tokens have a strictly higher logit."""
        return self._per_token(completions, lambda scored: _rank(scored, 0.0), np.int64)

    def in_support(self, completions: Sequence[Offered], tolerance: float | None = None) -> list[NDArray[np.bool_]]:
        """Whether the sampler's settings could have let each token through."""
        slack = self._policy.logit_noise if tolerance is None else tolerance

        def measure(scored: Scored) -> torch.Tensor:
            inside = torch.ones_like(scored.targets, dtype=torch.bool)
            if self._sampling.top_k:
                inside &= _rank(scored, slack) < self._sampling.top_k
            if self._sampling.top_p < 1:
                # Logits that move by at most `slack` move a cumulative probability by at most half of it.
                lenient = replace(self._sampling, top_p=min(1.0, self._sampling.top_p + slack / 2))
                scores, _ = support(scored.logits, lenient)
                lowest = scores.masked_fill(scores.isinf(), torch.inf).amin(1)
                chosen = scored.logits.gather(1, scored.targets[:, None])[:, 0]
                inside &= (chosen + slack) / self._sampling.temperature >= lowest
            return inside

        return self._per_token(completions, measure, np.bool_)

    def hidden(self, completions: Sequence[Offered]) -> list[NDArray[np.float32]]:
        """The states from which each token is predicted."""
        return self._per_token(completions, lambda scored: scored.hidden.float(), np.float32)

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        """One sampled completion text per prompt."""
        self._calls += 1
        ids = [self._policy.prompt_ids(prompt) for prompt in prompts]
        keys = [key(*self._noise, "defense", self._calls, i) for i in range(len(ids))]
        settings = Sampling(
            self._sampling.temperature, self._sampling.top_k, self._sampling.top_p, max_new_tokens=max_new_tokens
        )
        return [made.text for made in sample(self._policy, ids, range(len(ids)), keys, settings)]

    @torch.inference_mode()
    def _per_token(
        self, completions: Sequence[Offered], measure: Callable[[Scored], torch.Tensor], kind: type
    ) -> list[NDArray]:  # type: ignore[type-arg]
        item_ids = sorted({offered.item_id for offered in completions})
        place = {item_id: i for i, item_id in enumerate(item_ids)}
        closing = (self._policy.eos,)
        targets = [offered.ids + (closing if offered.ended else ()) for offered in completions]
        made: list[NDArray] = [np.zeros(0, kind)] * len(completions)  # type: ignore[type-arg]
        if not completions:
            return made
        prefix = self._policy.prefill([self._prompts[item_id] for item_id in item_ids])
        for scored in self._policy.score(prefix, [place[offered.item_id] for offered in completions], targets):
            parts = torch.split(measure(scored).cpu(), scored.counts)
            for row, part in zip(scored.rows, parts, strict=True):
                made[row] = part.numpy().astype(kind)
        return made


class AttackerPolicy:
    """The attacker's own copy of the current policy (`thiefbench.attacks.base.Sampler`)."""

    def __init__(self, policy: Policy, task: Task, sampling: Sampling, noise: tuple[int | str, ...]) -> None:
        self._policy, self._task, self._sampling, self._noise = policy, task, sampling, noise
        self._calls = 0

    def sample(self, items: Sequence[Item], count: int) -> list[list[Completion]]:
        """Draw `count` completions for each item."""
        self._calls += 1
        prompts = [self._policy.prompt_ids(self._task.messages(item)) for item in items]
        rows = [i for i in range(len(items)) for _ in range(count)]
        keys = [key(*self._noise, "attacker", self._calls, i, c) for i in range(len(items)) for c in range(count)]
        drawn = sample(self._policy, prompts, rows, keys, self._sampling)
        return [drawn[i * count : (i + 1) * count] for i in range(len(items))]


def _rank(scored: Scored, slack: float) -> torch.Tensor:
    chosen = scored.logits.gather(1, scored.targets[:, None])
    return (scored.logits > chosen + slack).sum(1)
