"""Updates that are deferred until the weights are needed.

If a round is known to be the same as in another cell, its completions and evaluations can be copied from there, and the
weights may never be needed. So a `DeferringCohort` only records its update. As soon as the model is needed (to sample,
to measure, to save it), all deferred updates are carried out, in order.

A deferred update gives the same bits as an immediate one. It depends on the weights and the optimizer before it, on the
prompts and rows, and on which answers are run together (`ForwardCache.schedule`), because that affects last bits. All
of this is stored with it.
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
    """An update that has not been carried out yet.

    Attributes:
        round: the number of its round.
        prompts: token ids; rows and schedule refer to them by position.
        rows: the pool's rows, ordered by group.
        schedule: which answers are run together; empty where nothing is learned.
        grad_norm: the gradient norm that it must reproduce; None if no earlier run has computed it.
        cache: the forward passes so far; None if none are kept.
    """

    round: int
    prompts: Sequence[Sequence[int]]
    rows: Sequence[TrainingRow]
    schedule: Schedule
    grad_norm: float | None = None
    cache: ForwardCache | None = None


class DeferringCohort(Cohort):
    """A cohort whose updates are deferred while `defers` is true.

    Attributes:
        defers: whether the next update is deferred.
        schedule: that of the last update, carried out or deferred.
        owed: the deferred updates, oldest first.
        kept: looks for a stored state after one of the given updates, preferably a late one, and returns it with the
            number of updates that need not be carried out then; None if no states are stored.
        seconds_behind: seconds that `catch_up` took since this was last set to 0.
        reproduced: False once an update has given a different gradient norm than expected, so that the weights are not
            those of the recorded rounds.
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
        """One optimizer step on a pool or, if it is deferred, only its advantages and a gradient norm of 0.

        After a deferred update, the caller must call `settle` next.
        """
        cache = cache or ForwardCache(self.policy, prompts)
        advantages = self.advantages(rows)
        learns = any(advantages) or self.start is not None
        self.schedule = cache.schedule(self.learned_from(rows, advantages)) if learns else []
        if not self.defers:
            self.catch_up()
            return super().update(prompts, rows, cache)
        # No number yet: the round is not known here.
        self._owe([OwedUpdate(0, prompts, rows, self.schedule, cache=cache)])
        return Step(advantages, 0.0)

    def settle(self, number: int, grad_norm: float | None) -> float:
        """Set the round of the last update, which is deferred, and the gradient norm that it must reproduce.

        With None (an unknown norm), all deferred updates are carried out now. They are also carried out now if the
        model has already been run over the pool, because the next round will need the weights too. Otherwise the update
        remains deferred.

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
        """Restore the deferred updates of a checkpoint."""
        self._owe(owed)

    @torch.inference_mode(False)  # callers may be in inference mode; tensors made here are changed later
    @torch.enable_grad()
    def catch_up(self) -> None:
        """Carry out the deferred updates."""
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
        """Weights and optimizer moments after all updates; see `Cohort.state`."""
        self.catch_up()
        return super().state()

    def state_before_owed(self) -> dict[str, torch.Tensor]:
        """The same before the first deferred update."""
        return super().state()

    def _owe(self, updates: Iterable[OwedUpdate]) -> None:
        self.owed += updates
        self.policy.before_use = self.catch_up if self.owed else None


class _Scheduled(ForwardCache):
    """Runs the answers of an update in the same batches as when its round was played, or would have been."""

    def __init__(self, cohort: Cohort, update: OwedUpdate) -> None:
        super().__init__(cohort.policy, update.prompts)
        self._schedule = update.schedule

    def training_chunks(self, answers: Iterable[CompletionKey]) -> Iterator[Chunk]:
        for part in self._schedule:
            yield self._run(part, graph=True)
