"""Gradients that are the same, bit for bit, every time: what a resumed run and a verifier on a GPU rely on.

On a processor they are. On a GPU, some of PyTorch's kernels add numbers up in whatever order their threads come, among
them the gradient of attention with a mask. A global setting chooses deterministic ones instead. It also demands a
setting of cuBLAS, which must be made before the process multiplies matrices for the first time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # one of the two values that PyTorch asks for


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Within this context, operations on a GPU use deterministic algorithms; those without one raise RuntimeError.

    Where cuBLAS was set otherwise or used before this module was imported, nothing changes and there is one warning.
    """
    if device.type == "cpu" or not _possible(device):
        yield
        return
    settings: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False  # it would cost time, and nothing unwritten is read
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = filled


@cache
def _possible(device: torch.device) -> bool:
    """Whether PyTorch multiplies matrices with deterministic algorithms asked for."""
    before = torch.get_deterministic_debug_mode()
    try:
        torch.use_deterministic_algorithms(True)
        torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    except RuntimeError:
        warnings.warn(
            "updates on this GPU will not repeat bit for bit: set CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts",
            stacklevel=2,
        )
        return False
    finally:
        torch.set_deterministic_debug_mode(before)
    return True
