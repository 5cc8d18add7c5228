"""Entries of a suite that takes seconds: made as `submit` makes them, and forged ones whose checksums all match."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.bench import tiny
from tests.leaderboard import made_entries
from tests.leaderboard.scores_files import put_scores, scores_of, scores_sha256
from thiefbench import registry
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, SwarmSpec
from thiefbench.leaderboard import archive, submit
from thiefbench.leaderboard.cell_scores import CellScores, Scores, drifts, rounded_score, trimmed
from thiefbench.leaderboard.entry import Entry, read_entry, write_entry
from thiefbench.leaderboard.manifest import Manifest, Numerics
from thiefbench.leaderboard.published import SHARED, Published, words_of
from thiefbench.suite.analysis.ranking import anchor_of
from thiefbench.suite.analysis.scoring import cell_curves, cell_scores
from thiefbench.suite.scenario import Evaluation, Suite
from thiefbench.suite.store.records import Record, Store, file_sha256, identify, rows_table, table_rows
from thiefbench.tasks.base import Sampling

HERE = Path(__file__).parent
CHEATS, HOSTILE = HERE / "cheats.py", HERE / "hostile.py"
ATTACK = f"{HERE / 'mumbles.py'}:Mumbles"
NUMERICS = Numerics(device="cpu", dtype="float32", threads=1)
SWARM = SwarmSpec(
    nodes=2, malicious=1, prompts=4, group=4, sampling=Sampling(max_new_tokens=16),
    learner=LearnerSpec(learning_rate=0.1),
)  # fmt: skip

Edit = Callable[[Record, list[CompletionRow]], tuple[Record, list[CompletionRow]]]
"""A cell's record and rows -> forged ones."""


def suite(**changes: Any) -> Suite:
    """Six cells at one seed, whose undefended attack works."""
    fields: dict[str, Any] = {
        "attacks": (ATTACK,), "swarm": SWARM, "rounds": 4, "placebo": True, "utility": True,
        "evaluation": Evaluation(every=1, completions=16, final=16), "seeds": (0,),
        "defenses": ("none", "oracle(reject='drop')"),
    }  # fmt: skip
    return tiny.suite(**(fields | changes))


@dataclass(frozen=True)
class Made:
    """An entry with its archive, and the published cells that it may refer to."""

    entry: Entry
    archive: Path
    shared: Path = SHARED

    @property
    def folder(self) -> Path:
        return self.entry.folder


def made(
    folder: Path, spec: str, monkeypatch: Any, of: Suite | None = None, store: Path | None = None, **options: Any
) -> Made:
    """Run what the store lacks and write the entry; the suite counts as released while the test runs.

    `options` are of `submit.prepare`.
    """
    chosen = of or suite()
    made_entries.tiny(chosen, monkeypatch)
    credits = submit.credits_of(f"{spec} (mine)" if anchor_of(spec) else "Mine", "A. Author", "")
    kept = store or folder / "store"
    own = submit.prepare(spec, credits, chosen, NUMERICS, kept, folder / "entries", **options)
    records = submit.run(own, tiny.Watcher())
    assert [record.error for record in records if record.error] == [], "every cell has its scores"
    entry = submit.write(own, records)
    return Made(entry, Path(shutil.copy(own.archive, folder)), own.shared)  # the next one's has the same name


def copied(of: Made, folder: Path) -> Store:
    """The store of a true entry, whose archive is taken apart once however often this is asked for."""
    first = of.archive.with_suffix(".unpacked")
    if not first.exists():
        archive.unpack(of.archive, of.entry, first)
    return Store(Path(shutil.copytree(first, folder)))


def forged(of: Made, folder: Path, edit: Edit, where: Callable[[CellScores], bool], rescored: bool = True) -> Made:
    """A copy in which the cells that `where` picks were edited, and everything is signed again.

    Args:
        of: a true entry.
        folder: to be made.
        edit: what is done.
        where: to which cells.
        rescored: whether their scores are made to fit their rows.
    """
    store = copied(of, folder / "store")
    cells = [_forged(store, cell, edit, rescored) if where(cell) else cell for cell in of.entry.cells]
    assert cells != list(of.entry.cells), "something was forged"
    return resigned(of, folder, store, _with_drift(of, store, cells) if rescored else cells)


def resigned(
    of: Made,
    folder: Path,
    store: Store,
    cells: list[CellScores],
    source: dict[str, bytes] | None = None,
    **changes: Any,
) -> Made:
    """An entry of these cells, with another source and other fields of its manifest."""
    slug = of.entry.manifest.slug
    target = folder / f"{slug}.tar"
    packed = archive.pack(target, store, cells, [])
    source = source or {path.relative_to(of.folder).as_posix(): path.read_bytes() for path in of.entry.source}
    files = {"scores.json": "0" * 64} | dict.fromkeys(source, "0" * 64)
    changes = {"files": files} | changes
    manifest = of.entry.manifest.model_copy(update={"archive": packed, **changes})
    return Made(
        write_entry(folder / slug, Manifest(**manifest.model_dump()), Scores(cells=tuple(cells)), source),
        target,
        of.shared,
    )


def masked(of: Made, folder: Path, file: Path, spec: str) -> Made:
    """An entry that says another defense's scores are its own: its records name it, and everything is signed again.

    Args:
        of: a true entry with a source of its own.
        folder: to be made.
        file: of the other defense.
        spec: its class and arguments, as in "Class(key=value)".
    """
    store = copied(of, folder / "store")
    defense, digest = f"defense/{file.name}:{spec}", registry.source_hash("defense", f"{file}:{spec}", load=False)
    cells = []
    for cell in of.entry.cells:
        if cell.defense == of.entry.manifest.defense:
            record = store.cell(cell.cell_id).read()
            assert record is not None
            said = record.cell | {"defense": defense}
            identity = record.identity | {"sources": record.identity["sources"] | {"defense": digest}}
            plain = {name: value for name, value in said.items() if name != "topology"}
            own = identify({"cell": plain, **identity})
            store.cell(cell.cell_id).path.rename(store.cell(own).path)
            record = record.model_copy(update={"cell": said, "identity": identity, "cell_id": own})
            store.cell(own).write(record)
            cells.append(trimmed(record, cell.part, True, file_sha256(store.cell(own).record_path)))
        else:
            cells.append(cell)
    source = {f"defense/{file.name}": file.read_bytes()}
    cells = _with_drift(of, store, cells)
    return resigned(of, folder, store, cells, source, defense=defense, source_sha256=digest)


def rewritten(of: Made, folder: Path, change: Callable[[dict[str, Any]], None]) -> Made:
    """A copy whose scores.json was edited, with its hash made to fit."""
    target = folder / of.entry.manifest.slug
    shutil.copytree(of.folder, target)
    told = scores_of(target)
    change(told)
    put_scores(target, json.dumps(told))
    manifest = json.loads((target / "entry.json").read_text())
    manifest["files"]["scores.json"] = scores_sha256(target)
    (target / "entry.json").write_text(json.dumps(manifest))
    return Made(read_entry(target, of.shared), of.archive, of.shared)


def each(change: Callable[[CompletionRow], dict[str, Any]], when: Callable[[CompletionRow], bool]) -> Edit:
    """Edits rows one by one."""

    def edit(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
        return record, [replace(row, **change(row)) if when(row) else row for row in rows]

    return edit


def _forged(store: Store, cell: CellScores, edit: Edit, rescored: bool) -> CellScores:
    directory = store.cell(cell.cell_id)
    record = directory.read()
    assert record is not None
    record, rows = edit(record, list(table_rows(directory.read_rows())))
    table = pa.concat_tables([rows_table(rows)])
    changes: dict[str, Any] = {"completions_sha256": directory.write_rows(table)}
    if rescored:
        kept = {"grad_norm": record.curves["grad_norm"]}
        changes |= {"scores": cell_scores(table), "curves": cell_curves(table) | kept}
    record = record.model_copy(update=changes)
    directory.write(record)
    own = cell.defense.startswith("defense/")
    return trimmed(record, cell.part, own, file_sha256(directory.record_path))


def _with_drift(of: Made, store: Store, cells: list[CellScores]) -> list[CellScores]:
    """The cells with the drift that their completions in a store give."""
    named, published = of.entry.manifest.suite, of.entry.published
    words = words_of(published.values(), Published(of.shared, f"{named.name}-v{named.version}"))
    records = []
    for cell in cells:
        record = published[cell.cell_id].record if cell.cell_id in published else store.cell(cell.cell_id).read()
        assert record is not None
        records.append((cell.part, record))
    measured = drifts(records, store, words)
    scores = [
        {**cell.scores, **{name: rounded_score(score) for name, score in measured.get(cell.cell_id, {}).items()}}
        for cell in cells
    ]
    return [cell.model_copy(update={"scores": each}) for cell, each in zip(cells, scores, strict=True)]


def harmed(record: Record, rows: list[CompletionRow]) -> tuple[Record, list[CompletionRow]]:
    """Held-out tokens that the model never wrote so often: the undefended attack seems to do more harm."""
    late = [place for place, row in enumerate(rows) if row.phase == "eval" and row.round]
    worst = max((rows[place] for place in late), key=lambda row: row.outcome or 0)
    took = {name: getattr(worst, name) for name in ("ids", "text", "ended", "outcome", "reward")}
    return record, [replace(row, **took) if place in late else row for place, row in enumerate(rows)]
