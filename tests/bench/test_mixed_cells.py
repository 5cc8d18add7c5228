"""Cells of mixed swarms through the store: identities, checkpoints, resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.tiny import ATTACK, Attacked, Watcher, cells, model, run, same, suite
from thiefbench.engine.regimes import ChurnSpec, DelaySpec, NodeClass, SharingSpec
from thiefbench.engine.spec import SwarmSpec
from thiefbench.suite import execution
from thiefbench.suite.results import Store, identify
from thiefbench.suite.scenario import Suite
from thiefbench.tasks.base import Sampling

POISONED = f"poisoned_peer(attack={ATTACK!r}, steps=2)"


def mixed(**fields: Any) -> Suite:
    """A suite of one attacked cell: two classes, each of an honest and a malicious node, and what `fields` say."""
    shares = (NodeClass(str(model()), 0.5), NodeClass(f"{model()}/", 0.5))
    given: dict[str, Any] = {
        "topology": "vertical", "nodes": 4, "malicious": 2, "prompts": 4, "group": 4, "population": shares,
        "sampling": Sampling(max_new_tokens=20),
    }  # fmt: skip
    defense = "reputation(defense='random(rate=0.5)')"
    return suite(defense, kind=Attacked, attacks=(POISONED,), swarm=SwarmSpec(**given | fields))


CRASH = ChurnSpec((1,), down=1)
MIXED: dict[str, dict[str, Any]] = {
    "delay and a poisoned peer": {
        "delay": DelaySpec(rounds=3),
        "churn": ChurnSpec((1,), down=1),
        "logprobs": "reported",
    },
    "sharing and a poisoned peer": {"sharing": SharingSpec(1, 2), "churn": CRASH},
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CHECKPOINT_SECONDS", -1.0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", MIXED)
def test_a_mixed_cell_that_is_stopped_goes_on(name: str, tmp_path: Path) -> None:
    of = mixed(**MIXED[name])
    (record,) = run(of, tmp_path / "whole")
    assert record.status == "ok", record.error
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(of, tmp_path / "parts", Watcher(stop_after=1))
    (again,) = run(of, tmp_path / "parts")
    assert again.provenance["ended"] == "resumed"
    same(of, tmp_path / "parts", tmp_path / "whole")
    (cell,) = cells(of)
    rows = Store(tmp_path / "whole").cell(identify(execution.identity(cell))).read_rows().to_pylist()
    assert {row["cohort"] for row in rows} > {0, 1}, "the node that recovered from poison is a cohort of its own"
    assert all(row["label"] for row in rows), "rows say whose pool they are of"


def test_regimes_are_part_of_a_cells_identity() -> None:
    ids = {identify(execution.identity(cells(mixed(**fields))[0])) for fields in ({}, *MIXED.values())}
    assert len(ids) == 3
