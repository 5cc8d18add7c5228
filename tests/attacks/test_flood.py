from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from thiefbench import registry
from thiefbench.attacks.flood import Flood
from thiefbench.attacks.text import Text
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.heterogeneity import SharingSpec
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.engine.topology import assignments
from thiefbench.tasks.gsm_micro import GsmMicro

NODES, OWED, COPIES = 4, 3, 4
SPEC = SwarmSpec(topology="vertical", nodes=NODES, prompts=NODES * OWED, group=4, sharing=SharingSpec(OWED, 4))


def offered(seed: int) -> dict[int, int]:
    """Which node each group belongs to, in a round in which the last node floods."""
    owed = assignments(SPEC, seed, 1, COPIES)
    return {assignment.group: assignment.node for assignment in owed}


def test_the_flooder_offers_so_many_times_what_it_owes() -> None:
    counts = Counter(offered(1).values())
    assert counts == {0: OWED, 1: OWED, 2: OWED, 3: COPIES * OWED}
    owed = assignments(SPEC, 1, 1, COPIES)
    places = Counter((assignment.node, assignment.position) for assignment in owed)
    assert set(places.values()) == {SPEC.group}, "every offer is a whole group with its own item"
    assert len({(assignment.group, assignment.index) for assignment in owed}) == len(owed)


def test_its_share_of_what_is_taken_is_the_formulas() -> None:
    draws, taken, flooded = 1_500, 0, 0
    for seed in range(draws):
        groups = offered(seed)
        foreign = [groups[g] for g in SPEC.sharing.taken(seed, 1, 0, groups) if groups[g] != 0]  # type: ignore[union-attr]
        taken += len(foreign)
        flooded += sum(node == NODES - 1 for node in foreign)
    share = 1 / (NODES - 1)  # of the others, from whom node 0 draws
    expected = COPIES * share / (1 + (COPIES - 1) * share)
    off = 4 * math.sqrt(expected * (1 - expected) / taken)
    assert abs(flooded / taken - expected) < off, f"uniform draws give the flooder {expected:.3f} of what is taken"


def test_group_numbers_do_not_tell_the_flooder() -> None:
    draws = 400
    total = NODES * OWED + (COPIES - 1) * OWED
    counts = Counter(group for seed in range(draws) for group, node in offered(seed).items() if node == NODES - 1)
    expected = COPIES * OWED / total
    for group in range(total):
        off = 4.5 * math.sqrt(expected * (1 - expected) / draws)
        assert abs(counts[group] / draws - expected) < off, f"group {group} is the flooder's as often as any other"


def test_flooding_needs_sharing() -> None:
    task = GsmMicro(size=16)
    with pytest.raises(SpecError, match="the attack flood offers more than it owes"):
        drawn(Flood(Text()), 1, SwarmSpec(topology="vertical"), task)
    assert drawn(Flood(Text(), copies=3), 1, SPEC, task).copies == 3, "the drawn member floods as much"


def test_other_attacks_around_it_flood_as_well() -> None:
    assert registry.make("attack", "varied(attack='flood(copies=5)', share=0.5)").copies == 5
    assert registry.make("attack", "misreport(attack='flood')").copies == 4
    assert Text().copies == 1


def test_too_few_copies_are_refused() -> None:
    with pytest.raises(ValueError, match="flood: copies must be at least 2, got 1"):
        Flood(Text(), copies=1)


def test_what_it_says_is_the_inner_attacks() -> None:
    inner = Text("hail to all", "start")
    assert Flood(inner).draw(random.Random(0)).describe() == inner.draw(random.Random(0)).describe()
