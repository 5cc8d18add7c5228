"""Variants of a quicker test, which `make test` leaves out and `make test-slow` runs."""

from __future__ import annotations

from typing import Any

import pytest


def at_length(*values: object) -> list[Any]:
    """Parameters of `pytest.mark.parametrize` that are marked slow; a tuple holds the values of several arguments."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]
