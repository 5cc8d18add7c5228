"""Parts of what users are told when something is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean a or b? " with the names most like one that there is none of; empty where none is like it."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? " if near else ""


def problem(details: ErrorDetails) -> str:
    """What one of a `pydantic.ValidationError`'s `errors()` says, without the kind of exception it came from."""
    return details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
