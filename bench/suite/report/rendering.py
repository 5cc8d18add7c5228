"""Pages from templates: self-contained HTML for which no browser loads or runs anything."""

from __future__ import annotations

from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder.

    Autoescape is on: completions, errors and spec strings are data from strangers.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: resources.files(__package__).joinpath(name).read_text(encoding="utf-8")),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(**values)
