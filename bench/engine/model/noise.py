"""Gumbel noise as a pure hash of a row's key, the step and the token, for whole batches at once."""

from __future__ import annotations

import torch

_GOLDEN, _MIX_1, _MIX_2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def gumbel(row_keys: torch.Tensor, step: int | torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for (row, step, token), independent of how rows are batched.

    Args:
        row_keys: int64, shape (rows,).
        step: position in the completion, from 0; one for all rows, or int64 of shape (rows,).
        tokens: int64 candidate token ids, shape (rows, candidates).

    Returns:
        float64, shape (rows, candidates).
    """
    mixed = _mix(_mix(row_keys ^ step)[:, None] ^ tokens)
    uniform = (_shift(mixed, 12).double() + 0.5) * 2.0**-52  # exact in float64, and never 0 or 1
    return -torch.log(-torch.log(uniform))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014) on wrapping int64."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift: int64 has only an arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
