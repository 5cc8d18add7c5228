"""The base class of all errors that a user can correct; it is in `tasks` so that every other package can import it."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can correct.

    Its message is one sentence that says what is wrong and, if possible, what to write instead. The command line and
    the pytest plugin print it without a traceback.
    """
