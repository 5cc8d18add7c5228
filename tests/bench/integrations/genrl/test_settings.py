"""The settings of a live swarm, and what is said where GenRL is not installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thiefbench.engine.spec import SpecError
from thiefbench.integrations import genrl
from thiefbench.integrations.genrl.last_run import remember
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.integrations.genrl.swarm import LiveSwarmError, play
from thiefbench.registry import SpecStringError
from thiefbench.suite.store.records import Store
from thiefbench.suite.store.runs import check_run

INSTALLED = importlib.util.find_spec("genrl") is not None


def test_settings_cross_to_another_process() -> None:
    swarm = LiveSwarm(attack="tone", rounds=3, seed=5)
    assert LiveSwarm.from_json(swarm.as_json()) == swarm


def test_the_closest_cell_shares_groups() -> None:
    cell = LiveSwarm(rounds=7, seed=2).cell()
    assert (cell.swarm.topology, cell.swarm.prompts, cell.rounds, cell.seed) == ("vertical", 16, 7, 2)
    assert cell.swarm.sharing is not None
    assert (cell.swarm.sharing.local, cell.swarm.sharing.external) == (4, 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"malicious": 4}, "malicious"),
        ({"group": 1}, "group"),
        ({"rounds": 0}, "rounds"),
        ({"external": -1}, "external"),
        ({"padding": "middle"}, "padding must be left or right"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        replace(LiveSwarm(), **changes)


def test_a_report_shows_the_swarms_of_a_store_that_differ_in_attack_defense_role_and_seed(tmp_path: Path) -> None:
    store, defended = Store(tmp_path), LiveSwarm(defense="similarity")
    for number, swarm in enumerate((LiveSwarm(), defended, replace(defended, seed=2), LiveSwarm(role="control"))):
        assert not remember(store, swarm, f"{number:016x}")
    run = store.read_run()
    assert run is not None
    assert check_run(run, "run.json").defenses == ("none", "similarity")
    shown = {(cell["cell_id"][-1], cell["role"], cell["defense"], cell["seed"]) for cell in run["cells"]}
    assert shown == {
        ("0", "attack", "none", 0), ("1", "attack", "similarity", 0), ("2", "attack", "similarity", 2),
        ("3", "control", "none", 0),
    }  # fmt: skip


@pytest.mark.parametrize("changes", [{"rounds": 7}, {"padding": "right"}, {"minibatch": 8}, {"learning_rate": 1e-3}])
def test_swarms_of_other_settings_are_not_shown_with_them(changes: dict[str, Any], tmp_path: Path) -> None:
    store = Store(tmp_path)
    remember(store, LiveSwarm(), "0" * 16)
    assert "shows this swarm only" in remember(store, LiveSwarm(**changes), "1" * 16)
    run = store.read_run()
    assert run is not None
    assert [cell["cell_id"] for cell in run["cells"]] == ["1" * 16], "the newest is shown"


def test_in_a_control_everyone_is_honest() -> None:
    assert LiveSwarm(role="control").honest == 4
    assert LiveSwarm().honest == 3


def test_a_misspelt_role_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^there is no role 'controll'; it is attack, placebo, control$"):
        LiveSwarm(role="controll")  # type: ignore[arg-type]


def test_unknown_names_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises((SpecStringError, LiveSwarmError)):
        play(LiveSwarm(attack="no_such_attack"), tmp_path)


@pytest.mark.skipif(INSTALLED, reason="GenRL is installed")
def test_without_genrl_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LiveSwarmError, match=r"pip install '.\[genrl\]' in a checkout"):
        play(LiveSwarm(), tmp_path)
    with pytest.raises(ImportError, match=r"pip install '.\[genrl\]' in a checkout"):
        _ = genrl.TaskDataManager


def test_the_package_has_only_the_names_it_lists() -> None:
    assert callable(genrl.defended)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = genrl.no_such_name
