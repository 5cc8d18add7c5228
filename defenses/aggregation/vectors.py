"""Robust means of vectors, as pure functions. All take a float tensor of the shape (vectors, size).

None raises an error for few vectors: in gossip a node may hold its own and one other, or its own alone. A rule that
needs more for its guarantee then does what its formula says with the largest number of outliers it can remove.
"""

from __future__ import annotations

import torch


def coordinate_median(vectors: torch.Tensor) -> torch.Tensor:
    """The median of every coordinate; of an even number, the mean of the middle two (Yin et al., arXiv:1803.01498)."""
    ordered, count = vectors.sort(0).values, len(vectors)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(vectors: torch.Tensor, f: int) -> torch.Tensor:
    """The mean of every coordinate without its f largest and f smallest values (Yin et al., arXiv:1803.01498).

    At most as many are removed as leave a value.
    """
    cut = min(f, (len(vectors) - 1) // 2)
    return vectors.sort(0).values[cut : len(vectors) - cut].mean(0)


def lengths(vectors: torch.Tensor) -> torch.Tensor:
    """Euclidean lengths, shape (vectors, 1), also where the squares of huge numbers would overflow."""
    largest = vectors.abs().amax(1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    return torch.linalg.vector_norm(vectors / largest, dim=1, keepdim=True) * largest


def squared_distances(vectors: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances between all pairs, shape (vectors, vectors)."""
    return torch.stack([(vectors - each).square().sum(1) for each in vectors])


def krum_scores(vectors: torch.Tensor, f: int) -> torch.Tensor:
    """Krum's score of every vector: the sum of its squared distances to the n - f - 2 nearest others.

    Blanchard et al., "Machine Learning with Adversaries" (NeurIPS 2017), section 4; it withstands f of n >= 2 f + 3.
    Of fewer vectors, the nearest other one counts. Shape (vectors,).
    """
    count = len(vectors)
    nearest = max(1, count - f - 2)
    return squared_distances(vectors).sort(1).values[:, 1 : 1 + nearest].sum(1)


def geometric_median(vectors: torch.Tensor, steps: int, floor: float) -> torch.Tensor:
    """The smoothed Weiszfeld algorithm, from the mean on (Pillutla et al., arXiv:1912.13445, algorithm 2).

    v <- sum_i w_i x_i / sum_i w_i with w_i = 1 / max(floor, |v - x_i|).
    """
    median = vectors.mean(0)
    for _ in range(steps):
        weights = 1 / lengths(vectors - median).clamp(min=floor)
        median = (weights / weights.sum() * vectors).sum(0)
    return median


def clipped(vectors: torch.Tensor, radius: float) -> torch.Tensor:
    """Every vector x, shortened to x * min(1, radius / |x|)."""
    return vectors * (radius / lengths(vectors).clamp(min=torch.finfo(vectors.dtype).tiny)).clamp(max=1)


def centered_clipping(vectors: torch.Tensor, center: torch.Tensor, radius: float, steps: int) -> torch.Tensor:
    """v <- v + mean_i clip(x_i - v, radius), `steps` times from `center` (Karimireddy et al., arXiv:2012.10333)."""
    for _ in range(steps):
        center = center + clipped(vectors - center, radius).mean(0)
    return center


def nearest_mixing(vectors: torch.Tensor, f: int) -> torch.Tensor:
    """Every vector replaced by the mean of its n - f nearest ones, itself included.

    Nearest-neighbour mixing (Allouah et al., arXiv:2302.01772, algorithm 2). At least two are averaged, if there are
    two. Shape (vectors, size).
    """
    count = len(vectors)
    kept = max(min(2, count), count - f)
    nearest = squared_distances(vectors).sort(dim=1, stable=True).indices[:, :kept]
    return torch.stack([vectors[each].mean(0) for each in nearest])
