"""How to go on with a run that was stopped."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.bench import handmade
from thiefbench.cli.overrides import Overrides, Topologies
from thiefbench.cli.unfinished import how_to_go_on
from thiefbench.suite.store.records import Store
from thiefbench.suite.suite_yaml import load_suite


def stopped(kept: Store) -> Store:
    """The store without the record of its last cell."""
    run = kept.read_run()
    assert run is not None
    kept.cell(run["cells"][-1]["cell_id"]).record_path.unlink()
    return kept


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("smoke", Overrides(), []),
        ("smoke", Overrides(defenses=["guard"], seeds=2), ["--defense", "guard", "--seeds", "2"]),
        (
            "smoke",
            Overrides(attacks=["tone"], rounds=9, topology=Topologies.vertical),
            ["--attack", "tone", "--topology", "vertical", "--rounds", "9"],
        ),
        ("standard-v2", Overrides(defenses=["logit(reject='drop')"]), ["--defense", "logit(reject='drop')"]),
    ],
)
def test_the_command_makes_the_same_suite(tmp_path: Path, name: str, changed: Overrides, words: list[str]) -> None:
    suite = changed.applied_to(load_suite(name))
    kept = stopped(handmade.store(tmp_path, suite))
    said = how_to_go_on(kept)
    about, _, command = said.partition("; to go on: ")
    assert about == f"1 of {len(suite.cells('cpu', 'float32', 2))} cells is not finished"
    assert shlex.split(command) == ["thiefbench", "run", name, *words, "--threads", "2", "--store", str(tmp_path)]


def test_a_suite_of_a_file_has_no_command(tmp_path: Path) -> None:
    said = how_to_go_on(stopped(handmade.store(tmp_path, handmade.suite())))
    assert said.endswith(f"; to go on, run the same suite again with the same options and --store {tmp_path}")


def test_a_finished_run_needs_none(tmp_path: Path) -> None:
    assert how_to_go_on(handmade.store(tmp_path, handmade.suite())) == ""
