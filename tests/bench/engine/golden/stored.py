"""The golden values on disk: JSON that can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.bench.engine.golden.comparing import Names, bounds

FILE: Final = Path(__file__).with_name("values.json")
DIGITS = 7
"""Significant digits that are stored of a measured number."""


def read() -> dict[str, Any]:
    """The stored values: `parts` by name."""
    values: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return values


def written(values: dict[str, Any]) -> str:
    """Golden values as JSON that can be read: a row or a table of numbers is one line."""
    return _lines(_rounded(values, ()), 0) + "\n"


def _rounded(value: Any, path: Names) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each, (*path, name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each, path) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and bounds(path) else value


def _lines(value: Any, depth: int) -> str:
    height = _height(value)
    if height < 2 or (height == 2 and depth > 2):
        return json.dumps(value)
    inner, outer = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {_lines(each, depth + 1)}" for name, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{outer}}}"
    return "[\n" + ",\n".join(f"{inner}{_lines(each, depth + 1)}" for each in value) + f"\n{outer}]"


def _height(value: Any) -> int:
    """How deep lists and objects are nested."""
    nested = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_height, nested), default=0) if isinstance(value, (dict, list)) else 0
