"""The engine's revision: the version of the code that computes cells' results."""

from __future__ import annotations

from thiefbench.package_meaning import engine_digest


def engine_revision() -> str:
    """Sixteen hex digits, part of every cell's identity; older records have an integer that was raised by hand.

    They are computed from the code of the engine's sources (`package_meaning.engine_digest`): a change of a statement
    or a name changes the revision; a change of a comment, docstring or layout does not. Every Python version computes
    the same digits.
    """
    return engine_digest().hex()[:16]
