"""Malicious peers and defenses in a live GenRL swarm, the framework behind RL Swarm.

Everything here wraps parts of GenRL and changes none, so a YAML can name it with `_target_`: `malicious` and `defended`
take a finished `GameManager`, `TaskDataManager` and `task_rewards` make any task of this package a GenRL game, and
`LoopbackBackend` keeps a swarm on one machine. `thiefbench.integrations.genrl.swarm` starts whole swarms of processes.

This module imports GenRL only when one of these names is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "DefendedDataManager",
    "LoopbackBackend",
    "PoisonedCommunication",
    "TaskDataManager",
    "TaskRewards",
    "defended",
    "malicious",
    "task_rewards",
]

_MODULES = {
    "DefendedDataManager": "defense",
    "LoopbackBackend": "backend",
    "PoisonedCommunication": "attack",
    "TaskDataManager": "game",
    "TaskRewards": "game",
    "defended": "defense",
    "malicious": "attack",
    "task_rewards": "game",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
