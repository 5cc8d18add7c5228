"""Renders the site's templates, with escaping of strangers' texts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from markupsafe import Markup

from thiefbench.suite.report import rendering
from thiefbench.tasks.text import printable


@dataclass(frozen=True)
class Script:
    """A script in a page, and the source expression by which a Content-Security-Policy allows it and no other."""

    code: Markup
    source: Markup


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
        .render(scripts=[_script(name) for name in scripts], **values)
        .encode("utf-8", "backslashreplace")
    )


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _script(name: str) -> Script:
    code = resources.files(str(__package__)).joinpath(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return Script(Markup(code), Markup(f"'sha256-{digest}'"))
