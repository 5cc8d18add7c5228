"""Who answers which item with how many completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thiefbench.engine.spec import SwarmSpec
from thiefbench.tasks.base import Item


@dataclass(frozen=True)
class Duty:
    """One completion that a node owes this round.

    Attributes:
        node: who owes it.
        group: the group it falls into, from 0 to B - 1.
        place: its index in the group, from 0 to G - 1.
        position: which of the node's own prompts it answers.
        index: its number among the node's completions for that prompt.
    """

    node: int
    group: int
    place: int
    position: int
    index: int


def duties(spec: SwarmSpec) -> list[Duty]:
    """Every completion owed in a round, ordered by group and place."""
    made = []
    for group in range(spec.prompts):
        for place in range(spec.group):
            if spec.topology == "horizontal":
                share = spec.group // spec.nodes
                made.append(Duty(place // share, group, place, group, place % share))
            else:
                share = spec.prompts // spec.nodes
                made.append(Duty(group // share, group, place, group % share, place))
    return made


def assign_items(
    spec: SwarmSpec,
    draw: Callable[[int | str, int], Sequence[Item]],
    choose: Callable[[int, int], Sequence[Item] | None],
) -> list[Item]:
    """The item of every group.

    Args:
        spec: the swarm.
        draw: (whose, count) -> items drawn by the round's keyed generator of that node, or of "all".
        choose: (node, count) -> the items a malicious node picks for itself, None for an honest node.

    Returns:
        B items: in the horizontal topology one common draw, in the vertical one every node's own.
    """
    if spec.topology == "horizontal":
        return list(draw("all", spec.prompts))
    share = spec.prompts // spec.nodes
    return [item for node in range(spec.nodes) for item in (choose(node, share) or draw(node, share))]
