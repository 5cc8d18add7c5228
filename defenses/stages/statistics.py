"""The statistics of stage checks, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

import torch


def moving_average(average: torch.Tensor, value: torch.Tensor, decay: float) -> torch.Tensor:
    """decay * average + (1 - decay) * value."""
    return decay * average + (1 - decay) * value


def deviation(average: torch.Tensor, value: torch.Tensor) -> float:
    """|value - average| / max(|value|, |average|), from 0 to 2; 0 if both are 0.

    Relative to the average alone, it would grow without anything having happened where values point in all directions,
    as gradients do from round to round: their average gets ever shorter.
    """
    apart = float((value.double() - average.double()).norm())
    return apart / max(float(average.double().norm()), float(value.double().norm()), 1e-12)


def upper_fence(values: Sequence[float], width: float) -> float:
    """Tukey's upper fence, Q3 + width * (Q3 - Q1), of at least two values; quartiles include both ends."""
    first, _, third = quantiles(values, n=4, method="inclusive")
    return third + width * (third - first)


def neighbour_distances(weights: torch.Tensor) -> list[float]:
    """The distance of every stage's weights to the mean of its neighbours', relative to their length.

    Args:
        weights: shape (stages, size), at least two stages. The first and the last have one neighbour.
    """
    distances = []
    for stage in range(len(weights)):
        neighbours = [other for other in (stage - 1, stage + 1) if 0 <= other < len(weights)]
        mean = weights[neighbours].double().mean(0)
        distances.append(float((weights[stage].double() - mean).norm()) / max(float(mean.norm()), 1e-12))
    return distances


def excess(values: Sequence[float], place: int) -> float:
    """A value minus the median of the others."""
    return values[place] - median([value for i, value in enumerate(values) if i != place])
