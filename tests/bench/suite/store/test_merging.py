"""Merging: every cell once, nothing damaged, conflicts said; stopped anywhere, a merge ends when it is run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench import handmade, tiny
from tests.bench.cli.test_cli import Cli, cli, sentence  # noqa: F401  # the fixture
from tests.bench.handmade import TEXT, Numbers, comparisons, usual
from tests.bench.tiny import cut, flip
from thiefbench.suite.scenario import CellSpec, RankingRules, Suite
from thiefbench.suite.store import merging, weights
from thiefbench.suite.store.merging import MergeError, merge
from thiefbench.suite.store.records import CellDir, Score, Store, file_sha256, write_sealed

SMALL = {"attacks": (TEXT,), "placebo": False, "utility": False, "rounds": 3}


def small(*seeds: int, **changes: Any) -> Suite:
    """Two cells a seed: the control and the undefended attack."""
    return handmade.suite(**{**SMALL, "defenses": ("none",), "seeds": seeds, **changes})


def slower(cell: CellSpec) -> Numbers:
    """The same results, made elsewhere."""
    return replace(usual(cell), processor="Other CPU", seconds=(("sample", 40.0),))


def otherwise(cell: CellSpec) -> Numbers:
    """Other results in the attacked cells, made elsewhere."""
    return replace(slower(cell), asr=0.5) if cell.role == "attack" else slower(cell)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return handmade.store(tmp_path / "a", small(0, 1)).root


@pytest.fixture
def b(tmp_path: Path) -> Path:
    """Of its four cells two are those of `a`'s last seed."""
    return handmade.store(tmp_path / "b", small(1, 2), slower).root


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store but locks."""
    files = (path for path in store.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def cells(store: Path) -> list[CellDir]:
    return [CellDir(path) for path in sorted((store / "cells").iterdir())]


def attacked(store: Path, seed: int) -> CellDir:
    """The undefended attacked cell of a seed."""
    found = [r for r in Store(store).records() if r.cell["role"] == "attack" and r.cell["seed"] == seed]
    return Store(store).cell(found[0].cell_id)


def test_every_cell_is_there_once_and_the_stores_stay_as_they_are(tmp_path: Path, a: Path, b: Path) -> None:
    before = content(a), content(b)
    done = merge([a, b], tmp_path / "out")
    assert (done.cells, done.shared, dict(done.copied)) == (6, 2, {a: 4, b: 2})
    assert (content(a), content(b)) == before, "what is merged is not changed"
    merged = {record.cell_id: record for record in Store(tmp_path / "out").records()}
    for store in (b, a):
        for record in Store(store).records():
            assert merged[record.cell_id].scores == record.scores
    both = attacked(a, 1).read()
    assert both is not None
    assert merged[both.cell_id].provenance == both.provenance, "of two equal ones the first is kept"


def test_the_joined_run_asks_for_all(tmp_path: Path, a: Path) -> None:
    other = handmade.store(tmp_path / "b", small(2, defenses=("none", "logit"), modified=("1 seed",))).root
    merge([a, other], tmp_path / "out")
    kept = Store(tmp_path / "out")
    run = kept.read_run()
    assert run is not None
    assert run["suite"]["seeds"] == [0, 1, 2]
    assert run["suite"]["defenses"] == ["none", "logit"]
    assert run["title"] == "made-v1, modified: 1 seed", "what one store had changed is changed in the joined one"
    assert len(run["cells"]) == len({cell["cell_id"] for cell in run["cells"]}) == 7
    [comparison] = comparisons(kept)
    assert comparison.seeds == [0, 1, 2]
    assert all(not cell.problem for cell in comparison.cells), "a report finds every cell"


def test_seeds_that_were_written_as_texts_are_numbers_in_the_joined_run(tmp_path: Path, a: Path, b: Path) -> None:
    run = json.loads((a / "run.json").read_text())
    run["suite"]["seeds"] = ["0", 1.0]
    (a / "run.json").write_text(json.dumps(run))
    merge([a, b], tmp_path / "out")
    joined = Store(tmp_path / "out").read_run()
    assert joined is not None
    assert joined["suite"]["seeds"] == [0, 1, 2]


def test_a_run_of_an_older_version_has_the_usual_ranking(tmp_path: Path, a: Path, b: Path) -> None:
    run = Store(a).read_run()
    assert run is not None
    del run["suite"]["ranking"]
    Store(a).write_run(run)
    merge([a, b], tmp_path / "both")
    joined = Store(tmp_path / "both").read_run()
    assert joined is not None
    assert joined["suite"]["seeds"] == [0, 1, 2]
    other = handmade.store(tmp_path / "c", small(5, ranking=RankingRules(margin=0.3)), slower).root
    assert "last ran another suite" in " ".join(merge([a, other], tmp_path / "apart").runs)


def test_the_same_cell_in_two_schema_versions_is_no_conflict(tmp_path: Path, a: Path) -> None:
    older = handmade.store(tmp_path / "older", small(0, 1), slower).root

    def written_before(value: float) -> None:
        for cell in cells(older):
            record = cell.read()
            assert record is not None
            rate = Score(value=value, low=0.0, high=0.4, count=100)
            scores = record.scores | {"false_rejection_rate": rate}
            cell.write(record.model_copy(update={"schema_version": 1, "scores": scores}))

    written_before(0.0)
    assert merge([a, older], tmp_path / "both").shared == 4
    written_before(0.1)
    with pytest.raises(MergeError):
        merge([a, older], tmp_path / "conflict")


def test_runs_of_other_suites_are_not_joined_and_said(tmp_path: Path, a: Path) -> None:
    other = handmade.store(tmp_path / "b", small(0, name="else", rounds=5)).root
    (tmp_path / "c" / "cells").mkdir(parents=True)
    (tmp_path / "c" / "run.json").write_text('{"title": 1, "cells": []}')
    done = merge([a, other, tmp_path / "c"], tmp_path / "out")
    assert done.cells == 6
    run = Store(tmp_path / "out").read_run()
    assert run is not None
    assert run["title"] == "made-v1"
    first, second = done.runs
    assert "last ran another suite, else-v1: its cells are merged" in first
    assert "cannot be read" in second


def test_other_results_are_refused_before_anything_is_written(tmp_path: Path, a: Path) -> None:
    other = handmade.store(tmp_path / "b", small(0, 1), otherwise).root
    with pytest.raises(MergeError) as caught:
        merge([a, other], tmp_path / "out")
    said = str(caught.value)
    for word in (TEXT, "Example CPU", "Other CPU", str(a), str(other), "and 1 more cells do", "--prefer first"):
        assert word in said, f"the sentence names {word!r}: {said}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("prefer", "expected"), [("first", 0.8), ("second", 0.5)])
def test_a_preference_settles_conflicts(tmp_path: Path, a: Path, prefer: Any, expected: float) -> None:
    other = handmade.store(tmp_path / "b", small(0, 1), otherwise).root
    for _ in range(2):
        done = merge([a, other], tmp_path / "out", prefer)
        record = attacked(tmp_path / "out", 0).read()
        assert record is not None
        assert record.scores["asr"].value == expected, "also when it is run again"
    assert len(done.conflicts) >= 2, "conflicts are told all the same"


def test_rows_are_compared_and_not_their_files(tmp_path: Path, a: Path) -> None:
    shutil.copytree(a, tmp_path / "b")
    cell = attacked(tmp_path / "b", 0)
    record = cell.read()
    assert record is not None
    rows = cell.read_rows()
    pq.write_table(rows, cell.completions_path, compression="none")
    cell.write(record.model_copy(update={"completions_sha256": file_sha256(cell.completions_path)}))
    assert merge([a, tmp_path / "b"], tmp_path / "one").shared == 4, "the same rows in another file are the same"
    place = rows.column_names.index("reward")
    other = rows.set_column(place, "reward", pa.array([0.5] * len(rows)))
    cell.write(record.model_copy(update={"completions_sha256": cell.write_rows(other)}))
    with pytest.raises(MergeError, match="has different results"):
        merge([a, tmp_path / "b"], tmp_path / "two")


def test_a_result_goes_before_a_failure(tmp_path: Path, a: Path) -> None:
    failed = handmade.store(tmp_path / "b", small(0, 3), lambda cell: replace(usual(cell), error="no")).root
    for order in ([a, failed], [failed, a]):
        done = merge(order, tmp_path / f"out-{order[0].name}")
        assert done.conflicts == (), "a failure is no result to differ from"
        states = {(r.cell["seed"], r.status) for r in Store(tmp_path / f"out-{order[0].name}").records()}
        assert states == {(0, "ok"), (1, "ok"), (3, "error")}


@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_cells_are_left_out_and_named(tmp_path: Path, a: Path, b: Path, damage: Callable[[Path], None]) -> None:
    shared, alone = attacked(a, 1), attacked(a, 0)
    for cell in (shared, alone):
        damage(cell.completions_path)
    done = merge([a, b], tmp_path / "out")
    assert done.cells == 5
    assert done.lost == (alone.path.name,), "of the other one the second store has an intact copy"
    assert all(any(cell.path.name in text for text in done.damaged) for cell in (shared, alone))
    assert {record.cell_id for record in Store(tmp_path / "out").records()} >= {shared.path.name}


def test_a_damaged_cell_of_the_joined_store_is_set_aside(tmp_path: Path, a: Path, b: Path) -> None:
    merge([a], tmp_path / "out")
    cell = attacked(tmp_path / "out", 1)
    flip(cell.completions_path)
    done = merge([b], tmp_path / "out")
    assert (done.cells, done.lost) == (6, ())
    assert any("set aside as" in text for text in done.damaged)
    assert cell.read() is not None
    assert cell.path.with_name(f"{cell.path.name}.broken-1").is_dir()


def test_a_record_of_another_cell_is_damage(tmp_path: Path, a: Path) -> None:
    one, other, *_ = cells(a)
    shutil.copy(one.record_path, other.record_path)
    shutil.copy(one.completions_path, other.completions_path)
    [text] = merge([a], tmp_path / "out").damaged
    assert "belongs to another cell" in text


def test_unfinished_cells_are_counted_and_not_merged(tmp_path: Path, a: Path, b: Path) -> None:
    shared, alone = attacked(a, 1), attacked(a, 0)
    for cell in (shared, alone):
        cell.record_path.unlink()
        cell.checkpoint.mkdir()
        (cell.checkpoint / "state.json").write_text("{}")
    done = merge([a, b], tmp_path / "out")
    assert (done.cells, done.unfinished) == (5, 1), "the other one is finished in the second store"
    assert not list((tmp_path / "out").rglob("checkpoint"))
    assert alone.checkpoint.exists(), "its own store can still go on with it"
    inside = merge([b], a)
    assert (inside.cells, inside.unfinished) == (5, 1)
    assert not shared.checkpoint.exists(), "a finished cell needs none"


def keep(cell: CellDir, number: int, data: bytes) -> None:
    """Some weights of a round."""
    path = cell.weights / f"round-{number:06d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    index = {str(k): file_sha256(cell.weights / f"round-{k:06d}.safetensors") for k in [*weights.kept(cell), number]}
    write_sealed(cell.weights / "index.json", index)


def test_kept_weights_of_equal_cells_come_together(tmp_path: Path, a: Path, b: Path) -> None:
    keep(attacked(a, 1), 1, b"one")
    keep(attacked(b, 1), 3, b"three")
    merge([a, b], tmp_path / "out")
    cell = attacked(tmp_path / "out", 1)
    assert weights.kept(cell) == [1, 3]
    assert (cell.weights / "round-000003.safetensors").read_bytes() == b"three"


@pytest.mark.parametrize("number", ["abc", "-1", "1.0", "007", "../../1", "\u0661", "9" * 400])
def test_weights_of_no_round_are_not_copied(tmp_path: Path, a: Path, b: Path, number: str) -> None:
    keep(attacked(b, 1), 3, b"three")
    index = attacked(b, 1).weights / "index.json"
    write_sealed(index, {number: "0" * 64, "3": file_sha256(index.with_name("round-000003.safetensors"))})
    merge([a, b], tmp_path / "out")
    assert weights.kept(attacked(tmp_path / "out", 1)) == [3]


def test_weights_of_a_cell_that_lost_are_not_those_of_the_winner(tmp_path: Path, a: Path) -> None:
    other = handmade.store(tmp_path / "b", small(0, 1), otherwise).root
    keep(attacked(a, 0), 1, b"of other pools")
    merge([a, other], a, "second")
    assert weights.kept(attacked(a, 0)) == []


def test_a_merge_into_one_of_its_stores_adds_the_others(a: Path, b: Path) -> None:
    done = merge([a, b], a)
    assert (done.cells, dict(done.copied)) == (6, {b: 2})
    assert len(Store(a).records()) == 6


class StoppedError(Exception):
    """Stands for a kill."""


def test_a_merge_stopped_anywhere_ends_when_run_again(
    tmp_path: Path, a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(attacked(b, 1), 3, b"three")
    keep(attacked(a, 1), 1, b"one")
    merge([a, b], tmp_path / "whole")
    expected, rename, moment = content(tmp_path / "whole"), Path.replace, 0
    while True:
        out, left = tmp_path / f"out-{moment}", moment

        def stopping(path: Path, target: Path) -> Path:
            nonlocal left
            if (left := left - 1) < 0:
                shutil.copy(path, path.with_name(f".{target.name}-left.part"))  # a kill cleans nothing up
                raise StoppedError
            return rename(path, target)

        monkeypatch.setattr(Path, "replace", stopping)
        try:
            merge([a, b], out)
        except StoppedError:
            monkeypatch.setattr(Path, "replace", rename)
        else:
            break
        for record in Store(out).records():
            assert record.cell_id in {cell.path.name for cell in (*cells(a), *cells(b))}, "what is there is whole"
        merge([a, b], out)
        assert content(out) == expected, f"stopped at write {moment}, it ends as if nothing had happened"
        moment += 1
    assert moment > 12, "every file that is written was a place to stop at"


def test_a_cell_that_is_worked_on_is_left_alone(tmp_path: Path, a: Path) -> None:
    out = Store(tmp_path / "out")
    with out.cell(cells(a)[0].path.name).locked(), pytest.raises(MergeError, match="another process works on"):
        merge([a], out.root)


def test_a_copy_is_checked(tmp_path: Path, a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "file_sha256", lambda path: "other")
    with pytest.raises(MergeError, match="changed while it was read; run the same command again"):
        merge([a], tmp_path / "out")
    assert Store(tmp_path / "out").records() == [], "what was not checked has no record"


def test_a_run_goes_on_with_what_two_machines_did(tmp_path: Path) -> None:
    for seed in (0, 1):
        tiny.run(tiny.suite(seeds=(seed,)), tmp_path / f"machine-{seed}")
    merge([tmp_path / "machine-0", tmp_path / "machine-1"], tmp_path / "out")
    watcher = tiny.Watcher()
    tiny.run(tiny.suite(seeds=(0, 1)), tmp_path / "out", watcher)
    assert (watcher.missing, watcher.cached) == ([], 4), "a run of the whole suite finds every cell done"
    for seed in (0, 1):
        tiny.same(tiny.suite(seeds=(seed,)), tmp_path / f"machine-{seed}", tmp_path / "out")


def test_merge_on_the_command_line(cli: Cli, tmp_path: Path, a: Path, b: Path) -> None:  # noqa: F811
    ended = cli("merge", a, b, "--into", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert f"{tmp_path / 'out'} holds 6 cells; 2 were the same in several stores" in ended.out
    other = handmade.store(tmp_path / "c", small(0, 1), otherwise).root
    assert "has different results in" in sentence(cli("merge", a, other, "--into", tmp_path / "two"))
    settled = cli("merge", a, other, "--into", tmp_path / "two", "--prefer", "second")
    assert settled.code == 0
    assert "the second one is taken" in settled.err
    cut(attacked(b, 2).completions_path)
    lacking = cli("merge", a, b, "--into", tmp_path / "three")
    assert lacking.code == 1, "a damaged cell without an intact copy is a failure"
    assert "no store has an intact copy of" in lacking.err
    assert "is no store" in sentence(cli("merge", a, tmp_path / "nowhere", "--into", tmp_path / "four"))
    assert cli("merge", a, b).code == 2
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("mine")
    assert "is no store" in sentence(cli("merge", a, "--into", tmp_path / "papers"))
