"""What of two sets of golden values is not the same: integral values must be equal, measured ones nearly so."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

Names = tuple[str, ...]

TOLERANCES: Final[dict[str, tuple[float, float]]] = {
    "advantage": (1e-6, 1e-6),
    "grad_norm": (5e-4, 1e-5),
    "loss": (1e-5, 1e-6),
    "gradient": (1e-4, 1e-5),
    "moved": (0.0, 5e-4),
    "log_probs": (1e-5, 3e-3),
    "reported": (1e-5, 1e-4),
    "hidden": (1e-5, 1e-4),
}
"""Relative and absolute tolerance of all numbers below a name; whatever stands below none of these must be equal.

At least five times as wide as anything that was seen between torch 2.11 and 2.15, and between a CPU's instruction sets
(none, AVX2, AVX-512). Weights differ the most: Adam divides a gradient by its own size, so a weight whose gradient is
rounding noise moves by the learning rate whichever way the noise points.
"""
_SHOWN = 4


def differences(before: Any, now: Any, path: Names = ()) -> Iterator[str]:
    """Where two values differ, one line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in (*before, *(name for name in now if name not in before)):
            if name not in now or name not in before:
                yield _line((*path, name), before.get(name, "nothing"), now.get(name, "nothing"))
            else:
                yield from differences(before[name], now[name], (*path, name))
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield _line(path, f"{len(before)} values", f"{len(now)} values")
        for place, (one, other) in enumerate(zip(before, now, strict=False)):
            yield from differences(one, other, (*path, str(place)))
    elif not _same(before, now, path):
        yield _line(path, before, now)


def told(found: list[str]) -> str:
    """The first few differences, and how many more there are."""
    more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "\n".join(f"  {line}" for line in found[:_SHOWN]) + more


def _same(before: Any, now: Any, path: Names) -> bool:
    if isinstance(before, float) and isinstance(now, float) and (allowed := bounds(path)) is not None:
        return math.isclose(before, now, rel_tol=allowed[0], abs_tol=allowed[1])
    return bool(before == now)


def bounds(path: Names) -> tuple[float, float] | None:
    """Relative and absolute tolerance of what stands at a path; None where it must be equal."""
    return next((TOLERANCES[name] for name in path if name in TOLERANCES), None)


def _line(path: Names, before: Any, now: Any) -> str:
    return f"{' / '.join(path)}: was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return said if len(said) <= 80 else f"{said[:80]}..."
