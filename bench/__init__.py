"""ThiefBench measures how well a defense protects a decentralised GRPO swarm from poisoned completions.

Importing this package is cheap: torch and the engine load when a swarm runs, pyarrow when a store is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thiefbench.suite.store.arrow import Results

__version__ = "0.1.0"


def load(store: str | Path) -> Results:
    """The finished cells of a store and their completions, as Arrow tables.

    Args:
        store: the directory that `thiefbench run` filled.

    Returns:
        `Results`: `.cells` and `.completions` are of type `pyarrow.Table`, `.where` selects cells, and `.write_parquet`
        writes both tables to files.

    Raises:
        UserError: the store has no finished cell, or one of them is damaged.
    """
    from thiefbench.suite.store.arrow import load_results

    return load_results(store)
