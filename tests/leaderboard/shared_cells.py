"""Shared cells of the suite that takes seconds, in a store and published."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench import tiny
from tests.leaderboard.made_entries import tiny as release
from tests.leaderboard.tiny_entries import NUMERICS, suite
from thiefbench.leaderboard import published, rows
from thiefbench.leaderboard.gzipped import compressed
from thiefbench.leaderboard.publishing import Outcome, publish
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Record, Store, identify, read_sealed, rows_table, table_rows

TITLE = suite().title


@dataclass(frozen=True)
class Board:
    """A store with the suite's shared cells at the seeds 0 and 1, and the folder in which seed 0's are published."""

    store: Path
    shared: Path


def board(folder: Path, monkeypatch: Any) -> Board:
    """Run the shared cells of two seeds and publish those of seed 0, as `suite()` has it."""
    release(suite(), monkeypatch)
    both = suite(seeds=(0, 1))
    store = folder / "store"
    records = run_suite(both, rows.shared_cells(both, both.seeds, NUMERICS), Store(store), tiny.Watcher())
    assert [record.error for record in records if record.error] == []
    outcome = publish(suite(), store, folder / "shared")
    assert (len(outcome.added), outcome.equal, outcome.failed, outcome.lacking) == (4, [], [], [])
    return Board(store, folder / "shared")


def cell_at(role: str, defense: str = "none", seed: int = 0) -> CellSpec:
    """A shared cell of the suite."""
    found = rows.shared_cells(suite(seeds=(0, 1)), (0, 1), NUMERICS)
    return next(cell for cell in found if (cell.role, cell.seed) == (role, seed) and cell.defense.startswith(defense))


def id_of(cell: CellSpec) -> str:
    return identify(identity(cell))


def in_folder(shared: Path) -> dict[str, bytes]:
    """All published files by their path."""
    return {path.relative_to(shared).as_posix(): path.read_bytes() for path in shared.rglob("*") if path.is_file()}


def identified_anew(record: dict[str, Any]) -> None:
    """Give an edited record, as JSON, the id that it would have."""
    record["cell_id"] = identify({"cell": Record(**record).parameters, **record["identity"]})


def of_another_engine(content: dict[str, Any]) -> None:
    """Edit a published cell: as an earlier engine would have published it, with its own id."""
    content["record"]["identity"]["engine_revision"] = "0" * 16
    identified_anew(content["record"])


def edited(shared: Path, cell_id: str, change: Callable[[dict[str, Any]], None], sealed: bool = True) -> Path:
    """Edit a published cell; `sealed` makes its checksum fit, and its name the id that it holds."""
    path = published.cell_path(shared / TITLE, cell_id)
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    if not sealed:
        path.write_bytes(compressed(json.dumps(content).encode()))
        return path
    cell = published.PublishedCell(**content)
    cell = cell.model_copy(update={"sealed": published._seal(cell)})
    path.unlink()
    published.write_cell(shared / TITLE, cell)
    return published.cell_path(shared / TITLE, cell.cell_id)


def copy_of(board: Board, folder: Path) -> Board:
    """A copy to edit."""
    return Board(
        Path(shutil.copytree(board.store, folder / "store")), Path(shutil.copytree(board.shared, folder / "shared"))
    )


def changed(store: Path, cell: CellSpec, change: Callable[[Record], Record]) -> None:
    """Edit a record in a store and seal it again; its completions may have been edited before."""
    directory = Store(store).cell(id_of(cell))
    directory.write(change(Record.model_validate(read_sealed(directory.record_path))))


def made_on(capability: str) -> Callable[[Record], Record]:
    """Makes a record say that it was computed with other vector instructions."""
    return lambda record: record.model_copy(update={"provenance": record.provenance | {"capability": capability}})


def near_tie(store: Path, cell: CellSpec, capability: str = "") -> None:
    """Make a cell as another CPU might compute it: one held-out answer is another one, as wrong."""
    directory = Store(store).cell(id_of(cell))
    record = directory.read()
    assert record is not None
    table = list(table_rows(directory.read_rows()))
    last = [place for place, row in enumerate(table) if (row.phase, row.round) == ("eval", cell.rounds)]
    one, other = next((a, b) for a in last for b in last if table[a].ids != table[b].ids)
    took = {name: getattr(table[other], name) for name in ("ids", "text", "ended", "outcome", "reward")}
    table[one] = replace(table[one], **took)
    rebuilt = rows_table(table)
    made = {
        "completions_sha256": directory.write_rows(rebuilt),
        "scores": cell_scores(rebuilt),
        "curves": cell_curves(rebuilt) | {"grad_norm": record.curves["grad_norm"]},
    }
    if capability:
        made["provenance"] = record.provenance | {"capability": capability}
    directory.write(record.model_copy(update=made))


def publish_all(of: Board, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Outcome:
    """Publish what the store has of some seeds."""
    chosen: Suite = suite(seeds=seeds)
    return publish(chosen, of.store, of.shared, **options)
