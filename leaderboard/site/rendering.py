"""Renders the site's templates, with escaping of strangers' texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from thiefbench.suite.report import rendering
from thiefbench.tasks.text import printable


def render(template: str, scripts: Sequence[str], **values: Any) -> bytes:
    """A page of the site.

    Args:
        template: its name.
        scripts: names of its script files; the first goes into the head.
        values: for the template. Text is escaped, and characters that hide or turn text are shown by their number.
    """
    pages = rendering.environment(str(__package__), rendering.__package__)
    pages.finalize = _finalized
    return (
        pages.get_template(template)
        .render(scripts=[rendering.script(str(__package__), name) for name in scripts], **values)
        .encode("utf-8", "backslashreplace")
    )


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
