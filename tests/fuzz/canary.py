"""What nobody may import because a file from a stranger names it: it leaves a marker."""

from __future__ import annotations

import os
from pathlib import Path

Path(os.environ.get("THIEFBENCH_FUZZ_MARKER", os.devnull)).write_text("imported")


class Canary:
    """Named by mutated specs."""
