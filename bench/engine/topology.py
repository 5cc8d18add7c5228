"""Who answers which item with how many completions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thiefbench.engine.spec import SpecError, SwarmSpec
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


def duties(spec: SwarmSpec, rng: random.Random) -> list[Duty]:
    """Every completion owed in a round, ordered by group and place.

    Who gets which place (horizontal) or group (vertical) is drawn by `rng`, so that neither tells the sender.
    """
    made = []
    if spec.topology == "horizontal":
        share = spec.group // spec.nodes
        for group in range(spec.prompts):
            seats = rng.sample(range(spec.group), spec.group)
            made += [Duty(seat // share, group, place, group, seat % share) for place, seat in enumerate(seats)]
    else:
        share = spec.prompts // spec.nodes
        for group, lot in enumerate(rng.sample(range(spec.prompts), spec.prompts)):
            made += [Duty(lot // share, group, place, lot % share, place) for place in range(spec.group)]
    return made


def assign_items(
    spec: SwarmSpec,
    owed: Sequence[Duty],
    draw: Callable[[int | str, int], Sequence[Item]],
    choose: Callable[[int, int], Sequence[Item] | None],
) -> list[Item]:
    """The item of every group.

    Args:
        spec: the swarm.
        owed: the round's duties.
        draw: (whose, count) -> items drawn by the round's keyed generator of that node, or of "all".
        choose: (node, count) -> the items a malicious node picks for itself, None for an honest node.

    Returns:
        B items: in the horizontal topology one common draw, in the vertical one every node's own.

    Raises:
        SpecError: a node picked another number of items than it owes.
    """
    if spec.topology == "horizontal":
        return list(draw("all", spec.prompts))
    share = spec.prompts // spec.nodes
    own: list[Sequence[Item]] = []
    for node in range(spec.nodes):
        picked = choose(node, share)
        own.append(draw(node, share) if picked is None else picked)
        if len(own[node]) != share:
            raise SpecError(f"a malicious node chose {len(own[node])} items, and it answers {share} a round")
    return [own[duty.node][duty.position] for duty in owed if duty.place == 0]
