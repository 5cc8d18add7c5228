"""Parts of error messages for users."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean a or b? " with the known names most like an unknown one; empty if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? " if near else ""


def problem(details: ErrorDetails) -> str:
    """The message of one of a `pydantic.ValidationError`'s `errors()`, without the kind of exception."""
    return details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
