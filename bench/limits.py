"""Limits on one suite or command: more than anybody needs, and no more than a machine can handle."""

from __future__ import annotations

from typing import Final

MOST_COMPLETIONS: Final = 1_000_000
"""Most completions of a round or an evaluation; more than fit into a machine."""
MOST_ROUNDS: Final = 1_000_000
MOST_SEEDS: Final = 10_000
MOST_ITEMS: Final = 100_000
"""Most items in a split of a generated task; they take ten seconds."""
MOST_CELLS: Final = 200_000
"""Most cells of one suite; their plan alone takes some hundred megabytes."""
MOST_THREADS: Final = 1024
"""CPU threads of one process; with some ten thousand, torch crashes."""
SHARED_GB: Final = 2.0
"""The default limit for weights that cells share in a store, in GB."""
