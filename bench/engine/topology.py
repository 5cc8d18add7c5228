"""Who answers which item with how many completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thiefbench.engine.keys import generator, slot_key
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.tasks.base import Item

PoolPosition = tuple[int, int]
"""A completion's place in a round's pool: its group and its index in the group."""


@dataclass(frozen=True)
class Assignment:
    """One completion that a node owes this round.

    Attributes:
        node: who owes it.
        group: the group it falls into, from 0 to B - 1.
        index: its place in the group, from 0 to G - 1.
        position: the number of the prompt among the node's own prompts, from 0.
        sample: its number among the node's completions for that prompt, from 0.
    """

    node: int
    group: int
    index: int
    position: int
    sample: int

    @property
    def at(self) -> PoolPosition:
        """Where the completion stands in the pool."""
        return self.group, self.index


def assignments(spec: SwarmSpec, seed: int, number: int, copies: int = 1) -> list[Assignment]:
    """Every completion owed in round `number`, ordered by group and index.

    Who gets which index (horizontal) or group (vertical) is drawn by the seed, so that neither reveals the sender.

    Args:
        spec: the swarm.
        seed: the cell's.
        number: the round's, from 1.
        copies: how many times its owed groups a malicious node offers, if nodes draw from the offers.
    """
    # The key is the name that assignments once had: all draws follow from it.
    rng = generator(seed, "duties", number)
    owed = []
    if spec.topology == "horizontal":
        share = spec.group // spec.nodes
        for group in range(spec.prompts):
            seats = rng.sample(range(spec.group), spec.group)
            owed += [Assignment(seat // share, group, index, group, seat % share) for index, seat in enumerate(seats)]
    else:
        share = spec.prompts // spec.nodes
        lots = [(node, at) for node in range(spec.nodes) for at in range(share)]
        if spec.sharing:
            malicious = range(spec.nodes - spec.malicious, spec.nodes)
            lots += [(node, at) for node in malicious for at in range(share, share * copies)]
        for group, (node, position) in enumerate(rng.sample(lots, len(lots))):
            owed += [Assignment(node, group, index, position, index) for index in range(spec.group)]
    return owed


def assign_items(
    spec: SwarmSpec,
    owed: Sequence[Assignment],
    draw: Callable[[int | str, int], Sequence[Item]],
    choose: Callable[[int, int], Sequence[Item] | None],
) -> list[Item]:
    """The item of every group.

    Args:
        spec: the swarm.
        owed: the round's assignments.
        draw: (whose, count) -> items drawn by the round's keyed generator of that node, or of "all".
        choose: (node, count) -> the items a malicious node picks for itself, None for an honest node.

    Returns:
        B items: in the horizontal topology one common draw, in the vertical one every node's own.

    Raises:
        SpecError: a node picked the wrong number of items.
    """
    if spec.topology == "horizontal":
        return list(draw("all", spec.prompts))
    owes = Counter(assignment.node for assignment in owed if assignment.index == 0)
    items_of_node: dict[int, Sequence[Item]] = {}
    for node, count in sorted(owes.items()):
        picked = choose(node, count)
        items_of_node[node] = draw(node, count) if picked is None else picked
        if len(items_of_node[node]) != count:
            raise SpecError(f"a malicious node chose {len(items_of_node[node])} items, and it answers {count} a round")
    return [items_of_node[assignment.node][assignment.position] for assignment in owed if assignment.index == 0]


def beacon(seed: int, number: int) -> tuple[int | str, ...]:
    """The parts of a key that stand for the public beacon of round `number`."""
    return (seed, "train", number)


def slot_seed(seed: int, number: int, assignment: Assignment, item_id: str) -> int:
    """The seed of the one honest draw that an assignment of round `number` has."""
    return slot_key(beacon(seed, number), assignment.node, assignment.position, item_id, assignment.sample)
