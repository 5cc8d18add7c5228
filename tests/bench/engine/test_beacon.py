"""What a beacon leaves to a malicious node to choose: its items, unless they are settled before, and near ties."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import get_args

import pytest

from thiefbench.attacks.base import AttackerView, ChoiceView, Poison, ThreatModel
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.near_ties import NearTies
from thiefbench.attacks.text import Text
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.engine.spec import Items, SpecError, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Item

Build = Callable[..., Swarm]


class Chooses(Text):
    """Takes the last items, or the first ones where it knows their seeds."""

    name = "chooses"
    threat = ThreatModel("out-of-context", topologies=frozenset({"vertical"}), beacon=True)

    def draw(self, rng: random.Random) -> Chooses:
        return self

    def poison(self, view: AttackerView) -> list[Poison]:
        return [None] * len(view.slots)

    def choose_items(self, items: Sequence[Item], count: int, rng: random.Random) -> Sequence[Item]:
        return items[-count:]

    def choose_items_from(self, items: Sequence[Item], view: ChoiceView) -> Sequence[Item]:
        return items[: view.count]


@pytest.mark.parametrize("items", get_args(Items))
def test_a_node_picks_items_as_the_swarm_lets_it(items: Items, build_swarm: Build) -> None:
    def answered(role: str, **fields: object) -> list[str]:
        swarm = build_swarm(role, attack=Chooses("hail to all", "start"), topology="vertical", prompts=8, **fields)
        rows = swarm.round(1).rows
        return [row.item_id for row in rows if row.node == 3 and row.place == 0]

    wanted = {
        "chosen": ["train-0", "train-1"],  # with the seeds known
        "committed": ["train-10", "train-11"],  # before they are
        "drawn": answered("control"),
    }
    assert sorted(answered("attack", items=items)) == sorted(wanted[items])


def test_items_are_settled_in_one_of_three_ways() -> None:
    with pytest.raises(SpecError, match="items must be one of chosen, committed, drawn, got 'bought'"):
        SwarmSpec(items="bought")  # type: ignore[arg-type]


@pytest.mark.parametrize(("tolerance", "passes"), [(2.0, True), (0.0, False)])
def test_near_ties_pass_a_replay_that_forgives_as_much(tolerance: float, passes: bool, build_swarm: Build) -> None:
    attack, defense = NearTies(Dos(), tolerance=2.0, samples=4), SeedReplay(tolerance=tolerance or None)
    rows = [row for row in build_swarm(attack=attack, defense=defense).round(1).rows if row.malicious]
    assert any(row.payload for row in rows)
    assert all(row.action == "accept" for row in rows) == passes


def test_a_margin_of_nothing_is_the_draw_itself(build_swarm: Build) -> None:
    attack = NearTies(Dos(), tolerance=0.0, samples=3)
    honest = {(row.group, row.place): row.ids for row in build_swarm("control").round(1).rows}
    rows = [row for row in build_swarm(attack=attack).round(1).rows if row.malicious]
    assert [row.ids for row in rows] == [honest[row.group, row.place] for row in rows]
