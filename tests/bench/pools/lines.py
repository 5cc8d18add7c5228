"""Lines of recorded pools for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def line(**changes: Any) -> dict[str, Any]:
    """A sound line; a field that is changed to `...` is left out."""
    fields: dict[str, Any] = {
        "round": 1, "sender": "peer-a", "item": "sum-1", "question": "What is 2 + 3?", "answer": "5",
        "completions": ["2 + 3 = 5", "2 + 3 = 6"], "rewards": [1.0, 0.0],
    }  # fmt: skip
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def written(path: Path, lines: Iterable[Any]) -> Path:
    """A file of lines: objects as JSON, bytes as they are."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path
