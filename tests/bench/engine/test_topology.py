from __future__ import annotations

from collections import Counter

import pytest

from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.topology import Assignment, assign_items, assignments
from thiefbench.tasks.base import Item, Topology

SHAPES = [  # topology, m, f, B, G
    ("horizontal", 4, 1, 32, 12),
    ("horizontal", 2, 0, 3, 2),
    ("horizontal", 12, 5, 1, 12),
    ("horizontal", 3, 2, 7, 6),
    ("vertical", 4, 1, 32, 12),
    ("vertical", 1, 0, 5, 2),
    ("vertical", 8, 7, 8, 3),
    ("vertical", 3, 1, 9, 4),
]
shapes = pytest.mark.parametrize(("topology", "m", "f", "b", "g"), SHAPES)


def owed(topology: Topology, m: int, f: int, b: int, g: int) -> list[Assignment]:
    return assignments(SwarmSpec(topology=topology, nodes=m, malicious=f, prompts=b, group=g), 0, 1)


@shapes
def test_every_place_of_every_group_is_owed_once(topology: Topology, m: int, f: int, b: int, g: int) -> None:
    slots = [(assignment.group, assignment.index) for assignment in owed(topology, m, f, b, g)]
    assert slots == [(group, place) for group in range(b) for place in range(g)], "B groups of G, by group and place"


@shapes
def test_nodes_share_the_work_equally(topology: Topology, m: int, f: int, b: int, g: int) -> None:
    made = owed(topology, m, f, b, g)
    assert Counter(assignment.node for assignment in made) == dict.fromkeys(range(m), b * g // m)
    groups = [{assignment.group for assignment in made if assignment.node == node} for node in range(m)]
    if topology == "horizontal":
        assert groups == [set(range(b))] * m, "horizontal: every node answers every prompt"
        assert set(Counter((assignment.group, assignment.node) for assignment in made).values()) == {g // m}
    else:
        assert [len(own) for own in groups] == [b // m] * m, "vertical: a node owns B / m whole groups"
        assert sum(map(len, groups)) == len(set().union(*groups)), "vertical: no group has two owners"


@shapes
def test_positions_and_indices_name_a_slot_within_its_node(topology: Topology, m: int, f: int, b: int, g: int) -> None:
    made = owed(topology, m, f, b, g)
    prompts, answers = (b, g // m) if topology == "horizontal" else (b // m, g)
    for node in range(m):
        own = [(assignment.position, assignment.sample) for assignment in made if assignment.node == node]
        assert sorted(own) == [(p, i) for p in range(prompts) for i in range(answers)]
        assert (
            len({(assignment.group, assignment.position) for assignment in made if assignment.node == node}) == prompts
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"topology": "horizontal", "nodes": 5, "group": 12},
            "horizontal: group (G) = 12 is not divisible by nodes (m) = 5; try 10 or 15",
        ),
        (
            {"topology": "horizontal", "nodes": 16, "group": 12},
            "horizontal: group (G) = 12 is not divisible by nodes (m) = 16; try 16",
        ),
        (
            {"topology": "vertical", "nodes": 3, "prompts": 32},
            "vertical: prompts (B) = 32 is not divisible by nodes (m) = 3; try 30 or 33",
        ),
        ({"nodes": 4, "malicious": 4}, "malicious must lie between 0 and nodes - 1 = 3, got 4"),
        ({"nodes": 4, "malicious": 9}, "malicious must lie between 0 and nodes - 1 = 3, got 9"),
        ({"malicious": -1}, "malicious must lie between 0 and nodes - 1 = 3, got -1"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"prompts": 0}, "prompts must be at least 1, got 0"),
        ({"nodes": 1, "malicious": 0, "group": 1}, "group must be at least 2: an advantage is relative to the group"),
        ({"topology": "diagonal"}, "topology must be vertical or horizontal, got 'diagonal'"),
    ],
)
def test_impossible_swarms_are_refused_in_one_sentence(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        SwarmSpec(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [10, 15])
def test_suggested_sizes_do_work(value: int) -> None:
    assert SwarmSpec(nodes=5, group=value).group == value


def item(name: str) -> Item:
    return Item(name, "", "", "")


@pytest.mark.parametrize(
    ("topology", "expected"),
    [("horizontal", ["all 0", "all 1", "all 2", "all 3"]), ("vertical", ["0 0", "0 1", "own 0", "own 1"])],
)
def test_items_of_groups(topology: Topology, expected: list[str]) -> None:
    """Horizontal: one common draw. Vertical: every honest node's own draw, a malicious node's choice."""
    spec = SwarmSpec(topology=topology, nodes=2, malicious=1, prompts=4, group=2)
    made = assignments(spec, 3, 1)
    drawn = assign_items(
        spec,
        made,
        draw=lambda whose, count: [item(f"{whose} {i}") for i in range(count)],
        choose=lambda node, count: [item(f"own {i}") for i in range(count)] if node == 1 else None,
    )
    by_owner = sorted(
        (assignment.node, assignment.position, assignment.group) for assignment in made if assignment.index == 0
    )
    order = [group for _, _, group in by_owner] if topology == "vertical" else range(4)
    assert [drawn[group].id for group in order] == expected, "a group's item is its owner's"


@shapes
def test_places_and_groups_are_drawn_anew_by_seed_and_round(topology: Topology, m: int, f: int, b: int, g: int) -> None:
    spec = SwarmSpec(topology=topology, nodes=m, malicious=f, prompts=b, group=g)
    assert assignments(spec, 1, 1) == assignments(spec, 1, 1)
    if m > 1:
        by_seed = [assignments(spec, seed, 1) for seed in range(20)]
        by_round = [assignments(spec, 0, number) for number in range(1, 21)]
        for drawn in (by_seed, by_round):
            owners = {tuple(assignment.node for assignment in each) for each in drawn}
            assert len(owners) > 1, "a place or group that always has the same owner is a label"
