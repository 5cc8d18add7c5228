"""The work of a round, repeated by another participant."""

from __future__ import annotations

import torch

from thiefbench.defenses.stages.base import Recomputed
from thiefbench.pipeline.cohort import PipelineCohort
from thiefbench.pipeline.weights import CohortState, StageWeights


class Repeated:
    """The update of a round, repeated at most once, however many stages are asked about.

    One process plays all stages, so all of them are repeated. A participant of a real pipeline would repeat one stage,
    from the activations and gradients that this stage received, which are the same here: whoever sent something else
    than it computed sends it again (`thiefbench.pipeline.line.Sending`).

    Args:
        cohort: the pipeline, after the update.
        weights: of its stages.
        start: weights and moments before the update.

    Attributes:
        asked: whether somebody has asked since this was last set to False.
    """

    def __init__(self, cohort: PipelineCohort, weights: StageWeights, start: CohortState) -> None:
        self._cohort, self._weights, self._start = cohort, weights, start
        self._result: tuple[torch.Tensor, list[float]] | None = None
        self.asked = False

    def stage(self, stage: int) -> Recomputed:
        """What another participant gets for a stage, numbered from 0."""
        self.asked = True
        if self._result is None:
            self._result = self._repeat()
        weights, errors = self._result
        return Recomputed(weights[stage], errors[stage])

    def _repeat(self) -> tuple[torch.Tensor, list[float]]:
        cohort, update = self._cohort, self._cohort.last
        now = {name: tensor.clone() for name, tensor in cohort.state().items()}
        grad_norm, traffic = cohort.grad_norm, cohort.line.traffic
        cohort.restore(dict(self._start))
        if update is not None:
            cohort.update(*update)
        weights = self._weights.stacked()
        errors = [0.0 if update is None else each.sent_error for each in cohort.line.traffic] or [0.0] * len(weights)
        cohort.restore(now)
        cohort.grad_norm, cohort.line.traffic = grad_norm, traffic
        return weights, errors
