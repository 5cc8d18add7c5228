"""Versions and machine with which the cells of an entry were run, collected from their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from thiefbench.leaderboard.cell_scores import EXCHANGES_SHA256, STAGES_SHA256
from thiefbench.leaderboard.entry import EntryError
from thiefbench.provenance import DISTRIBUTIONS
from thiefbench.suite.store.records import SHARED, SHARED_REHEARSAL, Record, Store

_NAMES = ("python", *DISTRIBUTIONS)
COST = "attack_cost"
"""What a submitted attack used in a cell (`thiefbench.leaderboard.attacking.running`)."""
_OF_A_CELL = ("started", "finished", "ended", SHARED, SHARED_REHEARSAL, COST, EXCHANGES_SHA256, STAGES_SHA256)


def versions(records: Sequence[Record], store: Store) -> dict[str, str]:
    """The version of every distribution, which must be the same for all cells.

    Raises:
        EntryError: the cells were made with several.
    """
    lock: dict[str, str] = {}
    for name in _NAMES:
        values = sorted({str(record.provenance[name]) for record in records if name in record.provenance})
        if len(values) > 1:
            several = f"{name} {' and '.join(values)}"
            raise EntryError(
                f"the cells in {store.root} were made with {several}, but all cells of an entry must be made with the "
                "same version; choose another --store"
            )
        if values:
            lock[name] = values[0]
    return lock


def machine(records: Sequence[Record]) -> dict[str, Any]:
    """The machine on which cells were run; if values differ, all are listed."""
    facts: dict[str, Any] = {}
    for name in sorted({name for record in records for name in record.provenance}):  # as in stored records
        if name not in (*_NAMES, *_OF_A_CELL):
            values = {json.dumps(value): value for value in (record.provenance.get(name) for record in records)}
            first, *others = values.values()
            facts[name] = " / ".join(sorted(map(str, values.values()))) if others else first
    return facts
