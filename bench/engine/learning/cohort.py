"""Honest nodes that hold equal weights and reach equal verdicts: one model, one update, one defense stand for all."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thiefbench.defenses.base import Defense, PastRound
from thiefbench.engine.learning.grpo import LEARNERS, Batch, group_advantages, group_expectation
from thiefbench.engine.model.forward_cache import CompletionKey, ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec

Seats = tuple[list[int], list[int]]
"""Rows and columns in a table of groups."""


@dataclass(frozen=True)
class TrainingRow:
    """One row of a pool as it enters the update.

    Attributes:
        prompt: which of the round's prompts it answers.
        targets: its token ids, EOS included where it ended.
        reward: after the verdict.
        kept: False where the row leaves its group.
        token_weights: factors on its tokens' losses, or None.
        group: the group that its advantage is relative to; None counts G rows a group, in order.
        old_logprobs: what the generator's weights gave its tokens; None takes the current ones (ratio 1).
    """

    prompt: int
    targets: tuple[int, ...]
    reward: float
    kept: bool = True
    token_weights: tuple[float, ...] | None = None
    group: int | None = None
    old_logprobs: tuple[float, ...] | None = None


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
    """A policy with its optimizer, its defense and what that remembers.

    Args:
        policy: the model, owned and changed by the cohort.
        spec: the swarm it lives in.
        defense: what inspects its pools.
        nodes: the honest nodes it stands for; the others of its class that are malicious hold its weights too.
        kind: the class of its nodes.
        number: which of the swarm's cohorts it is.

    Attributes:
        learns: whether `update` reads the pool's answers with gradients.
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
        """Make the optimizer."""
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
        self, prompts: Sequence[Sequence[int]], lessons: Sequence[TrainingRow], reading: ForwardCache | None = None
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
        self.grad_norm = self._step()
        return Step(advantages, self.grad_norm)

    def advantages(self, lessons: Sequence[TrainingRow]) -> list[float]:
        """Group advantages of all rows, in order."""
        seats = self._seats(lessons)
        rewards = _table(seats, [lesson.reward for lesson in lessons])
        kept = _table(seats, [lesson.kept for lesson in lessons])
        made: list[float] = group_advantages(rewards, kept, self.spec.learner.scale_rewards)[seats].tolist()
        return made

    def _seats(self, lessons: Sequence[TrainingRow]) -> Seats:
        """Where every lesson stands in a table of groups."""
        size = self.spec.group
        groups = [i // size if lesson.group is None else lesson.group for i, lesson in enumerate(lessons)]
        rows = {group: row for row, group in enumerate(dict.fromkeys(groups))}
        taken = [0] * len(rows)
        columns = []
        for group in groups:
            columns.append(taken[rows[group]])
            taken[rows[group]] += 1
        return [rows[group] for group in groups], columns

    def _expected(self, lessons: Sequence[TrainingRow]) -> list[float]:
        """GEPO's denominator of every lesson's group; see `group_expectation`."""
        seats = self._seats(lessons)
        told = [lesson.old_logprobs or () for lesson in lessons]
        means = _table(seats, [sum(each) / max(1, len(each)) for each in told])
        kept = _table(seats, [lesson.kept and bool(each) for lesson, each in zip(lessons, told, strict=True)])
        made: list[float] = group_expectation(means, kept)[seats].tolist()
        return made

    def accumulate(
        self,
        prompts: Sequence[Sequence[int]],
        lessons: Sequence[TrainingRow],
        advantages: Sequence[float],
        reading: ForwardCache | None = None,
    ) -> float:
        """Add the pool's gradient to the parameters; returns the loss.

        Rows with advantage 0 are skipped, as their gradient is exactly zero without a KL term, and equal rows are run
        once.
        """
        reading = reading or ForwardCache(self.policy, prompts)
        taught: dict[CompletionKey, list[int]] = {}
        for i, advantage in enumerate(advantages):
            if lessons[i].targets and (advantage != 0 or (self.start and lessons[i].kept)):
                taught.setdefault((lessons[i].prompt, lessons[i].targets), []).append(i)
        reference = self._reference_logprobs(prompts, taught)
        pool_rows = sum(lesson.kept for lesson in lessons)
        pool_tokens = sum(len(lesson.targets) for lesson in lessons if lesson.kept)
        stale = any(lesson.old_logprobs is not None for lesson in lessons)
        expected = self._expected(lessons) if stale else []
        learner = LEARNERS[self.spec.learner.loss]
        total = 0.0
        for chunk in reading.lessons(taught):
            flat = chunk.logprobs(self.spec.sampling.temperature)
            rows = [(row, start) for answer, start in chunk.starts() for row in taught.get(answer, ())]
            length = max(len(lessons[row].targets) for row, _ in rows)
            mask = torch.zeros(len(rows), length)
            weights = torch.ones(len(rows), length)
            old = flat.new_zeros(len(rows), length) if stale else None
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
            logprobs = flat[token] * mask
            if old is not None:
                for line, (row, _) in enumerate(rows):
                    told = lessons[row].old_logprobs
                    own = logprobs[line].detach() if told is None else flat.new_tensor(told)
                    old[line, : len(own)] = own
            batch = Batch(
                logprobs=logprobs,
                old_logprobs=old,
                mask=mask,
                token_weights=weights.to(flat),
                advantages=flat.new_tensor([advantages[row] for row, _ in rows]),
                pool_rows=pool_rows,
                pool_tokens=pool_tokens,
                expected=flat.new_tensor([expected[row] for row, _ in rows]) if stale else None,
                max_length=self.spec.sampling.max_new_tokens,
                reference_logprobs=start_logprobs,
                kl=self.spec.learner.kl,
            )
            loss = learner(batch, self.spec.learner)
            loss.backward()
            total += float(loss.detach())
        reading.backward()
        return total

    @torch.no_grad()
    def _reference_logprobs(
        self, prompts: Sequence[Sequence[int]], answers: Iterable[CompletionKey]
    ) -> dict[CompletionKey, torch.Tensor]:
        """The start model's log-probs of every answer's tokens; empty without a KL term."""
        made: dict[CompletionKey, torch.Tensor] = {}
        if self.start:
            for chunk in ForwardCache(self.start, prompts).chunks(answers):
                parts = torch.split(chunk.logprobs(self.spec.sampling.temperature), chunk.counts)
                made |= dict(zip(chunk.answers, parts, strict=True))
        return made

    @torch.no_grad()
    def keep(self, version: int, oldest: int) -> None:
        """Keep the current weights as a version's, for samplers that lie behind, and drop all before `oldest`."""
        self.past[version] = {name: weight.detach().to("cpu", copy=True) for name, weight in self.weights.items()}
        self.past = {number: kept for number, kept in self.past.items() if number >= oldest}

    @torch.no_grad()
    def as_of(self, version: int) -> Policy:
        """The model with the weights of a kept version; the same object every time, which the next call changes."""
        if self._behind is None:
            self._behind = copy.deepcopy(self.policy)
        for name, weight in self._behind.weights().items():
            weight.copy_(self.past[version][name])
        return self._behind

    @torch.no_grad()
    def take(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Go on from other weights of the same shapes, with an optimizer that has seen nothing."""
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


class ObserverCohort(Cohort):
    """A cohort that only works advantages out: its model is trained elsewhere, or not at all."""

    learns = False

    def update(
        self, prompts: Sequence[Sequence[int]], lessons: Sequence[TrainingRow], reading: ForwardCache | None = None
    ) -> Step:
        """The advantages; no weight changes."""
        return Step(self.advantages(lessons), 0.0)


def _table(seats: Seats, values: Sequence[float] | Sequence[bool]) -> torch.Tensor:
    """A value per lesson as a table of groups, shape (groups, the largest one's rows); 0 or False on empty seats."""
    given = torch.tensor(values)
    table = torch.zeros(max(seats[0], default=-1) + 1, max(seats[1], default=0) + 1, dtype=given.dtype)
    table[seats] = given
    return table
