"""Updates that wait until somebody looks at the weights.

Where a round is known to come out as another cell's did, its completions and evaluations can be taken from there, and
nobody may ever need the weights. So a `DeferringCohort` only notes what its update would do. The moment anybody gets
hold of the model (to sample, to measure, to save it), the updates that it owes are made, in order.

An update that waited gives the very bits of one that did not. It depends on the weights and the optimizer before it, on
the prompts and rows, and on which answers are run together (`ForwardCache.schedule`), as that decides over last bits.
All of this is kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from thiefbench.engine.learning.cohort import Cohort, Step, TrainingRow
from thiefbench.engine.model.forward_cache import Chunk, CompletionKey, ForwardCache

Schedule = list[list[CompletionKey]]
"""The answers that an update runs together, chunk by chunk."""


@dataclass(frozen=True)
class OwedUpdate:
    """An update that has not been made.

    Attributes:
        round: the number of its round.
        prompts: token ids, which rows and schedule name by position.
        rows: the pool's, ordered by group.
        schedule: which answers are run together; empty where nothing is learned.
        grad_norm: what it has to give; None where nobody has made it before.
        cache: the forward passes so far; None where none are kept.
    """

    round: int
    prompts: Sequence[Sequence[int]]
    rows: Sequence[TrainingRow]
    schedule: Schedule
    grad_norm: float | None = None
    cache: ForwardCache | None = None


class DeferringCohort(Cohort):
    """A cohort whose updates wait where `defers` says so.

    Attributes:
        defers: whether the next update waits.
        schedule: of the last update, made or owed.
        owed: the updates that wait, oldest first.
        kept: looks for the state behind one of some updates, the later the better, and gives it with the number of the
            updates that it makes needless; None where nothing is kept.
        seconds_behind: that `catch_up` took since somebody set it to 0.
        reproduced: False once an update gave another gradient norm than it had to: the weights are not those that the
            recorded rounds were played with.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.defers = False
        self.schedule: Schedule = []
        self.owed: list[OwedUpdate] = []
        self.kept: Callable[[Sequence[OwedUpdate]], tuple[int, dict[str, torch.Tensor]] | None] = lambda owed: None
        self.seconds_behind = 0.0
        self.reproduced = True
        self._last_norm = 0.0

    def update(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[TrainingRow], cache: ForwardCache | None = None
    ) -> Step:
        """One optimizer step on a pool, or, where it waits, its advantages and a gradient norm of 0.

        Whoever lets it wait calls `settle` next.
        """
        cache = cache or ForwardCache(self.policy, prompts)
        advantages = self.advantages(rows)
        learns = any(advantages) or self.start is not None
        self.schedule = cache.schedule(self.learned_from(rows, advantages)) if learns else []
        if not self.defers:
            self.catch_up()
            return super().update(prompts, rows, cache)
        # No number yet: the round that it belongs to is not known here.
        self._owe([OwedUpdate(0, prompts, rows, self.schedule, cache=cache)])
        return Step(advantages, 0.0)

    def settle(self, number: int, grad_norm: float | None) -> float:
        """Say of the last update, which waits, what round it belongs to and what gradient norm it has to give.

        With None, which nobody knows before, all updates are made now, as they are where the model has been run over
        the pool already: the next round will ask for the weights, too. Else it goes on waiting.

        Returns:
            The gradient norm.
        """
        last = replace(self.owed[-1], round=number, grad_norm=grad_norm)
        now = grad_norm is None or (last.cache is not None and last.cache.begun)
        self.owed[-1] = last if now else replace(last, cache=None)
        if now:
            self.catch_up()
        if grad_norm is None:
            return self._last_norm
        self.grad_norm = grad_norm
        return grad_norm

    def resume(self, owed: Iterable[OwedUpdate]) -> None:
        """Owe what a checkpoint says."""
        self._owe(owed)

    @torch.inference_mode(False)  # whoever asks may be sampling, and what is made here must be changed later
    @torch.enable_grad()
    def catch_up(self) -> None:
        """Make the updates that are owed."""
        self.policy.before_use = None
        began, (owed, self.owed) = perf_counter(), (self.owed, [])
        if owed and (kept := self.kept(owed)) is not None:
            needless, tensors = kept
            owed = owed[needless:]
            self.restore(tensors)
        for each in owed:
            step = super().update(each.prompts, each.rows, each.cache or _Scheduled(self, each))
            self._last_norm = step.grad_norm
            self.reproduced &= each.grad_norm is None or step.grad_norm == each.grad_norm
        self.seconds_behind += perf_counter() - began

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer moments behind all updates; see `Cohort.state`."""
        self.catch_up()
        return super().state()

    def state_before_owed(self) -> dict[str, torch.Tensor]:
        """The same before the first update that is owed."""
        return super().state()

    def _owe(self, updates: Iterable[OwedUpdate]) -> None:
        self.owed += updates
        self.policy.before_use = self.catch_up if self.owed else None


class _Scheduled(ForwardCache):
    """Runs the answers of an update together as they were, or would have been, when its round was played."""

    def __init__(self, cohort: Cohort, update: OwedUpdate) -> None:
        super().__init__(cohort.policy, update.prompts)
        self._schedule = update.schedule

    def training_chunks(self, answers: Iterable[CompletionKey]) -> Iterator[Chunk]:
        for part in self._schedule:
            yield self._run(part, graph=True)
