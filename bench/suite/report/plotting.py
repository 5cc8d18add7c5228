"""Matplotlib with its own settings alone: no matplotlibrc changes a report's plots. Its other parts load from here.

Matplotlib reads a file of that name in the current folder when it is imported, and the folder may be a stranger's. Such
a file can start LaTeX on each label, or be a pipe that is never written to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

if "matplotlib" not in sys.modules:
    with TemporaryDirectory(prefix="thiefbench-") as empty, chdir(empty):
        import matplotlib  # noqa: F401

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

__all__ = ["Figure", "mpl", "settings", "to_hex", "to_rgb"]


@contextmanager
def settings(chosen: Mapping[str, Any]) -> Iterator[None]:
    """In the `with` block matplotlib has its defaults, changed by `chosen` alone."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(chosen)
        yield
