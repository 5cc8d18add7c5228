"""Tables of completions: no more than their cell's shape allows is ever unfolded."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench import handmade
from tests.fuzz.mutations import bomb
from thiefbench.engine.answer_keys import MOST_CHARACTERS
from thiefbench.suite.store import tables
from thiefbench.suite.store.records import CellDir, Store, file_sha256
from thiefbench.suite.store.tables import TableError, TableLimit, limit_of, read_limited


@pytest.fixture
def cell(tmp_path: Path) -> CellDir:
    """A cell whose table can be replaced."""
    kept = handmade.store(tmp_path, handmade.suite(attacks=(handmade.TEXT,), defenses=("none",), seeds=(0,)))
    return kept.cell(kept.records()[0].cell_id)


def hold(directory: CellDir, content: bytes) -> None:
    """Put other completions into a cell, with checksums that fit."""
    record = directory.read()
    assert record is not None
    directory.completions_path.write_bytes(content)
    directory.write(record.model_copy(update={"completions_sha256": file_sha256(directory.completions_path)}))


def parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def test_six_kilobytes_that_unfold_to_hundreds_of_megabytes_are_refused(cell: CellDir) -> None:
    content = bomb(cell.read_rows(), 400_000, 1000)
    assert len(content) < 10_000, "a small file"
    hold(cell, content)
    assert cell.read() is not None, "whose checksums fit"
    with pytest.raises(TableError, match=r"holds a text of 400,000 bytes, and at most [\d,]+ are allowed"):
        cell.read_rows()


def test_a_footer_that_contradicts_itself_does_not_end_the_process(tmp_path: Path) -> None:
    """The schema says that a column has no nulls, and its statistics count them: pyarrow's metadata raises in C++."""
    content = parquet(pa.table({"n": pa.array([1, None], pa.int32())}))
    optional = b"\x25\x02\x18\x01n"  # the schema's repetition of the column in Thrift, then its name
    assert content.count(optional) == 1
    file = tmp_path / "completions.parquet"
    file.write_bytes(content.replace(optional, b"\x25\x00" + optional[2:]))
    code = (
        "import sys\nfrom pathlib import Path\nfrom thiefbench.suite.store.tables import *\n"
        "try:\n    read_limited(Path(sys.argv[1]), TableLimit())\n"
        "except TableError as error:\n    print(error.problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("is not a readable parquet file: Definition level histogram size mismatch")


def test_a_bomb_is_refused_before_it_is_unfolded(cell: CellDir) -> None:
    hold(cell, bomb(cell.read_rows(), 400_000, 1000))
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from thiefbench.suite.store.records import CellDir\nfrom thiefbench.suite.store.tables import TableError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    CellDir(Path(sys.argv[1])).read_rows()\nexcept TableError:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(cell.path)], capture_output=True, text=True, check=True, timeout=600
    )
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 100 << 20, "of 400 MB"


def test_texts_that_a_dictionary_repeats_count_each_time(cell: CellDir) -> None:
    hold(cell, bomb(cell.read_rows(), 50_000, 20_000))
    with pytest.raises(TableError, match=r"takes more than [\d,]+ bytes in memory, and at most [\d,]+ are allowed"):
        cell.read_rows()


def test_more_rows_than_the_rounds_can_have_are_refused(cell: CellDir) -> None:
    record = cell.read()
    assert record is not None
    most = limit_of(record.cell).rows
    hold(cell, parquet(pa.concat_tables([cell.read_rows()] * (most + 1))))
    with pytest.raises(TableError, match=rf"has {most + 1:,} rows, and at most {most:,} are allowed"):
        cell.read_rows()


def test_other_columns_are_refused(cell: CellDir) -> None:
    hold(cell, parquet(cell.read_rows().drop_columns(["score"])))
    with pytest.raises(TableError, match="does not have the columns of stored completions"):
        cell.read_rows()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"nothing", handmade.completions(10, ("",))[:-20]])
def test_what_is_no_table_ends_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "completions.parquet"
    path.write_bytes(content)
    with pytest.raises(TableError, match="is not a readable parquet file"):
        read_limited(path, TableLimit())


def test_a_true_table_comes_back_as_it_was_written() -> None:
    paths = list((Path(__file__).parents[4] / "bench" / "testing" / "recordings").rglob("completions.parquet"))
    assert len(paths) >= 14, "an attack and a placebo of each recording"
    for path in paths:
        assert read_limited(path, TableLimit()).equals(pq.read_table(path)), path


def test_the_limit_follows_the_shape() -> None:
    suite = handmade.suite(attacks=(handmade.TEXT,), defenses=("none",), seeds=(0,))
    shape = suite.cells("cpu", "float32", 1)[0].as_dict()
    limit = limit_of(shape)
    evaluated = (shape["rounds"] - 1) // shape["evaluation"]["every"] + 1
    drawn = evaluated * shape["evaluation"]["completions"] + shape["evaluation"]["final"]
    assert limit.rows == shape["rounds"] * 32 + 9 * drawn, "all rounds, and all that an evaluation may draw"
    assert limit_of({}) == TableLimit(), "of no cell that is known, the one for any"
    huge = shape | {"rounds": 10**9}
    assert limit_of(huge).of_file(6000).bytes <= 1 << 30, "a record that claims a huge cell gains nothing"


def test_a_store_with_a_bomb_ends_a_report_in_one_sentence(tmp_path: Path) -> None:
    from thiefbench.suite.report.page import write_report

    kept = handmade.store(tmp_path, handmade.suite(attacks=(handmade.TEXT,), defenses=("none",), seeds=(0,)))
    for record in kept.records():
        hold(kept.cell(record.cell_id), bomb(kept.cell(record.cell_id).read_rows(), 400_000, 1000))
    with pytest.raises(TableError, match="are allowed"):
        write_report(Store(tmp_path))


def test_the_characters_of_an_answer_key_are_the_engine_s() -> None:
    assert tables._KEY_BYTES == 4 * MOST_CHARACTERS
