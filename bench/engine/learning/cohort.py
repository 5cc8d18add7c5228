"""Honest nodes with equal weights and equal verdicts: one model, one update and one defense for all of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thiefbench.defenses.base import Defense, PastRound
from thiefbench.engine.learning.grpo import LEARNERS, Batch, group_advantages, group_expectation
from thiefbench.engine.learning.repeatable import repeatable
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec

Seats = tuple[list[int], list[int]]
"""Row and column numbers in a table with one row per group."""


@dataclass(frozen=True)
class TrainingRow:
    """One row of a pool as it enters the update.

    Attributes:
        prompt: which of the round's prompts it answers.
        targets: its token ids, EOS included where it ended.
        reward: after the verdict.
        kept: False if the row leaves its group.
        learned: False if it is not learned from: of a kept row, only the reward counts, in its group's mean and
            standard deviation. As if it had not been sent to the update, the loss is not divided by it either, and it
            has no KL term.
        token_weights: factors on its tokens' losses, or None.
        group: the group that its advantage is relative to; None means that every G rows, in order, are a group.
        old_logprobs: its tokens' log-probs under the generator's weights; None uses the current weights (ratio 1).
    """

    prompt: int
    targets: tuple[int, ...]
    reward: float
    kept: bool = True
    learned: bool = True
    token_weights: tuple[float, ...] | None = None
    group: int | None = None
    old_logprobs: tuple[float, ...] | None = None

    @property
    def counts(self) -> bool:
        """Whether it is among the rows over which the loss is a mean."""
        return self.kept and self.learned


@dataclass(frozen=True)
class Step:
    """The result of an update.

    Attributes:
        advantages: per row, in order.
        grad_norm: before clipping; 0 if no group had two different rewards, so that nothing was updated.
    """

    advantages: list[float]
    grad_norm: float


class DivergedError(Exception):
    """Weights or gradients are not finite. One sentence for the user; earlier measurements are not valid either."""


_REMEDY = "use a smaller learning_rate, or a smaller max_grad_norm"


class Cohort:
    """A policy with its optimizer, its defense and the defense's history.

    Args:
        policy: the model, which the cohort modifies.
        spec: the swarm's settings.
        defense: the defense that inspects its pools.
        nodes: the honest nodes it stands for; malicious nodes of its class hold the same weights.
        kind: the class of its nodes.
        number: its number among the swarm's cohorts.

    Attributes:
        learns: whether `update` runs the model over the pool with gradients.
    """

    learns: ClassVar[bool] = True

    def __init__(
        self,
        policy: Policy,
        spec: SwarmSpec,
        defense: Defense,
        nodes: Iterable[int] = (),
        kind: int = 0,
        number: int = 0,
    ) -> None:
        self.policy, self.spec, self.defense = policy, spec, defense
        self.nodes, self.kind, self.number = set(nodes), kind, number
        self.history: list[PastRound] = []
        self.grad_norm = 0.0
        self.past: dict[int, dict[str, torch.Tensor]] = {}
        self._behind: Policy | None = None
        if self.learns:
            self._prepare(policy, spec)

    def _prepare(self, policy: Policy, spec: SwarmSpec) -> None:
        """Create the optimizer."""
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
        self, prompts: Sequence[Sequence[int]], rows: Sequence[TrainingRow], cache: ForwardCache | None = None
    ) -> Step:
        """One optimizer step on a pool.

        Args:
            prompts: prompts as token ids.
            rows: B * G rows, ordered by group; rows of one group share a prompt.
            cache: the forward cache of these prompts with the current weights, including the defense's forward passes.

        Raises:
            DivergedError: the gradient or the weights are not finite.
        """
        advantages = self.advantages(rows)
        if not any(advantages) and not self.start:
            return Step(advantages, 0.0)
        for weight in self.weights.values():
            weight.grad = None
        self.accumulate(prompts, rows, advantages, cache)
        self.grad_norm = self._step()
        return Step(advantages, self.grad_norm)

    def advantages(self, rows: Sequence[TrainingRow]) -> list[float]:
        """Group advantages of all rows, in order; 0 for rows that are not learned from."""
        seats = self._seats(rows)
        rewards = _table(seats, [row.reward for row in rows])
        kept = _table(seats, [row.kept for row in rows])
        advantages: list[float] = group_advantages(rewards, kept, self.spec.learner.scale_rewards)[seats].tolist()
        return [advantage if row.learned else 0.0 for row, advantage in zip(rows, advantages, strict=True)]

    def _seats(self, rows: Sequence[TrainingRow]) -> Seats:
        """The position of every row in a table of groups."""
        size = self.spec.group
        groups = [i // size if row.group is None else row.group for i, row in enumerate(rows)]
        line_of = {group: line for line, group in enumerate(dict.fromkeys(groups))}
        taken = [0] * len(line_of)
        columns = []
        for group in groups:
            columns.append(taken[line_of[group]])
            taken[line_of[group]] += 1
        return [line_of[group] for group in groups], columns

    def _expected(self, rows: Sequence[TrainingRow]) -> list[float]:
        """GEPO's denominator for every row's group; see `group_expectation`."""
        seats = self._seats(rows)
        logprobs = [row.old_logprobs or () for row in rows]
        means = _table(seats, [sum(each) / max(1, len(each)) for each in logprobs])
        kept = _table(seats, [row.counts and bool(each) for row, each in zip(rows, logprobs, strict=True)])
        expected: list[float] = group_expectation(means, kept)[seats].tolist()
        return expected

    def learned_from(self, rows: Sequence[TrainingRow], advantages: Sequence[float]) -> dict[CompletionKey, list[int]]:
        """The distinct answers that an update runs, each with the indices of its rows."""
        row_indices: dict[CompletionKey, list[int]] = {}
        for i, advantage in enumerate(advantages):
            if rows[i].targets and (advantage != 0 or (self.start and rows[i].counts)):
                row_indices.setdefault((rows[i].prompt, rows[i].targets), []).append(i)
        return row_indices

    def accumulate(
        self,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[TrainingRow],
        advantages: Sequence[float],
        cache: ForwardCache | None = None,
    ) -> float:
        """Add the pool's gradient to the parameters; returns the loss.

        Without a KL term, rows with advantage 0 are skipped, because their gradient is exactly zero. Equal rows run
        once.
        """
        cache = cache or ForwardCache(self.policy, prompts)
        row_indices = self.learned_from(rows, advantages)
        reference = self._reference_logprobs(prompts, row_indices)
        pool_rows = sum(row.counts for row in rows)
        pool_tokens = sum(len(row.targets) for row in rows if row.counts)
        stale = any(row.old_logprobs is not None for row in rows)
        expected = self._expected(rows) if stale else []
        learner = LEARNERS[self.spec.learner.loss]
        total = 0.0
        for chunk in cache.training_chunks(row_indices):
            flat = chunk.logprobs(self.spec.sampling.temperature)
            lines = [(rows[i], i, start) for answer, start in chunk.starts() for i in row_indices.get(answer, ())]
            length = max(len(row.targets) for row, _, _ in lines)
            mask = torch.zeros(len(lines), length)
            weights = torch.ones(len(lines), length)
            old = flat.new_zeros(len(lines), length) if stale else None
            start_logprobs = flat.new_zeros(len(lines), length) if self.start else None
            for line, (row, _, _) in enumerate(lines):
                mask[line, : len(row.targets)] = 1
                if start_logprobs is not None:
                    known = reference[row.prompt, row.targets]
                    start_logprobs[line, : len(known)] = known
                if row.token_weights is not None:
                    weights[line, : len(row.token_weights)] = torch.tensor(row.token_weights)
            token = torch.tensor([start for _, _, start in lines])[:, None] + torch.arange(length)
            mask, token = mask.to(flat), (token * mask.long()).to(flat.device)  # padding reads token 0, times a 0
            logprobs = flat[token] * mask
            if old is not None:
                for line, (row, _, _) in enumerate(lines):
                    reported = row.old_logprobs
                    generator_logprobs = logprobs[line].detach() if reported is None else flat.new_tensor(reported)
                    old[line, : len(generator_logprobs)] = generator_logprobs
            batch = Batch(
                logprobs=logprobs,
                old_logprobs=old,
                mask=mask,
                token_weights=weights.to(flat),
                advantages=flat.new_tensor([advantages[i] for _, i, _ in lines]),
                pool_rows=pool_rows,
                pool_tokens=pool_tokens,
                expected=flat.new_tensor([expected[i] for _, i, _ in lines]) if stale else None,
                max_length=self.spec.sampling.max_new_tokens,
                reference_logprobs=start_logprobs,
                kl=self.spec.learner.kl,
            )
            loss = learner(batch, self.spec.learner)
            with repeatable(self.policy.device):
                loss.backward()
            total += float(loss.detach())
        with repeatable(self.policy.device):
            cache.backward()
        return total

    @torch.no_grad()
    def _reference_logprobs(
        self, prompts: Sequence[Sequence[int]], answers: Iterable[CompletionKey]
    ) -> dict[CompletionKey, torch.Tensor]:
        """The start model's log-probs of every answer's tokens; empty without a KL term."""
        reference: dict[CompletionKey, torch.Tensor] = {}
        if self.start:
            for chunk in ForwardCache(self.start, prompts).chunks(answers):
                parts = torch.split(chunk.logprobs(self.spec.sampling.temperature), chunk.counts)
                reference |= dict(zip(chunk.answers, parts, strict=True))
        return reference

    @torch.no_grad()
    def keep(self, version: int, oldest: int) -> None:
        """Keep the current weights as a version, for delayed samplers, and drop all versions before `oldest`."""
        self.past[version] = {name: weight.detach().to("cpu", copy=True) for name, weight in self.weights.items()}
        self.past = {number: kept for number, kept in self.past.items() if number >= oldest}

    @torch.no_grad()
    def as_of(self, version: int) -> Policy:
        """The model with the weights of a kept version; every call returns the same object and changes its weights."""
        if self._behind is None:
            self._behind = copy.deepcopy(self.policy)
        for name, weight in self._behind.weights().items():
            weight.copy_(self.past[version][name])
        return self._behind

    @torch.no_grad()
    def take(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue from other weights of the same shapes, with a fresh optimizer."""
        for name, master in self.masters.items():
            master.copy_(weights[name])
        self._copy_masters()

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer moments as a flat dictionary of tensors, for a checkpoint."""
        tensors: dict[str, torch.Tensor] = {}
        for name, master in self.masters.items():
            tensors[f"weight/{name}"] = master.detach()
            for moment, value in self.optimizer.state.get(master, {}).items():
                tensors[f"{moment}/{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
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
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self.spec.learner.max_grad_norm))
        if not math.isfinite(norm):
            raise DivergedError(f"the gradient is not finite any more (its norm is {norm}); {_REMEDY}")
        self.optimizer.step()
        self._copy_masters()
        if not self._finite():
            raise DivergedError(f"the weights are not finite any more; {_REMEDY}")
        return norm

    @torch.no_grad()
    def _finite(self) -> bool:
        """Whether every weight that a model reads is finite; a large weight may overflow in bfloat16 only."""
        norms = torch._foreach_norm([weight.detach() for weight in self.weights.values()], math.inf)
        return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())

    @torch.no_grad()
    def _copy_masters(self) -> None:
        for name, weight in self.weights.items():
            if weight is not self.masters[name]:
                weight.copy_(self.masters[name])


class ObserverCohort(Cohort):
    """A cohort that only computes advantages: its model is trained elsewhere, or not at all."""

    learns = False

    def update(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[TrainingRow], cache: ForwardCache | None = None
    ) -> Step:
        """The advantages; no weight changes."""
        return Step(self.advantages(rows), 0.0)


def _table(seats: Seats, values: Sequence[float] | Sequence[bool]) -> torch.Tensor:
    """One value per row as a table, shape (groups, rows of the largest group); 0 or False in empty places."""
    flat = torch.tensor(values)
    table = torch.zeros(max(seats[0], default=-1) + 1, max(seats[1], default=0) + 1, dtype=flat.dtype)
    table[seats] = flat
    return table
