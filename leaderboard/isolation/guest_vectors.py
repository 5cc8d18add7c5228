"""Vectors that a guest sends, on its side."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

torch.ones(1).half()  # so that torch looks at the processor now: the sandbox, which closes after this, has no /proc


def plain_vector(vector: object) -> NDArray[Any]:
    """A vector as the parent reads it; raises TypeError where it is none."""
    if not isinstance(vector, torch.Tensor) or vector.dtype != torch.float32:
        raise TypeError(f"a vector is a float32 tensor, not {type_of(vector)}")
    if vector.dim() != 1:
        raise TypeError(f"a vector has the shape (size,), not {tuple(vector.shape)}")
    plain: NDArray[Any] = vector.detach().resolve_neg().numpy()
    return plain


def type_of(value: object) -> str:
    """What something is that should be a float32 tensor: a tensor's dtype, or a type."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
