"""Honest nodes that hold equal weights and reach equal verdicts: one model, one update, one defense stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        self.weights = policy.weights()
        # Steps of a small learning rate vanish in bfloat16, so such weights are copies of float32 masters.
        self.masters = {
            name: weight.detach().float() if weight.dtype.itemsize < 4 else weight
            for name, weight in self.weights.items()
        }
        self.optimizer = torch.optim.Adam(
            self.masters.values(), lr=learner.learning_rate, betas=(learner.beta1, learner.beta2), fused=True
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
        for weight in self.weights.values():
            weight.grad = None
        self.accumulate(prompts, lessons, advantages)
        norm = self._step()
        return Step(advantages, norm)

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
            weights = flat.new_ones(shape)
            for line, row in enumerate(rows):
                given = lessons[row].token_weights
                if given is not None:
                    weights[line, : len(given)] = flat.new_tensor(given)
            batch = Batch(
                logprobs=flat.new_zeros(shape).masked_scatter(real, flat),
                old_logprobs=None,
                mask=real.to(flat.dtype),
                token_weights=weights,
                advantages=flat.new_tensor([advantages[row] for row in rows]),
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
        for name, master in self.masters.items():
            tensors[f"weight/{name}"] = master.detach()
            for moment, value in self.optimizer.state.get(master, {}).items():
                tensors[f"{moment}/{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take back what `state` gave."""
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(tensors[f"weight/{name}"])
        moments = {
            number: {kind: tensors[f"{kind}/{name}"].clone() for kind in ("step", "exp_avg", "exp_avg_sq")}
            for number, name in enumerate(self.masters)
            if f"step/{name}" in tensors
        }
        self.optimizer.load_state_dict({"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self._copy_masters()

    def _step(self) -> float:
        """Clip the gradient, step the masters and copy them to the weights; returns the norm before clipping."""
        for name, master in self.masters.items():
            gradient = self.weights[name].grad
            master.grad = gradient if gradient is None else gradient.to(master.dtype)
        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.spec.learner.max_grad_norm)
        self.optimizer.step()
        self._copy_masters()
        return float(norm)

    @torch.no_grad()
    def _copy_masters(self) -> None:
        for name, weight in self.weights.items():
            if weight is not self.masters[name]:
                weight.copy_(self.masters[name])
