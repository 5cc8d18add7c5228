"""Code that is no longer what a store's results were computed with."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from thiefbench.errors import UserError

if TYPE_CHECKING:
    from thiefbench.registry import Kind
    from thiefbench.suite.store.records import Store

_KINDS: Final[tuple[Kind, ...]] = ("attack", "defense", "task")


def changed_code(store: Store) -> list[str]:
    """The kinds and spec strings of a store's last run whose code is another one now, as in "attack mine.py:Mine".

    What cannot be loaded any more, or may not be, is not among them. All cells of a run have the same code, so one cell
    is read of each attack and defense: reading one checks its completions, which takes a while.

    Raises:
        UserError: the description of the run cannot be used.
    """
    from thiefbench import registry
    from thiefbench.suite.analysis.run_comparisons import cells_of_run, last_run

    seen: set[tuple[str, ...]] = set()
    used: dict[tuple[Kind, str], str] = {}
    for each in last_run(store)["cells"]:
        names = {("attack", each.get("part", ""), each["attack"]), ("defense", each["defense"])}
        if names <= seen or not store.cell(each["cell_id"]).record_path.exists():
            continue
        (cell,) = cells_of_run(store, {"cells": [each]})
        sources = cell.record.identity.get("sources") if cell.record is not None else None
        if cell.record is not None and isinstance(sources, dict):  # a store may come from a stranger
            used |= {(kind, cell.record.cell[kind]): str(sources.get(kind)) for kind in _KINDS}
            seen |= names
    changed = []
    for (kind, spec), known in used.items():
        with suppress(UserError, OSError):
            if registry.source_hash(kind, spec) != known:
                changed.append(f"{kind} {spec}")
    return changed
