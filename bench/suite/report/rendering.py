"""Pages from templates: self-contained HTML for which no browser loads anything."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from thiefbench.suite.analysis.statistics import FEW_SEEDS
from thiefbench.suite.report.line_names import line_label
from thiefbench.suite.report.ranking_notes import ranking_notes
from thiefbench.tasks.text import printable

_WORDS = re.compile(r"[^_/(=,+-]*[_/(=,+-]+|[^_/(=,+-]+")


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder; see `environment`."""
    return environment(str(__package__)).get_template(template).render(**values)


@cache  # a template is compiled once in a process
def environment(*packages: str) -> Environment:
    """The templates that lie in some packages; of several with one name that of the first counts.

    Autoescape is on: completions, errors and spec strings are data from strangers. Characters in them that hide or turn
    text are shown by their number. `few_seeds` is known to all: below it there is no interval over seeds. So is
    `ranking_notes`, by the usual rules; a page of one suite gives its own. The filter `breakable` lets a long name go
    on in the next line between its words only; `line_label` gives the words for a line's name.
    """
    templates = Environment(
        loader=ChoiceLoader([_templates(package) for package in packages]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalized,
    )  # fmt: skip
    templates.filters["breakable"] = breakable
    templates.filters["line_label"] = line_label
    templates.globals["few_seeds"] = FEW_SEEDS
    templates.globals["ranking_notes"] = ranking_notes()
    return templates


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def breakable(name: str, sign: str = "<wbr>") -> Markup:
    """A name, escaped, that a browser may break after signs, as in a spec string's, before it breaks a word.

    Args:
        name: which may be a stranger's.
        sign: where it may break; in an attribute, whose text a style sheet shows, the zero-width space.
    """
    return Markup(sign).join(escape(part) for part in _WORDS.findall(printable(name)))


@dataclass(frozen=True)
class Script:
    """A script in a page, and the source expression by which a Content-Security-Policy allows it and no other."""

    code: Markup
    source: Markup


def script(package: str, name: str) -> Script:
    """A script file of a package."""
    code = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return Script(Markup(code), Markup(f"'sha256-{digest}'"))


def _templates(package: str) -> FunctionLoader:
    def read(name: str) -> str | None:
        path = resources.files(package).joinpath(name)
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return FunctionLoader(read)
