"""Stages: how layers are divided, which stages a microbatch skips, and how a lost stage is recovered. Pure functions.

Stages are numbered from 0 here, and from 1 wherever a user reads them.

Skipping follows SkipPipe (arXiv:2502.19913): each microbatch passes a part of the stages, the first always, and no
stage is passed more often than others. Chosen here: the last stage is never skipped either; stages are skipped in turn,
in an order that the round draws (the paper's scheduler also looks at the speed of links); stages are never reordered.

Recovery follows CheckFree (arXiv:2506.15461) in the form of its authors' code (`simulate_training`): the mean of both
neighbours' weights, each weighted by the norm of its last gradient plus 1e-4, and a fresh optimizer. Chosen here: the
learning rate stays (there, it is scaled after a loss).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from thiefbench.engine.spec import SpecError

LEAST_WEIGHT = 1e-4
"""Added to a gradient norm, as in CheckFree's code, so that two neighbours without gradients count alike."""


def split(layers: int, stages: int) -> list[range]:
    """The layers of every stage, in order.

    Raises:
        SpecError: the layers cannot be divided equally.
    """
    if layers % stages:
        raise SpecError(
            f"a model of {layers} layers cannot be split into {stages} stages of equally many layers; take another "
            "model, or set stages of the pipeline"
        )
    size = layers // stages
    return [range(first, first + size) for first in range(0, layers, size)]


def layer_tensors(weights: Mapping[str, torch.Tensor], of: range, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of some layers, in the model's order.

    Args:
        weights: all of a model's, by name.
        of: the layers.
        prefix: what comes before a layer's number in a name, as "model.layers.".
    """
    starts = tuple(f"{prefix}{layer}." for layer in of)
    return {name: tensor for name, tensor in weights.items() if name.startswith(starts)}


def skip_schedule(stages: int, skipped: int, microbatches: int, rng: random.Random) -> list[frozenset[int]]:
    """Which stages each microbatch skips: `skipped` of those between the first and the last, in turn.

    Any two of these stages are skipped equally often, or one of them once more.
    """
    order = rng.sample(range(1, stages - 1), stages - 2)
    turns = [order[i % len(order)] for i in range(skipped * microbatches)]
    return [frozenset(turns[i * skipped : (i + 1) * skipped]) for i in range(microbatches)]


def recovered(before: torch.Tensor, after: torch.Tensor, norm_before: float, norm_after: float) -> torch.Tensor:
    """A lost stage's weights: W = (a W_before + b W_after) / (a + b), a and b the gradient norms plus 1e-4.

    Args:
        before, after: the flat weights of the stages around it, same shape.
        norm_before, norm_after: the norms of these stages' last gradients.
    """
    of_before, of_after = norm_before + LEAST_WEIGHT, norm_after + LEAST_WEIGHT
    return (of_before * before + of_after * after) / (of_before + of_after)


def lost(stages: int, probability: float, rng: random.Random) -> list[int]:
    """The stages that are lost before a round; never two neighbours, since each is recovered from both of its own."""
    gone: list[int] = []
    for stage in range(1, stages - 1):
        if rng.random() < probability and stage - 1 not in gone:
            gone.append(stage)
    return gone


def commitment(weights: torch.Tensor, stage: int) -> str:
    """A digest of the weights of all other stages, which a stage cannot foresee: BLAKE2b, 16 bytes.

    Args:
        weights: of all stages after a round, shape (stages, size).
        stage: the one whose weights are left out.
    """
    others = torch.cat([weights[:stage], weights[stage + 1 :]])
    return hashlib.blake2b(others.cpu().numpy().tobytes(), digest_size=16).hexdigest()


def microbatches(prompts: Sequence[int], count: int) -> list[list[int]]:
    """Prompts divided into at most `count` parts whose sizes differ by at most one; none is empty."""
    distinct = list(dict.fromkeys(prompts))
    count = min(count, len(distinct))
    bounds = [len(distinct) * i // count for i in range(count + 1)] if count else [0]
    return [distinct[first:end] for first, end in pairwise(bounds)]
