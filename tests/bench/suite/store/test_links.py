"""Links in a store that somebody else made lead nothing out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.tiny import run, suite
from thiefbench.suite.report.page import write_report
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
