"""Other Pythons on this machine, for what must be the same to all of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

OTHERS = [minor for minor in range(11, 16) if minor != sys.version_info.minor]
"""The versions 3.x that are asked where they are there."""


@cache
def _found(minor: int) -> str | None:
    """On the path, or where a version manager keeps them side by side."""
    named = shutil.which(f"python3.{minor}")
    for path in [named] * bool(named) + sorted(map(str, Path(sys.base_prefix).parent.glob("*/bin/python3"))):
        command = [path, "-c", "import sys; print(sys.version_info[1])"]
        asked = subprocess.run(command, capture_output=True, check=False)
        if asked.stdout.strip() == str(minor).encode():  # a version manager has names without Pythons
            return path
    return None


def python(minor: int) -> str:
    """The path of Python 3.`minor`; the test is skipped where there is none."""
    found = _found(minor)
    if found is None:
        pytest.skip(f"no Python 3.{minor} is here")
    return found
