"""The settings of torch that belong to the whole process, and so to all cells that it runs one after the other.

An attack, a defense or a task may change them: when its file is loaded, when it is made, or while a cell runs. What it
changed would otherwise be part of every later cell of the process, whose results would depend on what ran before.

Nothing here loads torch: what has not been loaded has no settings yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_SDP: Final = ("flash", "mem_efficient", "math", "cudnn")


SPINS: Final = "10000"
"""How often a waiting thread looks again before it sleeps; `tests.benchmarks.waiting` compares it with the default."""

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How it is read and set."""


def sleep_when_waiting() -> None:
    """Let threads of torch that wait for each other sleep soon, unless the environment says how they wait.

    The OpenMP library of torch's Linux builds looks 300,000 times before a thread sleeps (GOMP_SPINCOUNT in GCC's
    libgomp manual). On a busy processor the waiting thread keeps the one that it waits for from running all that time.
    Results are the same. The library reads the environment once, as torch is loaded, so this comes before.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """Within this context, settings of torch and its global generators may change; afterwards they are as before."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    before = [(setting, setting[0]()) for setting in _settings()]
    drawn = torch.get_rng_state()
    drawn_there = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        for (read, write), value in before:
            if read() != value:
                write(value)
        torch.set_flush_denormal(False)  # as it is at the start; nothing tells how it is
        torch.set_rng_state(drawn)
        if drawn_there:
            torch.cuda.set_rng_state_all(drawn_there)


def _settings() -> list[Setting]:
    import torch

    cuda = torch.backends.cuda

    def default_device() -> torch.device | None:
        device = torch.get_default_device()
        return None if device == torch.device("cpu") else device  # a default that was set slows every call down

    def anomalies() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    return [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (default_device, torch.set_default_device),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (anomalies, lambda both: torch.set_anomaly_enabled(*both)),
        _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
        *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        *((getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in _SDP),
    ]


def _attribute(of: Any, name: str) -> Setting:
    return (lambda: getattr(of, name)), (lambda value: setattr(of, name, value))
