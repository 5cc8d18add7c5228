"""The weights of a pipeline's stages: read, replaced, recovered and taken back."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.pipeline.cohort import PipelineCohort
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.stages import layer_tensors, recovered, split

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam keeps for a tensor."""

CohortState = Mapping[str, torch.Tensor]
"""Weights and moments of a cohort, as `Cohort.state` gives them; a copy."""


class StageWeights:
    """The layers of every stage in a cohort's model. Stages are numbered from 0.

    Args:
        cohort: whose weights and optimizer these are.
        pipeline: the stages.
    """

    def __init__(self, cohort: PipelineCohort, pipeline: PipelineSpec) -> None:
        self._cohort = cohort
        layers = split(cohort.policy.config.num_hidden_layers, pipeline.stages)
        prefix = _layer_prefix(cohort.masters)
        self._tensors = [layer_tensors(cohort.masters, each, prefix) for each in layers]

    def of(self, stage: int) -> dict[str, torch.Tensor]:
        """A stage's master tensors, by name."""
        return self._tensors[stage]

    def flat(self, stage: int) -> torch.Tensor:
        """A stage's weights, float32, shape (size,); a copy."""
        return _flat(list(self._tensors[stage].values()))

    def stacked(self) -> torch.Tensor:
        """The weights of all stages, shape (stages, size); a copy."""
        return torch.stack([self.flat(stage) for stage in range(len(self._tensors))])

    def gradient_norms(self) -> list[float]:
        """The norms of the stages' gradients in the last update, after clipping."""
        gradients = [[tensor.grad for tensor in each.values() if tensor.grad is not None] for each in self._tensors]
        return [float(torch.linalg.vector_norm(_flat(each))) if each else 0.0 for each in gradients]

    def put(self, stage: int, weights: torch.Tensor) -> None:
        """Give a stage other weights, shape (size,); its optimizer's moments stay.

        Raises:
            DivergedError: they are not finite.
        """
        if not bool(weights.isfinite().all()):
            raise DivergedError(f"the weights of stage {stage + 1} are not finite any more")
        tensors = self._tensors[stage]
        parts = torch.split(weights, [tensor.numel() for tensor in tensors.values()])
        changed = {name: part.view(tensors[name].shape) for name, part in zip(tensors, parts, strict=True)}
        self._cohort.take({**self._cohort.masters, **changed})

    def recover(self, stage: int, norms: list[float]) -> None:
        """Give a lost stage its neighbours' mean weights, by their gradients' `norms`, and a fresh optimizer."""
        around = (stage - 1, stage + 1)
        before, after = (self.flat(neighbour) for neighbour in around)
        self.put(stage, recovered(before, after, *(norms[neighbour] for neighbour in around)))
        for tensor in self._tensors[stage].values():
            self._cohort.optimizer.state.pop(tensor, None)

    def take_back(self, stage: int, state: CohortState) -> None:
        """Give a stage the weights and the optimizer's moments of an earlier state."""
        tensors = self._tensors[stage]
        self.put(stage, _flat([state[f"weight/{name}"] for name in tensors]))
        for name, tensor in tensors.items():
            moments = {kind: state[f"{kind}/{name}"].clone() for kind in MOMENTS if f"{kind}/{name}" in state}
            self._cohort.optimizer.state.pop(tensor, None)
            if moments:
                self._cohort.optimizer.state[tensor] = moments


def _layer_prefix(weights: Mapping[str, torch.Tensor]) -> str:
    """What comes before a layer's number in the names of a model's weights, as "model.layers."."""
    found = (re.match(r"(.*\blayers\.)\d+\.", name) for name in weights)
    return next(match[1] for match in found if match)


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
