"""The lines of a traceback that are in the user's own code, such as a plugin."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from types import TracebackType
from typing import Any

from thiefbench.errors import UserError
from thiefbench.tasks.text import one_line
from thiefbench.user_imports import is_user_s

MOST_TRACEBACK = 50_000
"""Characters of a traceback that are kept, from its end."""


def where(error: BaseException) -> str:
    """The last line of the user's code that an error passed through, as " (mine.py, line 12)"; else nothing."""
    frames = _own_frames(error)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def described(error: BaseException) -> str:
    """An error's type, its message if it has one, and `where` it passed through the user's code."""
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}{where(error)}"


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error that the user's own code raised into one sentence, also one that would end the program.

    Raises:
        UserError: the sentence.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not where(error):
            raise
        raise UserError(f"your own code failed: {one_line(described(error), 300)}") from error


def origin(error: BaseException) -> BaseException | None:
    """The first cause of an error, if it has one and that passed through the user's own code; else None."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return first if first is not error and any(map(_is_own, _steps(first.__traceback__))) else None


def kept(error: BaseException) -> dict[str, str]:
    """An error's entries for a record: the whole traceback, and the frames of the user's code as Python shows them."""
    whole = "".join(traceback.format_exception(error))
    return {"traceback": whole[-MOST_TRACEBACK:], "own_frames": "".join(traceback.format_list(_own_frames(error)))}


def shown(provenance: Mapping[str, Any], *, whole: bool = False) -> str:
    """The lines of `kept` to show a user, from a record's provenance; empty if there are none.

    Args:
        provenance: a failed cell's provenance.
        whole: all frames, instead of those of the user's code.
    """
    lines = provenance.get("traceback" if whole else "own_frames")
    return lines.rstrip("\n") if isinstance(lines, str) else ""


def _own_frames(error: BaseException) -> traceback.StackSummary:
    """The user's frames of an error, or else of its cause, outermost first."""
    for each in _causes(error):
        frames = traceback.extract_tb(each.__traceback__)
        own = traceback.StackSummary.from_list(compress(frames, map(_is_own, _steps(each.__traceback__))))
        if own:
            return own
    return traceback.StackSummary()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and the errors from or during which it was raised, in turn."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_own(step: TracebackType) -> bool:
    return is_own(str(step.tb_frame.f_globals.get("__name__", "")), Path(step.tb_frame.f_code.co_filename))


def is_own(module: str, file: Path) -> bool:
    """Whether the code of a frame is neither of this package, nor of an installed one, nor of Python itself.

    Args:
        module: its module's name.
        file: its file, which need not exist.
    """
    return module.partition(".")[0] != "thiefbench" and file.is_file() and is_user_s(file.resolve())
