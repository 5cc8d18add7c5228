"""The drift of stored cells, from their completions: each measured against the control of its attack, part and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from thiefbench.suite.analysis import drift
from thiefbench.suite.analysis.comparison import Cell
from thiefbench.suite.analysis.drift import Answers
from thiefbench.suite.store.records import Score

COLUMNS = ["phase", "round", "place", "item_id", "text"]
"""The columns that are read from a cell's completions."""

_T = TypeVar("_T")


def answers_in(rows: pa.Table) -> Answers:
    """The words of the held-out answers in a cell's completions; an attack's own probes are left out.

    Args:
        rows: with `COLUMNS`.
    """
    held_out = rows.filter(pc.equal(pc.cast(rows["phase"], pa.string()), "eval"))
    held_out = held_out.sort_by([("round", "ascending"), ("place", "ascending")])
    evaluations: dict[int, list[tuple[str, str]]] = {}
    columns = (held_out[name].to_pylist() for name in ("round", "item_id", "text"))
    for number, item, text in zip(*columns, strict=True):
        evaluations.setdefault(number, []).append((item, text or ""))
    return drift.answers_of(list(evaluations.values()))


def stored_answers(cell: Cell) -> Answers:
    """The words of a cell's held-out answers, read from its completions."""
    return answers_in(cell.directory.read_rows(COLUMNS))


def drift_scores(
    cells: Sequence[Cell], answers_of: Callable[[Cell], Answers] = stored_answers
) -> dict[str, dict[str, Score]]:
    """`drift.MEASURES` of cells, by cell id.

    A cell is measured against the undefended control of its attack, part and seed, and has no entry if that has no
    scores. For the control itself, the values are those of an honest swarm: the next seed's control measured against it
    or, if no other seed is finished, its own answers, split.

    Args:
        cells: the cells; if a cell has scores, its completions must be readable.
        answers_of: gives the words of a cell's held-out answers, for cells whose completions are not here.
    """
    finished = [cell for cell in cells if cell.record is not None and not cell.problem]
    scores: dict[str, dict[str, Score]] = {}
    for part, attack in dict.fromkeys((cell.part, cell.attack) for cell in finished):
        compared = [cell for cell in finished if (cell.part, cell.attack) == (part, attack)]
        of_seed = {cell.seed: cell for cell in compared if cell.is_control}
        controls = {seed: answers_of(cell) for seed, cell in sorted(of_seed.items())}
        for cell in compared:
            control = controls.get(cell.seed)
            if control is None:
                continue
            if cell is of_seed[cell.seed]:
                scores[cell.cell_id] = honest_drift(control, of_next_seed(controls, cell.seed))
            else:
                scores[cell.cell_id] = drift_beside(answers_of(cell), control)
    return scores


def drift_beside(answers: Answers, control: Answers) -> dict[str, Score]:
    """`drift.MEASURES` of a cell's answers, measured against its control's."""
    return {"drift": drift.drift(answers, control), "divergence": drift.divergence(answers, control)}


def honest_drift(control: Answers, other: Answers | None) -> dict[str, Score]:
    """An honest swarm's values against a control: those of `other`, another seed's control, or of the split control."""
    if other is not None:
        return drift_beside(other, control)
    return {"drift": drift.split_drift(control), "divergence": drift.split_divergence(control)}


def of_next_seed(by_seed: Mapping[int, _T], seed: int) -> _T | None:
    """What belongs to the next seed, or to the first after the last; None if there is only one seed."""
    seeds = sorted(by_seed)
    following = seeds[(seeds.index(seed) + 1) % len(seeds)]
    return None if following == seed else by_seed[following]
