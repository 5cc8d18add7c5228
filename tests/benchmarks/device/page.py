"""The results as one JSON file and one page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from thiefbench.suite.store.records import write_atomically

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;"
    "border-bottom:1px solid #8884;overflow-wrap:anywhere}th{font-weight:normal;width:45%}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)


def write(out: Path, results: Mapping[str, Any]) -> None:
    """Write device.json and index.html, each whole or not at all."""
    write_atomically(out / "device.json", (json.dumps(results, indent=1) + "\n").encode())
    write_atomically(out / "index.html", page(results).encode())


def page(results: Mapping[str, Any]) -> str:
    """The results as HTML: a heading for every part, and a table for each of its measurements."""
    body = "".join(_section(name, value) for name, value in results.items())
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><title>ThiefBench on a device</title>{head}{body}</html>\n"


def _section(name: str, value: Any) -> str:
    parts = value if isinstance(value, Mapping) else {"": value}
    plain = {key: each for key, each in parts.items() if not isinstance(each, Mapping)}
    nested = {key: each for key, each in parts.items() if isinstance(each, Mapping)}
    tables = [_table(plain)] if plain else []
    tables += [f"<h3>{escape(key)}</h3>{_table(each)}" for key, each in nested.items()]
    return f"<h2>{escape(name)}</h2>{''.join(tables)}"


def _table(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(_told(value))}</td></tr>" for name, value in values.items())
    return f"<table>{rows}</table>"


def _told(value: Any) -> str:
    """A value in few characters; a score with its interval as in reports."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_told(each)}" for name, each in value.items())
    if isinstance(value, list) and len(value) == 3:
        return f"{_told(value[0])} [{_told(value[1])}, {_told(value[2])}]"
    return str(value)
