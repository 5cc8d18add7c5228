"""Links in a store that somebody else made lead nothing out of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.bench.tiny import run, suite
from thiefbench.locks import locked
from thiefbench.suite.report.page import write_report
from thiefbench.suite.store import weights
from thiefbench.suite.store.merging import merge
from thiefbench.suite.store.records import LinkedFolderError, Store


def test_a_checkpoint_that_is_a_link_loses_nobody_s_files(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "key").write_text("a key")
    of, store = suite("none"), Store(tmp_path / "store")
    ids = [record.cell_id for record in run(of, tmp_path / "first")]
    for cell_id in ids:
        store.cell(cell_id).path.mkdir(parents=True)
        store.cell(cell_id).checkpoint.symlink_to(victim)
    assert [record.status for record in run(of, store.root)] == ["ok"] * len(ids), "the links are set aside"
    assert [path.name for path in victim.iterdir()] == ["key"]


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "photo.png").write_text("a photo")
    store = Store(tmp_path / "store")
    run(suite("none"), store.root)
    (store.root / "report").symlink_to(victim)
    with pytest.raises(LinkedFolderError, match="report is a link"):
        write_report(store)
    assert [path.name for path in victim.iterdir()] == ["photo.png"]


@pytest.mark.parametrize("name", ["", "checkpoint", "weights"])
def test_nothing_behind_a_cell_s_links_is_moved_removed_or_written(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    for file in ("key", "index.json", ".download.part"):
        (victim / file).write_text("mine")
    store, of = Store(tmp_path / "store"), suite("none")
    ids = [record.cell_id for record in run(of, tmp_path / "first")]
    for cell_id in ids:
        link = store.cell(cell_id).path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
    assert [record.status for record in run(of, store.root)] == ["ok"] * len(ids)
    for cell_id in ids:
        policy = SimpleNamespace(weights=lambda: {"w": torch.zeros(1)})
        with store.cell(cell_id).locked():
            weights.keep(store.cell(cell_id), 1, policy)  # type: ignore[arg-type]
    assert {path.name: path.read_text() for path in victim.iterdir()} == dict.fromkeys(
        ("key", "index.json", ".download.part"), "mine"
    )


def test_a_lock_that_is_a_link_empties_nobody_s_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key")
    (tmp_path / "lock").symlink_to(tmp_path / "key")
    with locked(tmp_path / "lock"):
        assert not (tmp_path / "lock").is_symlink()
    assert (tmp_path / "key").read_text() == "a key"


def test_a_merge_into_a_store_with_links_writes_into_the_store(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "key").write_text("a key")
    into, ids = Store(tmp_path / "into"), [record.cell_id for record in run(suite("none"), tmp_path / "first")]
    for cell_id in ids:
        into.cell(cell_id).path.mkdir(parents=True)
        into.cell(cell_id).weights.symlink_to(victim)
    merge([tmp_path / "first"], into.root)
    assert [record.cell_id for record in into.records()] == sorted(ids)
    assert [path.name for path in victim.iterdir()] == ["key"]
