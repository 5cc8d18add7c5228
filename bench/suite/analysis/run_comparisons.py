"""The comparisons of a run, one for each attack, read from its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thiefbench import registry
from thiefbench.attacks.base import Attack
from thiefbench.engine.spec import Role
from thiefbench.errors import UserError
from thiefbench.suite.analysis import scoring
from thiefbench.suite.analysis.cell_drift import drift_scores
from thiefbench.suite.analysis.comparison import Cell, Comparison, Line, Result
from thiefbench.suite.analysis.line_scores import comparative_scores, label_notes
from thiefbench.suite.analysis.untrained_lines import untrained_lines
from thiefbench.suite.scenario import RankingRules
from thiefbench.suite.store.record_content import named_alike, wrong_in
from thiefbench.suite.store.records import SCHEMA_VERSION, BrokenRecordError, Score, Store
from thiefbench.suite.store.runs import check_run
from thiefbench.wording import counted, seeds_in_words


class ReportError(UserError):
    """There is nothing to report on. One sentence for the user."""


def last_run(store: Store) -> dict[str, Any]:
    """The description of a store's last run.

    Raises:
        ReportError: the store has no run, or not even a folder.
        RunError: the description cannot be used.
    """
    run = store.read_run()
    if run is None:
        raise ReportError(_why_no_run(store))
    check_run(run, str(store.root / "run.json"))
    return run


def _why_no_run(store: Store) -> str:
    """One sentence on a store without a readable description of a last run."""
    if store.root.exists() and not store.root.is_dir():
        return f"{store.root} is not a folder; name the folder of a store"
    kept = len(store.records())
    if not kept:
        return f"{store.root} holds no run; make one with: thiefbench run SUITE --store {store.root}"
    wrong = "is damaged" if (store.root / "run.json").exists() else "is missing"
    return (
        f"{store.root / 'run.json'}, which says what was run last, {wrong}; run the same suite again with --store"
        f" {store.root} to write it anew ({counted(kept, 'finished cell')} {'is' if kept == 1 else 'are'} kept)"
    )


def comparisons_of_run(store: Store, run: Mapping[str, Any]) -> list[Comparison]:
    """One comparison for each attack in each part of a run, in order, with the replays that its suite asks for."""
    replayed = run["suite"].get("replayed", ())
    return [replace(c, lines=(*c.lines, *untrained_lines(c, replayed))) for c in trained_comparisons(store, run)]


def trained_comparisons(store: Store, run: Mapping[str, Any], remarks: bool = True) -> list[Comparison]:
    """The comparisons of a run with only their trained lines; see `comparisons_of_cells`."""
    rules = RankingRules(**run["suite"].get("ranking", {}))
    return comparisons_of_cells(cells_of_run(store, run), rules, remarks)


def cells_of_run(store: Store, run: Mapping[str, Any]) -> list[Cell]:
    """The stored cells of a run, in its order."""
    return [_read_cell(store, entry) for entry in run["cells"]]


def comparisons_of_cells(cells: Sequence[Cell], rules: RankingRules, remarks: bool = True) -> list[Comparison]:
    """The comparisons of some cells, with their trained lines.

    Args:
        cells: in the order of the lines.
        rules: their suite's ranking rules.
        remarks: whether to read completions, which needs the cells' files, to measure drift and get attacks' remarks;
            and whether to construct defenses to see if they use labels, which runs their code. Without remarks, a line
            has the drift contained in its records, as for an entry.
    """
    comparisons = []
    for part, attack in dict.fromkeys((cell.part, cell.attack) for cell in cells):
        bare = Comparison(attack, tuple(c for c in cells if (c.part, c.attack) == (part, attack)), (), part, rules)
        drifts = drift_scores(bare.cells) if remarks else {}
        lines = tuple(_trained_line(bare, role, defense, remarks, drifts) for role, defense in _line_order(bare.cells))
        comparisons.append(replace(bare, lines=lines))
    return comparisons


def _read_cell(store: Store, entry: Mapping[str, Any]) -> Cell:
    directory = store.cell(entry["cell_id"])
    record, problem = None, ""
    try:
        record = directory.read()
    except BrokenRecordError:
        problem = "damaged: its stored files fail their checksum; run the suite again"
    else:
        if record is None:
            problem = "missing: it has not been run to its end; run the suite again to finish it"
        elif not named_alike(record, entry):
            record, problem = None, "damaged: its record belongs to another cell; run the suite again"
        elif wrong := wrong_in(record):
            record, problem = None, f"damaged: {wrong}; run the suite again"
        elif record.status == "error":
            problem = f"failed: {record.error}"
        elif record.schema_version < SCHEMA_VERSION:
            record = scoring.renewed(record, directory.read_rows(list(scoring.RENEWED_COLUMNS)))
    named = {name: entry[name] for name in ("cell_id", "role", "attack", "defense", "seed")}
    return Cell(**named, part=entry.get("part", ""), directory=directory, record=record, problem=problem)


def _line_order(cells: Sequence[Cell]) -> list[tuple[Role, str]]:
    """Control, placebo, the undefended attack, the defended ones, then defenses without an attack."""
    lines = list(dict.fromkeys((cell.role, cell.defense) for cell in cells))
    first: list[tuple[Role, str]] = [("control", "none"), ("placebo", "none"), ("attack", "none")]
    rest = [line for line in lines if line not in first]
    return [line for line in first if line in lines] + sorted(rest, key=lambda line: line[0] != "attack")


def _trained_line(
    comparison: Comparison, role: Role, defense: str, remarks: bool, drifts: Mapping[str, Mapping[str, Score]]
) -> Line:
    cells = [cell for cell in comparison.cells if (cell.role, cell.defense) == (role, defense)]
    results = tuple(
        Result(cell.seed, cell.cell_id, {}, cell.problem)
        if cell.problem or cell.record is None
        else Result(
            cell.seed,
            cell.cell_id,
            {**comparative_scores(comparison, role, cell.seed, cell.record), **drifts.get(cell.cell_id, {})},
        )
        for cell in sorted(cells, key=lambda cell: cell.seed)
    )
    notes = [note for cell in cells if remarks and role == "attack" for note in _remarks(comparison, cell)]
    labelled = label_notes(defense) if remarks else ()
    lost = _lost_references(comparison, role, cells)
    return Line(cells[0].name, "trained", role, defense, results, (*labelled, *lost, *dict.fromkeys(notes)))


def _lost_references(comparison: Comparison, role: Role, cells: Sequence[Cell]) -> list[str]:
    """References without a score at seeds where the line has one, so that the line's means leave out these seeds."""
    references: list[Role] = ["control"]
    if role == "attack":
        references = list(dict.fromkeys(("control", comparison.reference_role, "attack")))
    lost: dict[str, list[int]] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        if cell.problem:
            continue
        for reference in references:
            beside = comparison.find(reference, "none", cell.seed)
            if beside is not None and beside is not cell and beside.problem:
                name = "the undefended attack" if reference == "attack" else beside.name
                what = "failed" if beside.state == "failed" else f"is {beside.state}"
                lost.setdefault(f"{name} {what}", []).append(cell.seed)
    return [
        f"{what} at {seeds_in_words(seeds)}, so what is measured against it is left out" for what, seeds in lost.items()
    ]


def _remarks(comparison: Comparison, cell: Cell) -> tuple[str, ...]:
    """The attack's remarks on the last evaluations of a cell and its reference."""
    reference = comparison.find(comparison.reference_role, "none", cell.seed)
    if reference is None or any(each.problem or each.record is None for each in (cell, reference)):
        return ()
    attack = registry.make("attack", comparison.attack)
    if type(attack).remarks is Attack.remarks:  # most attacks have none, and reading two tables per cell takes long
        return ()
    outcomes, reference_outcomes = (
        scoring.final_outcomes(each.directory.read_rows(["phase", "round", "outcome"])) for each in (cell, reference)
    )
    remarks: tuple[str, ...] = attack.remarks(outcomes, reference_outcomes) if outcomes and reference_outcomes else ()
    return tuple(f"seed {cell.seed}: {remark}" for remark in remarks)
