"""Honest nodes that hold equal weights and reach equal verdicts: one model, one update, one defense stand for all."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thiefbench.defenses.base import Defense
from thiefbench.engine.grpo import LEARNERS, Batch, group_advantages
from thiefbench.engine.policy import Policy
from thiefbench.engine.reading import Answer, Reading
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

    Attributes:
        learns: whether `update` reads the pool's answers with gradients.
    """

    learns: ClassVar[bool] = True

    def __init__(self, policy: Policy, spec: SwarmSpec, defense: Defense) -> None:
        self.policy, self.spec, self.defense = policy, spec, defense
        learner = spec.learner
        self.weights = policy.weights()
        # Steps of a small learning rate vanish in bfloat16, so such weights are copies of float32 masters.
        self.masters = {
            name: weight.detach().float() if weight.dtype.itemsize < 4 else weight
            for name, weight in self.weights.items()
        }
        self.start = copy.deepcopy(policy) if learner.kl else None
        self.optimizer = torch.optim.Adam(
            self.masters.values(), lr=learner.learning_rate, betas=(learner.beta1, learner.beta2), fused=True
        )

    def update(
        self, prompts: Sequence[Sequence[int]], lessons: Sequence[Lesson], reading: Reading | None = None
    ) -> Step:
        """One optimizer step on a pool.

        Args:
            prompts: prompts as token ids.
            lessons: B * G rows, ordered by group; those of one group share a prompt.
            reading: of these prompts with the current weights, where the defense has made one.
        """
        advantages = self.advantages(lessons)
        if not any(advantages) and not self.start:
            return Step(advantages, 0.0)
        for weight in self.weights.values():
            weight.grad = None
        self.accumulate(prompts, lessons, advantages, reading)
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
        self,
        prompts: Sequence[Sequence[int]],
        lessons: Sequence[Lesson],
        advantages: Sequence[float],
        reading: Reading | None = None,
    ) -> float:
        """Add the pool's gradient to the parameters; returns the loss.

        Rows with advantage 0 are skipped, as their gradient is exactly zero without a KL term, and equal rows are run
        once.
        """
        reading = reading or Reading(self.policy, prompts)
        taught: dict[Answer, list[int]] = {}
        for i, advantage in enumerate(advantages):
            if lessons[i].targets and (advantage != 0 or (self.start and lessons[i].kept)):
                taught.setdefault((lessons[i].prompt, lessons[i].targets), []).append(i)
        reference = self._reference_logprobs(prompts, taught)
        pool_rows = sum(lesson.kept for lesson in lessons)
        learner = LEARNERS[self.spec.learner.loss]
        total = 0.0
        for chunk in reading.lessons(taught):
            flat = chunk.logprobs(self.spec.sampling.temperature)
            rows = [(row, start) for answer, start in chunk.starts() for row in taught.get(answer, ())]
            length = max(len(lessons[row].targets) for row, _ in rows)
            mask = torch.zeros(len(rows), length)
            weights = torch.ones(len(rows), length)
            start_logprobs = flat.new_zeros(len(rows), length) if self.start else None
            for line, (row, _) in enumerate(rows):
                mask[line, : len(lessons[row].targets)] = 1
                if start_logprobs is not None:
                    known = reference[lessons[row].prompt, lessons[row].targets]
                    start_logprobs[line, : len(known)] = known
                if (given := lessons[row].token_weights) is not None:
                    weights[line, : len(given)] = torch.tensor(given)
            token = torch.tensor([start for _, start in rows])[:, None] + torch.arange(length)
            mask, token = mask.to(flat), (token * mask.long()).to(flat.device)  # padding reads token 0, times a 0
            batch = Batch(
                logprobs=flat[token] * mask,
                old_logprobs=None,
                mask=mask,
                token_weights=weights.to(flat),
                advantages=flat.new_tensor([advantages[row] for row, _ in rows]),
                pool_rows=pool_rows,
                max_length=self.spec.sampling.max_new_tokens,
                reference_logprobs=start_logprobs,
                kl=self.spec.learner.kl,
            )
            loss = learner(batch, self.spec.learner.epsilon)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        reading.backward()
        return total

    @torch.no_grad()
    def _reference_logprobs(
        self, prompts: Sequence[Sequence[int]], answers: Iterable[Answer]
    ) -> dict[Answer, torch.Tensor]:
        """The start model's log-probs of every answer's tokens; empty without a KL term."""
        made: dict[Answer, torch.Tensor] = {}
        if self.start:
            for chunk in Reading(self.start, prompts).chunks(answers):
                parts = torch.split(chunk.logprobs(self.spec.sampling.temperature), chunk.counts)
                made |= dict(zip(chunk.answers, parts, strict=True))
        return made

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


class Onlooker(Cohort):
    """A cohort that only works advantages out: its model is trained elsewhere, or not at all."""

    learns = False

    def __init__(self, policy: Policy, spec: SwarmSpec, defense: Defense) -> None:
        self.policy, self.spec, self.defense = policy, spec, defense

    def update(
        self, prompts: Sequence[Sequence[int]], lessons: Sequence[Lesson], reading: Reading | None = None
    ) -> Step:
        """The advantages; no weight changes."""
        return Step(self.advantages(lessons), 0.0)
