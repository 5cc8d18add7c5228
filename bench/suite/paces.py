"""What the finished cells of a store tell about the pace of this machine."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from thiefbench import provenance
from thiefbench.suite.planning import Measured, setting, work
from thiefbench.suite.results import Record, Store
from thiefbench.suite.scenario import CellSpec


def measured_here(store: Store, wanted: Collection[CellSpec]) -> list[Measured]:
    """How long finished cells with the settings of some others took, of those made on a machine like this."""
    settings = {setting(spec) for spec in wanted}
    found = []
    for record in store.records() if settings else ():
        spec = _cell_of(record)
        if record.status == "ok" and spec is not None and setting(spec) in settings and _made_here(record, spec):
            found.append(Measured(spec, work(spec, spec.rounds), sum(record.seconds.values())))
    return found


def _made_here(record: Record, spec: CellSpec) -> bool:
    here = provenance.provenance(spec.device, spec.threads)
    return all(record.provenance.get(name) == here[name] for name in provenance.MACHINE)


def _cell_of(record: Record) -> CellSpec | None:
    """The cell as it was asked for; None where an older version wrote another kind of cell."""
    try:
        return CellSpec.from_dict({name: value for name, value in record.cell.items() if name != "topology"})
    except ValidationError:
        return None
