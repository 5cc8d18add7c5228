"""Entries as the cells and comparisons of a report, built from the numbers in the entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final

from thiefbench import registry
from thiefbench.engine.spec import Role
from thiefbench.leaderboard.cell_scores import CellScores, untrimmed
from thiefbench.leaderboard.entry import Entry, EntryError
from thiefbench.leaderboard.manifest import Numerics, SuiteName
from thiefbench.suite.analysis.comparison import Cell, Comparison
from thiefbench.suite.analysis.measures import REJECTED, first_of
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.run_comparisons import comparisons_of_cells
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import CellDir
from thiefbench.suite.suite_yaml import load_suite

_NEEDED = ("asr", "clean_reward", "start_reward")
"""The scores from which comparisons are computed."""
FAIL_ABOVE: Final = 0.5
"""The share of honest rewarded completions above which a defense rejects nearly everything."""
_ITS_PLACE = "reject_all"  # any known name that is neither `none` nor an oracle


def suite_of(entry: Entry) -> Suite:
    """The released suite that an entry was run on.

    Raises:
        EntryError: this version of the package has no such suite, or has it with other content.
    """
    return suite_named(entry.manifest.suite, entry.folder)


def suite_named(named: SuiteName, folder: Path) -> Suite:
    """The released suite that the entry in a folder names; raises as `suite_of`."""
    title = f"{named.name}-v{named.version}"
    suite = next((s for s in released().values() if (s.name, s.version) == (named.name, named.version)), None)
    if suite is None:
        raise EntryError(
            f"{folder} was run on {title}, which this version of thiefbench does not have; submit it again on a "
            "released suite"
        )
    if suite.fingerprint() != named.fingerprint:
        raise EntryError(
            f"{folder} was run on a {title} whose content differs from that of this version; submit it again"
        )
    return suite


def comparisons(entry: Entry) -> list[Comparison]:
    """An entry's comparisons with their trained lines, as in a report on its store, without remarks.

    Raises:
        EntryError: its suite is not known here, or a cell is not one of the suite's.
    """
    return comparisons_of_cells(cells(entry), suite_of(entry).ranking, remarks=False)


def cells(entry: Entry) -> list[Cell]:
    """An entry's cells as in a report; no defense is loaded.

    Raises:
        EntryError: its suite is not known here, a cell is not one of the suite's or comes twice, or a finished one
            lacks a score that every cell has.
    """
    suite = suite_of(entry)
    defenses = {entry.manifest.defense, *(registry.canonical("defense", each) for each in suite.defenses)}
    report_cells = [_cell(entry, suite, cell, defenses) for cell in entry.cells]
    named = Counter((cell.part, cell.role, cell.attack, cell.defense, cell.seed) for cell in report_cells)
    twice = next((name for name, count in named.items() if count > 1), None)
    if twice:
        raise EntryError(f"{entry.folder}: the cell {', '.join(map(str, twice[1:]))} is listed twice")
    return report_cells


def mean_false_rejection(entry: Entry) -> float | None:
    """Mean over an entry's own cells, of completions, vectors or stages; None if none of them has a rate."""
    # An entry's cells have the rates of completions, too, where its defense judges vectors or stages.
    known = (first_of(reversed(REJECTED), cell.scores) for cell in entry.own)
    rates = [score[0] for score in known if score is not None and score[0] is not None]
    return fmean(rates) if rates else None


def wanted(suite: Suite, seeds: tuple[int, ...], numerics: Numerics, defense: str) -> list[CellSpec]:
    """The cells that a defense's row needs, in the suite's order; the defense's code is not loaded.

    They are its own cells, with and without an attack, and the shared cells that these are measured against: the
    undefended ones, and those of the oracles under attack.
    """
    oracles = tuple(each for each in suite.defenses if anchor_of(each) == "oracle")
    of_seeds = replace(suite, seeds=seeds, defenses=("none", *oracles, _ITS_PLACE))
    cells = of_seeds.cells(numerics.device, numerics.dtype, numerics.threads)
    needed = [cell for cell in cells if cell.role != "control" or anchor_of(cell.defense) != "oracle"]
    its_own = [replace(cell, defense=defense) if cell.defense == _ITS_PLACE else cell for cell in needed]
    return list(dict.fromkeys(its_own))  # an anchor's own cells are also shared cells


def shared_cells(suite: Suite, seeds: tuple[int, ...], numerics: Numerics) -> list[CellSpec]:
    """The cells that every defense's row is measured against, in the suite's order."""
    return [cell for cell in wanted(suite, seeds, numerics, _ITS_PLACE) if cell.defense != _ITS_PLACE]


@cache
def specs(suite: Suite, seeds: tuple[int, ...], numerics: Numerics) -> dict[tuple[str, Role, str, int], CellSpec]:
    """The suite's undefended cells by part, role, attack and seed, which identify a cell except for its defense."""
    of_seeds = replace(suite, seeds=seeds, defenses=("none",))
    cells = of_seeds.cells(numerics.device, numerics.dtype, numerics.threads)
    return {(of_seeds.part_of(cell), cell.role, cell.attack, cell.seed): cell for cell in cells}


def _cell(entry: Entry, suite: Suite, cell: CellScores, defenses: Collection[str]) -> Cell:
    suite_specs = specs(suite, entry.manifest.seeds, entry.manifest.numerics)
    spec = suite_specs.get((cell.part, cell.role, cell.attack, cell.seed))
    if spec is None:
        raise EntryError(f"{entry.folder}: {suite.title} has no cell like {cell.cell_id} ({cell.role}, {cell.attack})")
    if cell.defense not in defenses:
        raise EntryError(f"{entry.folder}: cell {cell.cell_id} is of another defense, {cell.defense}")
    if cell.status == "ok" and (lacking := [name for name in _NEEDED if name not in cell.scores]):
        raise EntryError(f"{entry.folder}: cell {cell.cell_id} is finished but has no {lacking[0]}")
    parameters = spec.as_dict() | {"defense": cell.defense}
    published = entry.published.get(cell.cell_id)
    made_on = entry.manifest.delivery_of(cell.seed).machine
    machine = published.record.provenance if published is not None else made_on
    record = untrimmed(cell, parameters, machine)
    problem = f"failed: {cell.error}" if cell.status == "error" else ""
    named = (cell.cell_id, cell.part, cell.role, cell.attack, cell.defense, cell.seed)
    return Cell(*named, directory=CellDir(Path(cell.cell_id)), record=None if problem else record, problem=problem)


@cache
def released() -> dict[str, Suite]:
    """All declared suites, by name."""
    return {name: load_suite(name) for name in registry.names("suite")}
