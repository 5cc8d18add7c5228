"""CSV files with texts from strangers, which must not be formulas in a spreadsheet or control a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from thiefbench.tasks.text import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of texts that some spreadsheet takes for a formula, or for white space before one; the last four are
full-width forms."""


def csv_of(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV, with numbers unrounded, truth values as 0 and 1, and nothing for None.

    A text that a spreadsheet would take for a formula is preceded by an apostrophe, and characters that cannot be seen
    are written by their number.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(_field, row) for row in rows)
    return out.getvalue()


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    if isinstance(value, bool):
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value)
