"""Which set of published cells a row is measured against: a rule, so that nobody chooses one.

Several sets of a suite hold the same cells, computed in different ways; against one of them, a row may look better. So
a row belongs to the set that was computed as its own cells were. Where there is none that has all published cells, it
belongs to the first one with the same settings and the same torch, with differences that are those of another processor
alone. What a row was computed with is its author's word until its cells were run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thiefbench.leaderboard.published import Key, Published, PublishedCell
from thiefbench.suite.store.arithmetic import arithmetic_of, comparable

InPlace = Mapping[Key, PublishedCell]
"""A set's cells of this version of the benchmark."""


def set_of_row(
    sets: Sequence[tuple[Published, InPlace]], settings: Mapping[str, Any], made: Mapping[str, str]
) -> Published | None:
    """The set that a row is measured against.

    Args:
        sets: all sets of a suite with their cells among those that the row needs, the first one first.
        settings: of the row's own cells, by the names of `thiefbench.leaderboard.manifest.Numerics`.
        made: their arithmetic.

    Returns:
        None where no set with these settings and this torch has all cells that any set has.
    """
    known = {key for _, cells in sets for key in cells}
    whole = [(each, cells) for each, cells in sets if cells.keys() >= known and can_be_measured(cells, settings, made)]
    like = [each for each, cells in whole if made_like(cells, settings, made)]
    return next(iter([*like, *(each for each, _ in whole)]), None)


def can_be_measured(cells: InPlace, settings: Mapping[str, Any], made: Mapping[str, str]) -> bool:
    """Whether cells with these settings and this arithmetic can be measured against a set's; arguments as above."""
    return _with(cells, settings) and all(comparable(arithmetic_of(cell.record), made) for cell in cells.values())


def made_like(cells: InPlace, settings: Mapping[str, Any], made: Mapping[str, str]) -> bool:
    """Whether a set's cells were computed with these settings and this arithmetic; arguments as above."""
    return _with(cells, settings) and all(arithmetic_of(cell.record) == made for cell in cells.values())


def _with(cells: InPlace, settings: Mapping[str, Any]) -> bool:
    return all(cell.record.cell.get(name) == value for cell in cells.values() for name, value in settings.items())
