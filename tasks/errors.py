"""The base class of all errors that a user can correct; it lies on the ground floor, so that every room can use it."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can correct.

    Its message is one sentence that says what is wrong and, where it can, what to write instead. The command line and
    the pytest plugin print it without a traceback.
    """
