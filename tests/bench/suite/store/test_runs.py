"""What a store says of its last run: only what a run leaves is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import handmade
from thiefbench.suite.report.compare import compared
from thiefbench.suite.report.page import write_report
from thiefbench.suite.store.records import Store
from thiefbench.suite.store.runs import RunError

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return handmade.store(tmp_path, handmade.suite(attacks=(handmade.TEXT,), defenses=("none",), seeds=(0,)))


def change(store: Store, how: Change) -> None:
    path = store.root / "run.json"
    run = json.loads(path.read_bytes())
    how(run)
    path.write_text(json.dumps(run))


def in_cell(**changes: Any) -> Change:
    return lambda run: run["cells"][0].update(changes)


def without(name: str) -> Change:
    return lambda run: run["cells"][0].pop(name)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (in_cell(cell_id="../../../etc"), r"cells\.0\.cell_id: String should match pattern"),
        (in_cell(cell_id="/etc"), r"cells\.0\.cell_id"),
        (in_cell(cell_id="0" * 16 + "\n"), r"cells\.0\.cell_id"),
        (in_cell(cell_id=5), r"cells\.0\.cell_id: Input should be a valid string"),
        (in_cell(seed="0"), r"cells\.0\.seed: Input should be a valid integer"),
        (in_cell(seed=True), r"cells\.0\.seed"),
        (in_cell(role="king"), r"cells\.0\.role"),
        (in_cell(defense=["none"]), r"cells\.0\.defense"),
        (without("cell_id"), r"cells\.0\.cell_id: Field required"),
        (without("attack"), r"cells\.0\.attack: Field required"),
        (without("defense"), r"cells\.0\.defense: Field required"),
        (without("seed"), r"cells\.0\.seed: Field required"),
        (lambda run: run.pop("suite"), "suite: Field required"),
        (lambda run: run.pop("title"), "title: Field required"),
        (lambda run: run.pop("fingerprint"), "fingerprint: Field required"),
        (lambda run: run.update(cells={}), "cells: Input should be a valid list"),
        (lambda run: run.update(suite=[]), "suite: Input should be a valid dictionary"),
        (lambda run: run["suite"].update(rounds="many"), "its suite: rounds"),
        (lambda run: run["suite"].pop("version"), "its suite: the field version is missing"),
        (lambda run: run["suite"].update(rounds=0), r"its suite: suite: rounds must be at least 1"),
        (lambda run: run["cells"].append(run["cells"][0]), "a cell is listed twice"),
    ],
)
def test_what_no_run_leaves_ends_in_one_sentence(store: Store, how: Change, said: str) -> None:
    change(store, how)
    for read in (lambda: write_report(store), lambda: compared([store.root, store.root], [])):
        with pytest.raises(RunError, match=said) as error:
            read()
        assert "\n" not in str(error.value), "one sentence"


def test_a_true_run_is_read(store: Store) -> None:
    assert write_report(store).is_file()


def test_a_record_of_another_cell_is_damage(store: Store) -> None:
    first, second = store.records()[:2]
    content = store.cell(second.cell_id).record_path.read_bytes()
    store.cell(first.cell_id).record_path.write_bytes(content)
    damaged: list[Any] = []
    write_report(store, damaged.append)
    assert [cell.cell_id for cell in damaged] == [first.cell_id]
    assert damaged[0].problem.startswith("damaged: its record belongs to another cell")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": "many"}, "rounds is not that of a cell"),
        ({"swarm": None}, "swarm"),
        ({"swarm": {"nodes": 1, "malicious": 1}}, r"its swarm is not that of a cell: malicious must lie between"),
        ({"strange": 1}, "strange|not in the form of"),
        ({"threads": 10**9}, "threads"),
    ],
)
def test_a_record_with_parameters_of_no_cell_is_damage(store: Store, changes: dict[str, Any], said: str) -> None:
    record = store.records()[0]
    store.cell(record.cell_id).write(record.model_copy(update={"cell": record.cell | changes}))
    damaged: list[Any] = []
    write_report(store, damaged.append)
    assert len(damaged) == 1
    assert re.search(said, damaged[0].problem), damaged[0].problem
