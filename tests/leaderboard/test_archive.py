"""An archive comes out as it went in, and what a stranger made of it is refused in a sentence that names the fault."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench import handmade
from tests.bench.handmade import Numbers
from thiefbench.leaderboard import archive as archives
from thiefbench.leaderboard.archive import WrongArchiveError, pack, packed_file, unpack
from thiefbench.leaderboard.cell_scores import Scores, trimmed
from thiefbench.leaderboard.entry import Entry, EntryError, write_entry
from thiefbench.leaderboard.manifest import Manifest, Numerics, Packed, SuiteName
from thiefbench.leaderboard.verification import _tables_worker, foreign_tables, table_reader
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import ROWS, CellDir, Store, file_sha256

Members = list[tuple[tarfile.TarInfo, bytes]]


@dataclass
class Made:
    """An entry with its store and its archive."""

    folder: Path
    store: Store
    weights: list[Path]
    failed: str = ""

    @property
    def cells(self) -> list[str]:
        return sorted(path.name for path in (self.store.root / "cells").iterdir())

    def entry(self) -> tuple[Entry, Path]:
        """What the store holds now, packed."""
        cells = []
        for name in self.cells:
            directory = self.store.cell(name)
            record = directory.read()
            assert record is not None
            cells.append(trimmed(record, "", False, file_sha256(directory.record_path)))
        path = self.folder / "mine.tar"
        manifest = Manifest(
            slug="mine", name="Mine", authors=("A. Author",), defense="logit", seeds=(0,), submitted=date(2026, 1, 1),
            suite=SuiteName(name="made", version=1, fingerprint="0" * 64), versions={}, machine={},
            numerics=Numerics(device="cpu", dtype="float32", threads=1), source_sha256="0" * 64,
            files={"scores.json": "0" * 64}, weights=tuple(map(packed_file, self.weights)),
            archive=pack(path, self.store, cells, self.weights),
        )  # fmt: skip
        return write_entry(self.folder / "entries" / "mine", manifest, Scores(cells=tuple(cells)), {}), path

    def unpacked(self) -> Store:
        entry, path = self.entry()
        return unpack(path, entry, self.folder / "unpacked")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Four finished cells and one that failed, and weights."""
    store = Store(tmp_path / "store")
    suite = handmade.suite(attacks=(handmade.TEXT,), defenses=("none", "logit"), seeds=(0,))
    for number, cell in enumerate(suite.cells("cpu", "float32", 1)):
        handmade.write(store, f"{number:016x}", cell, Numbers(asr=0.5, error="it gave up" if number == 4 else ""))
    content = b"weights"
    weights = tmp_path / f"net-{hashlib.sha256(content).hexdigest()}.safetensors"
    weights.write_bytes(content)
    return Made(tmp_path, store, [weights])


def test_what_went_in_comes_out(made: Made) -> None:
    entry, path = made.entry()
    store = unpack(path, entry, made.folder / "unpacked")
    assert store.records() == made.store.records(), "every record is there, the failed one too"
    for name in made.cells:
        one, other = made.store.cell(name), store.cell(name)
        assert one.record_path.read_bytes() == other.record_path.read_bytes()
        assert one.completions_path.exists() == other.completions_path.exists(), "a failed cell has none"
    assert (made.folder / "unpacked/weights" / made.weights[0].name).read_bytes() == b"weights"
    with tarfile.open(path) as opened:
        names = opened.getnames()
    assert len(names) == 2 * len(made.cells), "and any tar can open it"


def test_equal_content_gives_equal_bytes(made: Made) -> None:
    before = made.entry()[1].read_bytes()
    for path in made.store.root.rglob("*"):
        path.touch()
    assert made.entry()[1].read_bytes() == before, "neither time nor place is in the archive"


def test_what_is_packed_is_what_was_scored(made: Made) -> None:
    entry, path = made.entry()
    directory = made.store.cell(made.cells[0])
    directory.completions_path.write_bytes(b"other")
    with pytest.raises(EntryError, match=r"completions\.parquet changed while it was being packed; run the same"):
        pack(path, made.store, entry.cells, made.weights)
    directory.completions_path.unlink()
    with pytest.raises(EntryError, match=r"completions\.parquet is missing; run the same command again"):
        pack(path, made.store, entry.cells, made.weights)
    assert unpack(path, entry, made.folder / "unpacked").records(), "and the archive that was there stays"


# --- the file ---


def test_another_file_is_refused_before_it_is_read(made: Made) -> None:
    entry, path = made.entry()
    target = made.folder / "unpacked"
    with pytest.raises(WrongArchiveError, match=r"/nowhere\.tar is not a regular file; mine names mine\.tar"):
        unpack(made.folder / "nowhere.tar", entry, target)
    good = path.read_bytes()
    path.write_bytes(good[:-512])
    with pytest.raises(WrongArchiveError, match=r"is not the entry's archive: it has [\d,]+ bytes, not [\d,]+"):
        unpack(path, entry, target)
    path.write_bytes(b"\1" + good[1:])
    with pytest.raises(WrongArchiveError, match="is not the entry's archive: its SHA-256 differs"):
        unpack(path, entry, target)
    path.write_bytes(good)
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(EntryError, match="is not empty; name a new folder"):
        unpack(path, entry, target)


# --- its members ---


def rewritten(made: Made, change: Callable[[Members], Any]) -> tuple[Entry, Path]:
    """The archive with other members, and the entry that a stranger would write for it."""
    entry, path = made.entry()
    with tarfile.open(path) as opened:
        members = [(each, opened.extractfile(each).read()) for each in opened.getmembers()]  # type: ignore[union-attr]
    end = change(members)
    data = b"".join(info.tobuf() + content + bytes(-len(content) % 512) for info, content in members)
    path.write_bytes(data + (end if isinstance(end, bytes) else bytes(1024)))
    archive = Packed(name=path.name, sha256=file_sha256(path), bytes=path.stat().st_size)
    return Entry(entry.folder, entry.manifest.model_copy(update={"archive": archive}), entry.cells), path


def renamed(to: str, place: int = 1) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[place][0].name = to

    return change


def typed(kind: bytes, target: str = "") -> Callable[[Members], None]:
    def change(members: Members) -> None:
        info = members[1][0]
        info.type, info.linkname, info.size = kind, target, 0
        members[1] = (info, b"")

    return change


def sized(size: int) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        members[1][0].size = size

    return change


def owned(members: Members) -> None:
    members[1][0].uname = "me"


def doubled(members: Members) -> None:
    members.insert(1, members[0])


def extra(members: Members) -> None:
    members.append((members[0][0].replace(name="cells/notes.txt", deep=True), members[0][1]))


def lacking(members: Members) -> None:
    del members[-1]


def edited(members: Members) -> None:
    members[1] = (members[1][0], b"\1" + members[1][1][1:])


def padded(members: Members) -> bytes:
    return bytes(1024) + b"more"


COMPLETIONS = "cells/0000000000000000/completions.parquet"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed("../../evil"), f"the archive holds '../../evil' where {COMPLETIONS} is expected"),
        (renamed("/etc/passwd"), f"the archive holds '/etc/passwd' where {COMPLETIONS} is expected"),
        (renamed("x" * 90), f"the archive holds '{'x' * 90}' where"),
        (typed(tarfile.SYMTYPE, "/etc/passwd"), f"{COMPLETIONS} in the archive is not a plain file"),
        (typed(tarfile.LNKTYPE, "/etc/passwd"), f"{COMPLETIONS} in the archive is not a plain file"),
        (typed(tarfile.CHRTYPE), f"{COMPLETIONS} in the archive is not a plain file"),
        (typed(tarfile.FIFOTYPE), f"{COMPLETIONS} in the archive is not a plain file"),
        (typed(tarfile.GNUTYPE_SPARSE), f"{COMPLETIONS} in the archive is not a plain file"),
        (sized(1 << 32), f"{COMPLETIONS} in the archive has 4,294,967,296 bytes, and at most 268,435,456 are allowed"),
        (sized(1 << 20), f"the archive ends within {COMPLETIONS}"),
        (owned, f"{COMPLETIONS} in the archive has a header that thiefbench leaderboard submit does not write"),
        (doubled, f"holds 'cells/0000000000000000/record.json', for the second time, where {COMPLETIONS} is"),
        (extra, "the archive holds 'cells/notes.txt' after its last member, weights/net-"),
        (padded, "the archive holds something other than an end after its last member"),
        (lacking, "the archive ends where weights/net-"),
        (edited, f"{COMPLETIONS} in the archive is not the one that the entry names: its SHA-256 differs"),
    ],
)
def test_every_strange_member_is_refused(made: Made, change: Callable[[Members], Any], said: str) -> None:
    entry, path = rewritten(made, change)
    with pytest.raises(EntryError, match=re.escape(said)):
        unpack(path, entry, made.folder / "a/b/unpacked")
    outside = [found for found in made.folder.rglob("*") if found.name in ("evil", "passwd")]
    assert not outside, "nothing is written anywhere else"


def test_nothing_is_packed_twice(made: Made) -> None:
    entry, path = made.entry()
    with pytest.raises(EntryError, match=r"the entry lists cells/0{16}/record\.json twice"):
        pack(path, made.store, [entry.cells[0], entry.cells[0]])


# --- records and tables ---


def hold(directory: CellDir, completions: bytes) -> None:
    """Put other completions into a cell, as one who also rewrites its record would."""
    record = directory.read()
    assert record is not None
    directory.completions_path.write_bytes(completions)
    directory.write(record.model_copy(update={"completions_sha256": file_sha256(directory.completions_path)}))


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def plain() -> pa.Table:
    """One stored completion."""
    return pq.read_table(io.BytesIO(handmade.completions(10, ("",))))


def test_a_record_of_another_cell_is_refused(made: Made) -> None:
    one, other = (made.store.cell(name) for name in made.cells[:2])
    entry, path = made.entry()
    other.record_path.write_bytes(one.record_path.read_bytes())
    sha256 = file_sha256(one.record_path)
    cells = [c.model_copy(update={"record_sha256": sha256}) if c.cell_id == other.path.name else c for c in entry.cells]
    lying = Entry(
        entry.folder, entry.manifest.model_copy(update={"archive": pack(path, made.store, cells, made.weights)}), cells
    )
    with pytest.raises(
        EntryError, match=f"cells/{other.path.name}/record.json in the archive is the record of another"
    ):
        unpack(path, lying, made.folder / "unpacked")


@pytest.mark.parametrize("content", [b"{}", b"[" * 100_000, b'{"sha256": "", "content": {}}', b"\xff"])
def test_what_is_no_record_is_refused(made: Made, content: bytes) -> None:
    entry, path = made.entry()
    first = made.store.cell(made.cells[0])
    first.record_path.write_bytes(content)
    sha256 = file_sha256(first.record_path)
    cells = [entry.cells[0].model_copy(update={"record_sha256": sha256}), *entry.cells[1:]]
    lying = Entry(
        entry.folder, entry.manifest.model_copy(update={"archive": pack(path, made.store, cells, made.weights)}), cells
    )
    with pytest.raises(EntryError, match=r"record\.json in the archive is not a record of this version"):
        unpack(path, lying, made.folder / "unpacked")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: b"nothing", "is not a parquet file"),
        (lambda: handmade.completions(10, ("",))[:-20], "is not a parquet file"),
        (lambda: parquet(plain().drop_columns(["score"])), "does not have the columns of stored completions: score"),
        (
            lambda: parquet(plain().append_column("label", pa.array([1]))),
            "does not have the columns of stored completions: label",
        ),
        (
            lambda: parquet(plain().set_column(0, "phase", pa.array(["eval"]))),
            "does not have the columns of stored completions: phase",
        ),
        (
            lambda: parquet(plain().select([*ROWS.names[1:], ROWS.names[0]])),
            "does not have the columns of stored completions: their order",
        ),
    ],
)
def test_tables_of_another_form_are_refused(made: Made, content: Callable[[], bytes], said: str) -> None:
    hold(made.store.cell(made.cells[0]), content())
    with pytest.raises(EntryError, match=f"cells/0{{16}}/completions.parquet in the archive {said}"):
        made.unpacked()


def test_columns_are_those_of_the_cell_s_swarm() -> None:
    def further(**swarm: Any) -> list[str]:
        return foreign_tables.columns_of({"swarm": swarm}).names[len(ROWS) :]

    assert further() == further(truth="public", reward="rule") == []
    assert further(truth="sender") == ["answer", "tests"]
    assert further(reward="mixed") == ["rule_reward"]
    assert further(truth="sender", reward="judge") == ["answer", "tests", "rule_reward"]
    assert foreign_tables.columns_of({"swarm": "none"}) == foreign_tables.columns_of({}) == ROWS


def many(rows: int) -> bytes:
    return parquet(pa.concat_tables([plain()] * rows))


def test_a_table_of_too_many_rows_is_not_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_tables, "TABLE_ROWS", 100)
    hold(made.store.cell(made.cells[1]), many(101))
    with pytest.raises(
        EntryError, match=r"completions\.parquet in the archive has 101 rows, and at most 100 are allowed"
    ):
        made.unpacked()


def test_a_table_that_says_much_of_itself_is_not_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_tables, "TABLE_BYTES", 200)
    with pytest.raises(EntryError, match=r"claims [\d,]+ bytes, and at most 200 are allowed"):
        made.unpacked()


def repeated(size: int, rows: int) -> bytes:
    """A small file whose one long text, said once, fills memory when it is read: its footer says little of itself."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    table = pa.concat_tables([plain()] * rows)
    table = table.set_column(table.schema.get_field_index("text"), "text", text).replace_schema_metadata(None)
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, store_schema=False, compression="zstd") as writer:
        honest = pq.ParquetFile(io.BytesIO(handmade.completions(10, ("",)))).metadata.metadata
        writer.add_key_value_metadata({"ARROW:schema": honest[b"ARROW:schema"].decode()})
        writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize(("size", "rows"), [(1 << 20, 300), (400_000, 1000)])
def test_a_bomb_is_refused_by_what_its_cell_can_have(made: Made, size: int, rows: int) -> None:
    bomb = repeated(size, rows)
    assert len(bomb) < size, "hundreds of megabytes of text lie in some kilobytes"
    hold(made.store.cell(made.cells[1]), bomb)
    with pytest.raises(EntryError, match=r"holds a text of [\d,]+ bytes, and at most [\d,]+ are allowed"):
        made.unpacked()


def test_a_table_that_grows_when_it_is_read_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(made.store.cell(made.cells[1]), repeated(10_000, 2000))
    monkeypatch.setattr(foreign_tables, "TABLE_BYTES", 1_000_000)
    with pytest.raises(EntryError, match=r"takes more than [\d,]+ bytes in memory, and at most 1,000,000 are allowed"):
        made.unpacked()


def test_the_suite_s_shape_counts_where_a_record_claims_another(made: Made) -> None:
    directory = made.store.cell(made.cells[1])
    record = directory.read()
    assert record is not None
    spec = CellSpec.from_dict(record.parameters)
    directory.write(record.model_copy(update={"cell": record.cell | {"rounds": 10**6}}))
    hold(directory, repeated(100_000, 1000))
    entry, path = made.entry()
    with pytest.raises(EntryError, match=r"holds a text of [\d,]+ bytes"):
        unpack(path, entry, made.folder / "unpacked", [spec] * len(entry.cells))


def test_a_reader_that_runs_out_of_memory_ends_alone(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(_tables_worker, "__file__", str(dying))
    table_reader.close()
    with pytest.raises(EntryError, match=r"completions\.parquet in the archive cannot be read in [\d,]+ MiB and 120 s"):
        made.unpacked()


def test_the_reader_s_memory_follows_from_the_limit() -> None:
    assert _tables_worker.memory_of(4 << 20) < 512 << 20 < _tables_worker.memory_of(1 << 30)


def test_the_reader_starts_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-P", _tables_worker.__file__, "9"]
    loaded = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stderr
    assert "thiefbench.suite.store.tables" in loaded
    assert "torch" not in loaded, "it would take seconds for every archive"


def test_the_caps_hold_for_what_is_packed_too(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(archives._MOST, "completions.parquet", 100)
    with pytest.raises(EntryError, match=r"completions\.parquet has [\d,]+ bytes, and at most 100 are allowed"):
        made.entry()
