"""What a report of a store shows of its live swarms."""

from __future__ import annotations

from dataclasses import asdict

from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.suite.store.manifests import joined
from thiefbench.suite.store.records import Store


def remember(store: Store, swarm: LiveSwarm, cell_id: str) -> str:
    """Add a finished cell to what a report of the store shows: swarms that differ in attack, defense, role and seed.

    Args:
        store: the store of the cell.
        swarm: its settings.
        cell_id: names it.

    Returns:
        Why swarms that it showed before are not shown any more; empty if they still are.
    """
    suite, cell = swarm.suite(), swarm.cell()
    run = {
        "title": suite.title,
        "suite": asdict(suite),
        "fingerprint": suite.fingerprint(),
        "cells": [
            {
                "cell_id": cell_id, "part": "", "role": cell.role, "attack": cell.attack, "defense": cell.defense,
                "seed": cell.seed, "label": cell.label,
            }
        ],
    }  # fmt: skip
    whole, apart = joined([("this swarm", run), ("earlier swarms", store.read_run())])
    store.write_run(whole or run)
    if not apart:
        return ""
    return (
        "a report of this store shows this swarm only, as earlier ones had other settings; to see them together, store "
        "the swarms of each setting in a folder of their own"
    )
