"""Mistakes of the user: errors that end in one sentence instead of a traceback."""

from __future__ import annotations

from thiefbench.tasks.errors import UserError as UserError


class UsageError(UserError):
    """Options of a command do not fit each other or this machine. One sentence for the user."""
