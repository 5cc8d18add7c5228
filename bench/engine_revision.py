"""The engine's revision: which version of the code that computes cells' results a result was made with."""

from __future__ import annotations

from thiefbench.package_meaning import engine_digest


def engine_revision() -> str:
    """Sixteen hex digits, part of every cell's identity; older records have a whole number that was raised by hand.

    They follow from what the engine's sources mean (`package_meaning.engine_digest`): another statement or another name
    in them is another revision, another comment, docstring or layout is not. Every Python finds the same.
    """
    return engine_digest().hex()[:16]
