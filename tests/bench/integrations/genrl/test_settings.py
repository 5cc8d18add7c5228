"""The settings of a live swarm, and what is said where GenRL is not installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thiefbench.engine.spec import SpecError
from thiefbench.integrations import genrl
from thiefbench.integrations.genrl.settings import LiveSwarm
from thiefbench.integrations.genrl.swarm import LiveSwarmError, play
from thiefbench.registry import SpecStringError

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


def test_in_a_control_everyone_is_honest() -> None:
    assert LiveSwarm(role="control").honest == 4
    assert LiveSwarm().honest == 3


def test_unknown_names_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises((SpecStringError, LiveSwarmError)):
        play(LiveSwarm(attack="no_such_attack"), tmp_path)


@pytest.mark.skipif(INSTALLED, reason="GenRL is installed")
def test_without_genrl_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LiveSwarmError, match=r"pip install 'thiefbench\[genrl\]'"):
        play(LiveSwarm(), tmp_path)
    with pytest.raises(ImportError, match=r"pip install 'thiefbench\[genrl\]'"):
        _ = genrl.TaskDataManager


def test_the_package_has_only_the_names_it_lists() -> None:
    assert callable(genrl.defended)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = genrl.no_such_name
