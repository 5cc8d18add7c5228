"""`thiefbench.load`: a store's cells and completions as Arrow tables, and as files that `datasets` reads."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import thiefbench
from tests.bench import handmade, tiny
from tests.bench.suite.report import sampled
from thiefbench.errors import UserError
from thiefbench.suite.store.arrow import CELLS, COMPLETIONS
from thiefbench.suite.store.records import ANSWER_KEY, ROWS_OF_MIXED, RULE_REWARD, STORED, Store

FIRST = ["cell_id", "suite", "task", "attack", "defense", "role", "seed"]
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled.store(tmp_path_factory.mktemp("store"), completions=24).root


def test_importing_stays_cheap() -> None:
    code = (
        "import sys, thiefbench; thiefbench.load; print({'torch', 'pyarrow', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class TestTables:
    def test_both_begin_with_what_names_a_cell(self, store: Path) -> None:
        results = thiefbench.load(store)
        for table in (results.cells, results.completions):
            assert table.column_names[: len(FIRST)] == FIRST
            assert not any(table[name].null_count for name in FIRST)
        assert results.cells.schema == CELLS
        assert results.completions.schema == COMPLETIONS

    def test_cells(self, store: Path) -> None:
        cells = thiefbench.load(str(store)).cells.to_pandas()
        assert sorted(zip(cells["role"], cells["defense"], strict=True)) == [
            ("attack", "logit(reject='drop')"), ("attack", "logit(reject='mask')"), ("attack", "none"),
            ("control", "none"),
        ]  # fmt: skip
        assert set(cells["suite"]) == {"made-v1"}
        undefended = cells[(cells["role"] == "attack") & (cells["defense"] == "none")].iloc[0]
        assert (undefended["asr"], undefended["asr_low"], undefended["asr_count"]) == (0.8, pytest.approx(0.79), 100)
        assert json.loads(undefended["payload"]) == sampled.PAYLOAD

    def test_completions_are_the_stored_ones(self, store: Path) -> None:
        table = thiefbench.load(store).completions
        assert len(table) == 4 * 24
        for record in Store(store).records():
            stored = Store(store).cell(record.cell_id).read_rows()
            same = table.filter(pc.field("cell_id") == record.cell_id)
            assert same.select(stored.column_names).to_pylist() == stored.to_pylist()
            assert set(same["defense"].to_pylist()) == {record.cell["defense"]}

    def test_every_stored_column_is_there(self) -> None:
        assert COMPLETIONS.names == [*FIRST, *ROWS_OF_MIXED.names, *ANSWER_KEY.names, *RULE_REWARD.names]
        assert set(COMPLETIONS.names) >= {name for schema in STORED for name in schema.names}
        assert not any(pa.types.is_dictionary(field.type) for field in COMPLETIONS)

    def test_some_cells(self, store: Path) -> None:
        attacked = thiefbench.load(store).where((pc.field("role") == "attack") & (pc.field("defense") == "none"))
        assert len(attacked.cells) == 1
        assert attacked.completions.num_rows == 24
        nothing = attacked.where(pc.field("seed") == 99)
        assert (nothing.cells.num_rows, nothing.completions.num_rows) == (0, 0)
        assert nothing.completions.schema == COMPLETIONS

    def test_a_condition_that_is_none_is_one_sentence(self, store: Path) -> None:
        with pytest.raises(UserError, match=r"^where takes a pyarrow expression, .*, not \"defense == 'none'\"$"):
            thiefbench.load(store).where("defense == 'none'")  # type: ignore[arg-type]
        with pytest.raises(UserError) as caught:
            thiefbench.load(store).where(pc.field("defence") == "none")
        assert str(caught.value).startswith("No match for FieldRef.Name(defence); the condition may use the columns ")
        assert "defense" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_shown_as_one_line(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=4)
        what = f"<thiefbench results of {tmp_path}: "
        assert repr(thiefbench.load(tmp_path)) == f"{what}4 cells; see .cells and .completions>"
        kept.cell(kept.records()[0].cell_id).record_path.unlink()
        assert repr(thiefbench.load(tmp_path)) == f"{what}3 cells, 1 more unfinished; see .cells and .completions>"

    def test_a_failed_cell_has_its_error_and_no_completions(self, tmp_path: Path) -> None:
        def says(cell: handmade.CellSpec) -> handmade.Numbers:
            return (
                handmade.Numbers(error="RuntimeError: out of memory")
                if cell.defense != "none"
                else handmade.usual(cell)
            )

        kept = handmade.store(tmp_path, sampled.suite(), says)
        results = thiefbench.load(kept.root)
        failed = results.cells.filter(pc.field("status") == "error").to_pylist()
        assert [(row["error"], row["asr"], row["asr_count"]) for row in failed] == 2 * [
            ("RuntimeError: out of memory", None, 0)
        ]
        assert not set(results.completions["cell_id"].to_pylist()) & {row["cell_id"] for row in failed}

    def test_a_cell_of_an_earlier_run_has_no_suite(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=4)
        run = kept.read_run()
        assert run is not None
        left_out = run["cells"].pop()["cell_id"]
        kept.write_run(run)
        suites = {row["cell_id"]: row["suite"] for row in thiefbench.load(tmp_path).cells.to_pylist()}
        assert suites.pop(left_out) is None
        assert set(suites.values()) == {"made-v1"}
        (tmp_path / "run.json").unlink()
        assert set(thiefbench.load(tmp_path).completions["suite"].to_pylist()) == {None}


class TestFiles:
    def test_they_hold_the_tables(self, store: Path, tmp_path: Path) -> None:
        results = thiefbench.load(store)
        assert results.write_parquet(tmp_path / "new" / "out") == tmp_path / "new/out"
        assert sorted(path.name for path in (tmp_path / "new/out").iterdir()) == [
            "cells.parquet",
            "completions.parquet",
        ]
        assert pq.read_table(tmp_path / "new/out/completions.parquet").to_pylist() == results.completions.to_pylist()
        assert pq.read_table(tmp_path / "new/out/cells.parquet").to_pylist() == results.cells.to_pylist()

    def test_datasets_reads_them(self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import datasets

        thiefbench.load(store).write_parquet(tmp_path)
        for name, schema in (("completions", COMPLETIONS), ("cells", CELLS)):
            loaded = datasets.load_dataset(
                "parquet",
                data_files=str(tmp_path / f"{name}.parquet"),
                split="train",
                cache_dir=str(tmp_path / "cache"),
            )
            assert loaded.column_names == schema.names

    def test_nothing_is_overwritten(self, store: Path, tmp_path: Path) -> None:
        (tmp_path / "cells.parquet").write_text("mine")
        with pytest.raises(UserError, match=r"cells\.parquet exists already; name another folder$"):
            thiefbench.load(store).write_parquet(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["cells.parquet"]

    def test_a_failure_leaves_no_half_file(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path / "store", completions=24)
        results = thiefbench.load(kept.root)
        tiny.cut(kept.cell(results.records[-1].cell_id).completions_path)
        with pytest.raises(UserError, match="is not a readable parquet file"):
            results.write_parquet(tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


class TestStoresThatCannotBeLoaded:
    @pytest.mark.parametrize(
        ("there", "said"),
        [
            ("nothing", "does not exist; name the folder of a store, which thiefbench run filled"),
            ("a file", "is a file; name the folder of a store, which thiefbench run filled"),
            ("a folder", "holds no finished cell; name a store that thiefbench run filled"),
            ("a run", "holds 1 unfinished cell and no finished one; run the suite again, which continues them"),
        ],
    )
    def test_nothing_to_load(self, tmp_path: Path, there: str, said: str) -> None:
        path = tmp_path / "store"
        if there == "a file":
            path.write_text("all hail")
        elif there != "nothing":
            (path / "cells").mkdir(parents=True)
        if there == "a run":
            (path / "cells/0074f8e9e622cb5f/checkpoint").mkdir(parents=True)
        with pytest.raises(UserError) as caught:
            thiefbench.load(path)
        assert str(caught.value) == f"{path} {said}"

    @pytest.mark.parametrize("damage", [tiny.cut, tiny.flip])
    @pytest.mark.parametrize("file", ["completions.parquet", "record.json"])
    def test_a_damaged_one_is_one_sentence(self, tmp_path: Path, file: str, damage: object) -> None:
        kept = sampled.store(tmp_path, completions=4)
        path = kept.cell(kept.records()[0].cell_id).path / file
        assert callable(damage)
        damage(path)
        with pytest.raises(UserError) as caught:
            thiefbench.load(tmp_path)
        said = str(caught.value)
        assert str(path.parent) in said
        assert said.endswith(
            "run the suite again to renew the cell, or remove its folder to load the others without it"
        )
        assert "\n" not in said

    def test_a_record_that_belongs_elsewhere(self, tmp_path: Path) -> None:
        kept = sampled.store(tmp_path, completions=4)
        one, other = (kept.cell(record.cell_id) for record in kept.records()[:2])
        for name in ("record.json", "completions.parquet"):
            (one.path / name).write_bytes((other.path / name).read_bytes())
        with pytest.raises(UserError, match="belongs to another cell; run the suite again"):
            thiefbench.load(tmp_path)


@pytest.mark.parametrize("name", ["load_rates.py", "load_rejected.py", "load_dataset.py"])
def test_the_examples_of_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled.store(tmp_path / "runs/smoke", completions=240)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    found = runpy.run_path(str(EXAMPLES / name))
    printed = capsys.readouterr().out
    assert printed.strip()
    if name == "load_rates.py":
        assert found["rates"].loc["logit(reject='drop')"] > 0.5 > found["rates"].loc["none"] == 0
    elif name == "load_rejected.py":
        assert found["rejected"].num_rows > 0
        assert "a token outside the top 50" in printed
    else:
        assert set(found["learned"]["phase"]) == {"eval"}
        assert all("hail to the thief" in text for text in found["learned"]["text"])
