"""Cells that a verifier runs again: what is stored of an earlier try, and what the defense does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny
from tests.leaderboard.tiny_entries import suite
from thiefbench.leaderboard.verification import rerunning
from thiefbench.leaderboard.verification.rerunning import IsolatedFactory
from thiefbench.suite.execution.cell_identity import identity
from thiefbench.suite.store.records import Store, identify


def test_a_defense_that_fails_after_a_damaged_cell_gives_a_failed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error once ended the verification, because the second try stood outside what catches it."""

    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(rerunning, "run_cell", fails)
    spec = tiny.cell(suite())
    guest, store = IsolatedFactory("mine", "mine", ""), Store(tmp_path)
    directory = store.cell(identify(identity(spec, guest)))
    directory.path.mkdir(parents=True)
    directory.record_path.write_text("{")
    record = rerunning.run(spec, store, guest, lambda done, total: None)
    assert record.status == "error"
    assert record.error is not None
    assert record.error.startswith("RuntimeError: no luck")
    assert [path.read_text() for path in tmp_path.rglob("*.broken-1/record.json")] == ["{"]
