"""Records of schema version 1, whose rejection rates have Wilson intervals, are still read and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.suite.report.test_report import build, report, small_suite, small_world
from tests.leaderboard import made_entries
from thiefbench.leaderboard import rows
from thiefbench.leaderboard.cell_scores import CellScores, trimmed, untrimmed
from thiefbench.leaderboard.entry import Entry
from thiefbench.leaderboard.verification.rescoring import _check_scores
from thiefbench.suite.analysis.run_comparisons import trained_comparisons
from thiefbench.suite.analysis.scoring import cell_scores
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import SCHEMA_VERSION, CellDir, Record, Store


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    """The same cells twice: as they are written now, and with records as they were."""
    both = Store(tmp_path / "now"), Store(tmp_path / "before")
    for store in both:
        build(store, small_world(small_suite(replayed=())))
    for path in sorted((both[1].root / "cells").iterdir()):
        directory = CellDir(path)
        directory.write(older(directory))
    return both


def older(directory: CellDir) -> Record:
    record = directory.read()
    assert record is not None
    return record.model_copy(update={"schema_version": 1, "scores": cell_scores(directory.read_rows(), 1)})


def test_a_report_works_their_intervals_out_again(stores: tuple[Store, Store]) -> None:
    now, before = (trained_comparisons(store, store.read_run() or {}) for store in stores)
    for one, other in zip(now, before, strict=True):
        assert one.lines == other.lines
    old = CellDir(next((stores[1].root / "cells").iterdir())).read()
    assert old is not None
    assert old.schema_version == 1, "the store itself is left as it is"
    report(stores[1])


def test_they_are_rescored_by_the_rules_of_their_version(stores: tuple[Store, Store]) -> None:
    for store, version in zip(stores, (SCHEMA_VERSION, 1), strict=True):
        for path in (store.root / "cells").iterdir():
            record = CellDir(path).read()
            assert record is not None
            assert record.schema_version == version
            curves = {name: points for name, points in record.curves.items() if name != "grad_norm"}
            _check_scores(record.model_copy(update={"curves": curves}), CellDir(path).read_rows())


def test_an_entry_of_then_shows_its_rates_without_limits(tmp_path: Path) -> None:
    """It has no completions to work them out from."""
    entry = made_entries.entry(tmp_path, says=made_entries.prevents(0.9))
    old = Entry(entry.folder, entry.manifest, [cell.model_copy(update={"schema_version": 1}) for cell in entry.cells])
    for one, limits in ((entry, True), (old, False)):
        (comparison,) = rows.comparisons(one)
        line = comparison.line(one.manifest.defense)
        assert line is not None
        (rate,) = line.scores("false_rejection_rate")
        assert (rate.value, rate.low is not None) == (0.01, limits)
        assert line.scores("asr")[0].low is not None, "nothing else is lost"


def test_an_entry_that_does_not_say_its_version_is_of_the_first(stores: tuple[Store, Store]) -> None:
    record = CellDir(next((stores[1].root / "cells").iterdir())).read()
    assert record is not None
    cell = trimmed(record, "", True, "0" * 64)
    assert cell.schema_version == 1
    written = json.loads(cell.model_dump_json())
    del written["schema_version"]
    assert CellScores.model_validate(written) == cell
    assert untrimmed(cell, CellSpec.from_dict(record.parameters).as_dict(), {})
