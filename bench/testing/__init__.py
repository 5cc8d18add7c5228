"""Robustness as a test: what the pytest plugin and tests of one's own attacks, defenses and tasks are made of.

Importing this package is cheap; what a name needs loads when the name is asked for.
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
