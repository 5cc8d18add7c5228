"""Robustness as a test: the parts of the pytest plugin, and contract tests for your own attacks, defenses and tasks.

Importing this package is cheap; its names load what they need when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thiefbench.testing.assertions import assert_robust as assert_robust

_HOMES = {"assert_robust": "assertions"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
