"""Records and the store: what is written comes back, and what is damaged is never read."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from thiefbench.engine.round_record import CompletionRow
from thiefbench.suite.store import records
from thiefbench.suite.store.records import (
    ANSWER_KEY,
    ROWS,
    ROWS_OF_MIXED,
    RULE_REWARD,
    BrokenRecordError,
    CellDir,
    Point,
    Record,
    Score,
    Store,
    identify,
    rounds_taken,
    rows_table,
    table_rows,
    write_atomically,
)
from thiefbench.tasks.answer_keys import AnswerKey

ROW = CompletionRow(
    phase="train", round=1, node=0, sender="00ab", item_id="train-1", group=0, place=1, ids=(5, 6, 7), text="a b c",
    ended=True, malicious=False, payload=False, reward=1.0, refused="", action="accept", score=None, reason="",
    token_weights=None, advantage=0.25, outcome=None,
)  # fmt: skip
FULL = replace(
    ROW, phase="eval", round=7, malicious=True, payload=True, reward=0.1, refused="too long", action="drop", score=3.5,
    reason='says "no" — ünïcode', token_weights=(0.0, 0.5, 1 / 3), advantage=-1.7, outcome=1.0, text="<think>\n\x00 ",
)  # fmt: skip
EMPTY = replace(ROW, ids=(), text="", ended=False, token_weights=(), score=0.0, outcome=0.0)


def record(**changes: Any) -> Record:
    given: dict[str, Any] = {
        "cell_id": "0123456789abcdef", "cell": {"task": "t", "seed": 0, "swarm": {"group": 4}},
        "identity": {"weights": "w"},
        "status": "ok", "scores": {"asr": Score(value=0.25, low=0.1, high=0.5, count=16)},
        "curves": {"eval_asr": [Point(round=0, value=None), Point(round=3, value=1 / 3, low=0.0, high=0.9)]},
        "payload": {"phrase": "Ash oak"}, "seconds": {"sample": 1.5}, "provenance": {"git_commit": None},
    }  # fmt: skip
    return Record(**(given | changes))


@pytest.fixture
def cell(tmp_path: Path) -> CellDir:
    """A finished cell on disk."""
    directory = Store(tmp_path / "store").cell("0123456789abcdef")
    directory.write(record(completions_sha256=directory.write_rows(rows_table([ROW, FULL, EMPTY]))))
    return directory


def test_a_record_comes_back_as_written(cell: CellDir) -> None:
    found = cell.read()
    assert found is not None
    assert found == record(completions_sha256=found.completions_sha256)
    assert found.curves["eval_asr"][0].value is None, "None stays None"
    assert found.curves["eval_asr"][1].value == 1 / 3, "numbers keep every bit"


def test_a_cell_without_a_record_is_none(tmp_path: Path) -> None:
    assert Store(tmp_path).cell("0" * 16).read() is None


def test_an_error_needs_no_completions(tmp_path: Path) -> None:
    directory = CellDir(tmp_path / "cell")
    directory.write(record(status="error", error="ValueError: no", scores={}))
    found = directory.read()
    assert found is not None
    assert (found.status, found.error, found.scores) == ("error", "ValueError: no", {})


def test_a_record_is_readable_json_with_the_promised_fields(cell: CellDir) -> None:
    plain = json.loads(cell.record_path.read_text())["content"]
    promised = {"schema_version", "cell", "status", "scores", "curves", "seconds", "provenance", "completions_sha256"}
    assert promised <= set(plain)
    assert plain["scores"]["asr"] == {"value": 0.25, "low": 0.1, "high": 0.5, "count": 16}


def truncated(cell: CellDir) -> None:
    data = cell.record_path.read_bytes()
    cell.record_path.write_bytes(data[: len(data) // 2])


def emptied(cell: CellDir) -> None:
    cell.record_path.write_bytes(b"")


def edited(cell: CellDir) -> None:
    text = cell.record_path.read_text()
    assert "0.25" in text
    cell.record_path.write_text(text.replace("0.25", "0.05"))


def edited_unseen(cell: CellDir) -> None:
    envelope = json.loads(cell.record_path.read_text())
    envelope["content"]["cell"]["seed"] = 1
    cell.record_path.write_text(json.dumps(envelope))


def unsigned(cell: CellDir) -> None:
    envelope = json.loads(cell.record_path.read_text())
    del envelope["sha256"]
    cell.record_path.write_text(json.dumps(envelope))


def another_field(cell: CellDir) -> None:
    envelope = json.loads(cell.record_path.read_text())
    envelope["content"]["extra"] = 1
    canonical = json.dumps(envelope["content"], sort_keys=True, separators=(",", ":")).encode()
    cell.record_path.write_text(json.dumps(envelope | {"sha256": hashlib.sha256(canonical).hexdigest()}))


def no_record(cell: CellDir) -> None:
    cell.record_path.write_text("[1, 2]")


def binary(cell: CellDir) -> None:
    cell.record_path.write_bytes(b"\xff\x00\xfe" * 50)


def truncated_rows(cell: CellDir) -> None:
    data = cell.completions_path.read_bytes()
    cell.completions_path.write_bytes(data[:-10])


def one_bit_of_the_rows(cell: CellDir) -> None:
    data = bytearray(cell.completions_path.read_bytes())
    data[len(data) // 2] ^= 1
    cell.completions_path.write_bytes(bytes(data))


def missing_rows(cell: CellDir) -> None:
    cell.completions_path.unlink()


def other_rows(cell: CellDir) -> None:
    cell.write_rows(rows_table([replace(ROW, reward=0.0)]))


DAMAGES = [
    truncated, emptied, edited, edited_unseen, unsigned, another_field, no_record, binary,
    truncated_rows, one_bit_of_the_rows, missing_rows, other_rows,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_damaged_is_not_read(cell: CellDir, damage: Callable[[CellDir], None]) -> None:
    damage(cell)
    with pytest.raises(BrokenRecordError) as error:
        cell.read()
    assert str(cell.path) in str(error.value), "the file is named"
    assert "\n" not in str(error.value), "in one sentence"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_store_leaves_damaged_records_out(cell: CellDir, damage: Callable[[CellDir], None]) -> None:
    store = Store(cell.path.parent.parent)
    assert [found.cell_id for found in store.records()] == ["0123456789abcdef"]
    damage(cell)
    assert store.records() == []


def test_set_aside_keeps_the_files_and_makes_room(cell: CellDir) -> None:
    before = {path.name: path.read_bytes() for path in cell.path.iterdir()}
    with cell.locked():
        aside = cell.set_aside()
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before, "nothing is thrown away"
    assert cell.read() is None, "the cell is free again"
    assert aside.name == "0123456789abcdef.broken-1"
    assert Store(cell.path.parent.parent).records() == [], "what is set aside is no record"
    cell.write(record(status="error"))
    assert cell.set_aside().name == "0123456789abcdef.broken-2", "an older one set aside stays"
    assert (aside / "record.json").read_bytes() == before["record.json"]


def test_what_a_kill_leaves_is_swept(cell: CellDir) -> None:
    for folder in (cell.path, cell.path / "weights", cell.checkpoint):
        folder.mkdir(exist_ok=True)
        (folder / f".x.json-a1b2{records.HALF_WRITTEN}").write_bytes(b"half")
        (folder / "kept").write_bytes(b"whole")
    before = {path for path in cell.path.rglob("*") if path.suffix != records.HALF_WRITTEN}
    gone = {cell.checkpoint, cell.checkpoint / "kept"}
    cell.sweep()
    assert set(cell.path.rglob("*")) == before - gone, "a finished cell needs no checkpoint, and nobody half a file"
    assert cell.leftovers() == []


@pytest.mark.parametrize("status", ["none", "error"])
def test_a_cell_without_scores_keeps_its_checkpoint(tmp_path: Path, status: str) -> None:
    directory = CellDir(tmp_path / "cell")
    directory.checkpoint.mkdir(parents=True)
    if status == "error":
        directory.write(record(status="error"))
    directory.sweep()
    assert directory.checkpoint.exists(), "it goes on from there"


def test_a_half_written_file_is_one_that_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.extend(records.half_written(tmp_path)))
    write_atomically(tmp_path / "file.json", b"new")
    assert len(seen) == 1, "while it is written it has the name that a sweep looks for"
    assert records.half_written(tmp_path) == []


def test_remembering_a_run_clears_the_store_s_own_leftovers(tmp_path: Path) -> None:
    (tmp_path / f".run.json-a1b2{records.HALF_WRITTEN}").write_bytes(b"half")
    Store(tmp_path).write_run({"title": "smoke-v1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "run.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new" * 1000)
    assert path.read_bytes() == b"old", "at every moment a file holds its old content or all of the new"
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"], "no half-written file is left behind"


def test_a_write_that_runs_out_of_space_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    opened = os.fdopen

    def small(descriptor: int, mode: str) -> Any:
        file = opened(descriptor, mode)

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def fileno(self) -> int:
                return file.fileno()

            def write(self, data: bytes) -> None:
                file.write(data[:10])
                raise OSError(errno.ENOSPC, "No space left on device")

        return Full()

    monkeypatch.setattr(os, "fdopen", small)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_a_killed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_rows_come_back_as_written() -> None:
    rows = [ROW, FULL, EMPTY]
    assert list(table_rows(rows_table(rows))) == rows
    keyed = [replace(ROW, answer_key=AnswerKey("5", "")), replace(FULL, answer_key=AnswerKey("f", "[[1], 2]")), ROW]
    assert list(table_rows(rows_table(keyed))) == keyed, "with the answers and tests that came with them"
    judged = [replace(ROW, rule_reward=0.5), replace(FULL, rule_reward=0.0), replace(keyed[0], rule_reward=1.0)]
    assert list(table_rows(rows_table(judged))) == judged, "with the rule's rewards beside a judge's"
    assert list(table_rows(rows_table([]))) == []


def test_rows_come_back_from_disk_as_written(cell: CellDir) -> None:
    back = list(table_rows(cell.read_rows()))
    assert back == [ROW, FULL, EMPTY]
    assert back[0].score is None, "no score is None, not NaN"
    assert back[0].outcome is None, "no outcome is None, not NaN"
    assert back[0].token_weights is None, "no weights are None"
    assert back[2].token_weights == (), "and no tokens an empty tuple"
    assert all(type(token) is int for token in back[0].ids)


def test_nan_stays_nan_and_is_not_none() -> None:
    (back,) = table_rows(rows_table([replace(ROW, score=float("nan"), outcome=None)]))
    assert back.score is not None
    assert math.isnan(back.score)
    assert back.outcome is None


def test_the_stored_columns_are_the_row_s_fields() -> None:
    expected = [*ROWS_OF_MIXED.names, "answer_key", *RULE_REWARD.names]
    assert expected == [field.name for field in fields(CompletionRow)]
    assert ANSWER_KEY.names == [field.name for field in fields(AnswerKey)]
    assert ROWS_OF_MIXED.names[: len(ROWS.names)] == ROWS.names, "what all swarms have comes first"


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    digests = {CellDir(tmp_path / name).write_rows(rows_table([ROW, FULL])) for name in "ab"}
    assert len(digests) == 1, "equal tables give equal files"
    parts = pa.concat_tables([rows_table([ROW]), rows_table([FULL])])
    digests.add(CellDir(tmp_path / "c").write_rows(parts))
    assert len(digests) == 1, "however many parts they were put together from"


def test_some_columns_can_be_read_alone(cell: CellDir) -> None:
    assert cell.read_rows(["round", "reward"]).column_names == ["round", "reward"]


def test_an_identity_is_a_hash_of_content_not_of_order() -> None:
    assert identify({"a": 1, "b": {"c": 2}}) == identify({"b": {"c": 2}, "a": 1})
    assert identify({"a": 1}) != identify({"a": 2})
    assert identify({"a": 1}) != identify({"a": "1"})
    assert len(identify({})) == 16


def test_the_last_run_is_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert store.read_run() is None
    store.write_run({"title": "smoke-v1", "cells": []})
    assert store.read_run() == {"title": "smoke-v1", "cells": []}
    (store.root / "run.json").write_text("{")
    assert store.read_run() is None, "a broken one is none"


def test_a_store_without_cells_has_no_records(tmp_path: Path) -> None:
    assert Store(tmp_path / "nowhere").records() == []


def test_the_schema_version_is_recorded() -> None:
    assert record().schema_version == records.SCHEMA_VERSION


def test_no_more_rounds_are_shared_than_a_cell_has() -> None:
    """What a record says of them may be a stranger's."""

    def taken(said: str, **cell: Any) -> dict[int, str]:
        known = Record(
            cell_id="0" * 16, cell={"rounds": 3} | cell, identity={}, status="ok", provenance={records.SHARED: said}
        )
        return rounds_taken(known)

    assert taken("1-2 of a, 3-3 of b") == {1: "a", 2: "a", 3: "b"}
    assert taken("1-5 of a") == {1: "a", 2: "a", 3: "a"}
    assert taken("1-1 of a, " * 1000 + "1-3 of b") == {1: "a", 2: "b", 3: "b"}, "each once"
    assert taken(f"1-{'9' * 5000} of a") == {}
    assert taken("1-2 of a", rounds="many") == {}
