"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things: "1 round", "3 rounds"; `things` is the plural if it is not `thing` with an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {things or thing + 's'}"
