"""Renders the site's templates, with escaping of strangers' texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thiefbench.suite.report import rendering


def render(template: str, scripts: Sequence[str], **values: Any) -> bytes:
    """A page of the site.

    Args:
        template: its name.
        scripts: names of its script files; the first goes into the head.
        values: for the template. Text is escaped; see `rendering.environment`.
    """
    pages = rendering.environment(str(__package__), rendering.__package__)
    return (
        pages.get_template(template)
        .render(scripts=[rendering.script(str(__package__), name) for name in scripts], **values)
        .encode("utf-8", "backslashreplace")
    )
