"""How long finished cells of a store took on a machine like this one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from thiefbench import provenance
from thiefbench.suite.estimates.eta import MeasuredCell, setting, work
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record


def measured_here(records: Iterable[Record], wanted: Collection[CellSpec]) -> list[MeasuredCell]:
    """How long cells with the settings of some others took, of those finished on a machine like this."""
    here = cache(provenance.provenance)
    settings = {setting(spec) for spec in wanted}
    measured = []
    for record in records:
        spec = cell_of(record)
        if record.status != "ok" or spec is None or setting(spec) not in settings:
            continue
        if _made_on(here(spec.device, spec.threads), record):
            rehearsed = record.seconds.get("rehearse", 0.0) if spec.rehearses else None
            seconds = sum(record.seconds.values()) - (rehearsed or 0.0)
            measured.append(MeasuredCell(spec, work(spec, spec.rounds), seconds, rehearsed))
    return measured


def _made_on(machine: Mapping[str, Any], record: Record) -> bool:
    return all(record.provenance.get(name) == machine[name] for name in provenance.MACHINE)


def cell_of(record: Record) -> CellSpec | None:
    """The cell as it was asked for; None where an older version wrote another kind of cell."""
    try:
        return CellSpec.from_dict(record.parameters)
    except ValidationError:
        return None
