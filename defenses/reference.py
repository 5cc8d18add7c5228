"""Usual values in a pool in which some senders are malicious."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The lowest value at which half of the weight is reached."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.asarray(weights, float)[order])
    return float(np.asarray(values, float)[order][np.searchsorted(reached, reached[-1] / 2)])


def others_quantile(
    samples: Mapping[str, Sequence[float]], quantile: float, side: Literal["lower", "higher"]
) -> dict[str, float]:
    """For each sender, the median of the other senders' quantiles, weighted by how many values they have.

    A sender's own values do not affect its result. Senders who together have less than half of the others' values
    cannot determine it, however many pseudonyms they use.

    Args:
        samples: values by sender; senders without values have no weight.
        quantile: in [0, 1].
        side: which neighbour to take where the quantile falls between two values.

    Returns:
        One number for every sender of `samples`, unless no other sender has values.
    """
    nonempty = {sender: values for sender, values in samples.items() if len(values)}
    quantiles = {sender: float(np.quantile(values, quantile, method=side)) for sender, values in nonempty.items()}
    usual = {}
    for sender in samples:
        others = [other for other in nonempty if other != sender]
        if others:
            usual[sender] = weighted_median([quantiles[o] for o in others], [len(nonempty[o]) for o in others])
    return usual
