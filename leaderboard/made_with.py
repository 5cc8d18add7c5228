"""Versions and machine with which the cells of an entry were run, collected from their records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from thiefbench.leaderboard.entry import EntryError
from thiefbench.provenance import DISTRIBUTIONS
from thiefbench.suite.store.records import EXCHANGES_SHA256, SHARED, SHARED_REHEARSAL, STAGES_SHA256, Record, Store

_NAMES = ("python", *DISTRIBUTIONS)
COST = "attack_cost"
"""What a submitted attack used in a cell (`thiefbench.leaderboard.attacking.running`)."""
_OF_A_CELL = ("started", "finished", "ended", SHARED, SHARED_REHEARSAL, COST, EXCHANGES_SHA256, STAGES_SHA256)


def versions(records: Sequence[Record], store: Store) -> dict[str, str]:
    """The version of every distribution, which must be the same for all cells.

    Raises:
        EntryError: the cells were made with several.
    """
    found = _versions(records)
    if several := next((f"{name} {' and '.join(values)}" for name, values in found.items() if len(values) > 1), ""):
        raise EntryError(
            f"the cells in {store.root} were made with {several}, but all cells of an entry must be made with the "
            "same version; choose another --store"
        )
    return {name: values[0] for name, values in found.items()}


def machine(records: Sequence[Record]) -> dict[str, Any]:
    """The machine on which cells were run; if values differ, all are listed."""
    facts: dict[str, Any] = {}
    for name in sorted({name for record in records for name in record.provenance}):  # as in stored records
        if name not in (*_NAMES, *_OF_A_CELL):
            values = {json.dumps(value): value for value in (record.provenance.get(name) for record in records)}
            first, *others = values.values()
            facts[name] = " / ".join(sorted(map(str, values.values()))) if others else first
    return facts


def submitted(records: Sequence[Record]) -> date:
    """The date of an entry: when the last of its cells was finished, in UTC."""
    return max(date.fromisoformat(record.provenance["finished"][:10]) for record in records)


def wrong_statement(
    said_versions: Mapping[str, str],
    said_machine: Mapping[str, Any],
    said_date: date,
    records: Sequence[Record],
    with_scores: Sequence[Record],
) -> str:
    """What an entry says of the making of its cells otherwise than their records do, in a clause; empty if nothing.

    Args:
        said_versions, said_machine, said_date: what its manifest says.
        records: of the cells that it brings.
        with_scores: those whose machine it names.
    """
    found, facts = _versions(records), machine(with_scores)
    said: dict[str, tuple[Any, Any]] = {
        name: (
            said_versions.get(name, "nothing"),
            " and ".join(each or "an empty text" for each in found.get(name, ["nothing"])),
        )
        for name in sorted({*said_versions, *found})
    }
    said |= {
        name: (said_machine.get(name), facts.get(name))
        for name in sorted({*said_machine, *facts} - {*_OF_A_CELL})  # which an earlier version listed here
    }
    try:
        said["date"] = said_date, submitted(records)
    except (KeyError, TypeError, ValueError):  # a stranger's records may say anything
        return "its records do not say when they were finished"
    for name, (one, other) in said.items():
        if one != other:
            return f"of {name:.60} it says “{one!s:.60}”, and its records say “{other!s:.60}”"
    return ""


def _versions(records: Sequence[Record]) -> dict[str, list[str]]:
    """All versions of every distribution that the records name."""
    named = {
        name: sorted({str(record.provenance[name]) for record in records if name in record.provenance})
        for name in _NAMES
    }
    return {name: values for name, values in named.items() if values}
