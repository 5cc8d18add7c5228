"""What a report of a store shows of its live swarms."""

from __future__ import annotations

from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.suite.store.manifests import joined
from thiefbench.suite.store.records import Store
from thiefbench.suite.store.runs import described


def remember(store: Store, swarm: LiveSwarm, cell_id: str) -> str:
    """Add a finished cell to what a report of the store shows: swarms that differ in attack, defense, role and seed.

    Args:
        store: the store of the cell.
        swarm: its settings.
        cell_id: names it.

    Returns:
        Why swarms that it showed before are not shown any more; empty if they still are.
    """
    run = described(swarm.suite(), {swarm.cell(): cell_id})
    whole, apart = joined([("this swarm", run), ("earlier swarms", store.read_run())])
    store.write_run(whole or run)
    if not apart:
        return ""
    return (
        "a report of this store shows this swarm only: what it showed before had other settings or cannot be read; to "
        "see swarms together, store those of each setting in a folder of their own"
    )
