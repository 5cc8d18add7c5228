"""Code that is no longer what a store's results were computed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thiefbench.errors import UserError

if TYPE_CHECKING:
    from thiefbench.registry import Kind
    from thiefbench.suite.store.records import Store

_KINDS: Final[tuple[Kind, ...]] = ("attack", "defense", "task")


def changed_code(store: Store) -> list[str]:
    """The kinds and spec strings of a store's last run whose code is another one now, as in "attack mine.py:Mine".

    What cannot be loaded any more, or may not be, is not among them.

    Raises:
        UserError: the description of the run cannot be used.
    """
    from thiefbench import registry
    from thiefbench.suite.analysis.run_comparisons import cells_of_run, last_run

    used: dict[tuple[Kind, str], set[str]] = {}
    for cell in cells_of_run(store, last_run(store)):
        sources = cell.record.identity.get("sources") if cell.record is not None else None
        if cell.record is not None and isinstance(sources, dict):  # a store may come from a stranger
            for kind in _KINDS:
                used.setdefault((kind, cell.record.cell[kind]), set()).add(str(sources.get(kind)))
    changed = []
    for (kind, spec), hashes in used.items():
        try:
            if hashes != {registry.source_hash(kind, spec)}:
                changed.append(f"{kind} {spec}")
        except UserError:
            continue
    return changed
