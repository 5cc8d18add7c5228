"""Honest nodes that hold equal weights and reach equal verdicts: one model, one update, one defense stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thiefbench.defenses.base import Defense
from thiefbench.engine.grpo import LEARNERS, Batch, group_advantages
from thiefbench.engine.policy import Policy
from thiefbench.engine.spec import SwarmSpec


@dataclass(frozen=True)
class Lesson:
    """One row of a pool as it enters the update.

    Attributes:
        prompt: which of the round's prompts it answers.
        targets: its token ids, EOS included where it ended.
        reward: after the verdict.
        kept: False where the row leaves its group.
        token_weights: factors on its tokens' losses, or None.
    """

    prompt: int
    targets: tuple[int, ...]
    reward: float
    kept: bool = True
    token_weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Step:
    """What an update did.

    Attributes:
        advantages: per lesson, in order.
        grad_norm: before clipping; 0 where no group had two different rewards and nothing was updated.
    """

    advantages: list[float]
    grad_norm: float


class Cohort:
    """A policy with its optimizer and its defense.

    Args:
        policy: the model, owned and changed by the cohort.
        spec: the swarm it lives in.
        defense: what inspects its pools.
    """

    def __init__(self, policy: Policy, spec: SwarmSpec, defense: Defense) -> None:
        self.policy, self.spec, self.defense = policy, spec, defense
        learner = spec.learner
        self.parameters = list(policy.weights().values())
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=learner.learning_rate, betas=(learner.beta1, learner.beta2), fused=True
        )

    def update(self, prompts: Sequence[Sequence[int]], lessons: Sequence[Lesson]) -> Step:
        """One optimizer step on a pool.

        Args:
            prompts: B prompts as token ids.
            lessons: B * G rows, ordered by group; those of one group share a prompt.
        """
        advantages = self.advantages(lessons)
        if not any(advantages):
            return Step(advantages, 0.0)
        self.optimizer.zero_grad()
        self.accumulate(prompts, lessons, advantages)
        learner = self.spec.learner
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, learner.max_grad_norm)
        self.optimizer.step()
        return Step(advantages, float(norm))

    def advantages(self, lessons: Sequence[Lesson]) -> list[float]:
        """Group advantages of all rows, in order."""
        shape = (-1, self.spec.group)
        rewards = torch.tensor([lesson.reward for lesson in lessons]).view(shape)
        kept = torch.tensor([lesson.kept for lesson in lessons]).view(shape)
        flat: list[float] = group_advantages(rewards, kept, self.spec.learner.scale_rewards).flatten().tolist()
        return flat

    def accumulate(
        self, prompts: Sequence[Sequence[int]], lessons: Sequence[Lesson], advantages: Sequence[float]
    ) -> float:
        """Add the pool's gradient to the parameters; returns the loss.

        Rows with advantage 0 are skipped, as their gradient is exactly zero. Every prompt with a row left is run
        once, and the rows in chunks of similar length.
        """
        taught = [i for i, advantage in enumerate(advantages) if advantage != 0 and lessons[i].targets]
        used = sorted({lessons[i].prompt for i in taught})
        place = {prompt: i for i, prompt in enumerate(used)}
        pool_rows = sum(lesson.kept for lesson in lessons)
        learner = LEARNERS[self.spec.learner.loss]
        prefix = self.policy.prefill([prompts[prompt] for prompt in used])
        leaves = prefix.leaves()
        total = 0.0
        for scored in self.policy.score(
            leaves, [place[lessons[i].prompt] for i in taught], [lessons[i].targets for i in taught]
        ):
            rows = [taught[row] for row in scored.rows]
            logits = scored.logits / self.spec.sampling.temperature
            flat = logits.log_softmax(-1).gather(1, scored.targets[:, None])[:, 0]
            shape = (len(rows), max(scored.counts))
            real = torch.arange(shape[1])[None, :] < torch.tensor(scored.counts)[:, None]
            real = real.to(flat.device)
            weights = torch.ones(shape, device=flat.device)
            for line, row in enumerate(rows):
                given = lessons[row].token_weights
                if given is not None:
                    weights[line, : len(given)] = torch.tensor(given, device=flat.device)
            batch = Batch(
                logprobs=torch.zeros(shape, device=flat.device).masked_scatter(real, flat),
                old_logprobs=None,
                mask=real.to(flat.dtype),
                token_weights=weights,
                advantages=torch.tensor([advantages[row] for row in rows], device=flat.device),
                pool_rows=pool_rows,
                max_length=self.spec.sampling.max_new_tokens,
            )
            loss = learner(batch, self.spec.learner.epsilon)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        prefix.backward(leaves)
        return total

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer moments as a flat dictionary of tensors, for a checkpoint."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.policy.weights().items():
            tensors[f"weight/{name}"] = parameter.detach()
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}/{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take back what `state` gave."""
        with torch.no_grad():
            for name, parameter in self.policy.weights().items():
                parameter.copy_(tensors[f"weight/{name}"])
                moments: dict[str, Any] = {
                    kind: tensors[f"{kind}/{name}"]
                    .clone()
                    .to("cpu" if kind == "step" and parameter.device.type == "cpu" else parameter.device)
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                    if f"{kind}/{name}" in tensors
                }
                if moments:
                    self.optimizer.state[parameter] = moments
