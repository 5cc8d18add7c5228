"""How much one suite or command may ask for: more than anybody has use for, and no more than a machine survives."""

from __future__ import annotations

from typing import Final

MOST_COMPLETIONS: Final = 1_000_000
"""Of a round or an evaluation; more than fit into a machine."""
MOST_ROUNDS: Final = 1_000_000
MOST_SEEDS: Final = 10_000
MOST_ITEMS: Final = 100_000
"""Of a split of a generated task; they take ten seconds."""
MOST_CELLS: Final = 200_000
"""Of one suite: their plan alone takes some hundred megabytes."""
MOST_THREADS: Final = 1024
"""CPU threads of one process; with some ten thousand, torch crashes."""
SHARED_GB: Final = 2.0
"""What the weights that cells leave for one another take in a store, where the user says nothing else."""
