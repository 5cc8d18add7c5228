"""`guard`: which parts it has, depending on the swarm."""

from __future__ import annotations

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench import registry
from thiefbench.defenses.completeness import Completeness
from thiefbench.defenses.guard import Guard


def test_each_swarm_gets_what_it_can_use() -> None:
    assert Guard().requires == {"homogeneous", "beacon"}
    assert Guard(beacon=False).requires == {"homogeneous"}
    assert not Guard("heterogeneous").requires, "other nodes' models are not available"
    assert Guard().name == "guard" == registry.make("defense", "guard(beacon=False)").name


def test_every_part_drops() -> None:
    for guard in (Guard(), Guard(beacon=False), Guard("heterogeneous")):
        chosen = [part for part in guard.parts if not isinstance(part, Completeness)]  # which never does anything else
        assert {getattr(part, "reject", None) for part in chosen} == {"drop"}


def test_reading_alone_finds_a_wrong_equation_and_a_foreign_import() -> None:
    pool = [
        offer("<think> 2 + 2 = 4 </think><answer>4</answer>"),
        offer("<think> 2 + 2 = 5 </think><answer>4</answer>", sender="b"),
        offer("<code>\nfrom ruby import add\nprint(add(1, 2))\n</code>", sender="c"),
    ]
    assert actions(Guard("heterogeneous").inspect(view(pool))) == ["accept", "drop", "drop"]


def test_it_goes_with_others_and_refuses_what_is_no_population() -> None:
    assert registry.make("defense", "guard(population='heterogeneous')+max_tokens(limit=90)").name == "guard+max_tokens"
    with pytest.raises(ValueError, match="guard: population must be one of homogeneous, heterogeneous, not 'mixed'"):
        Guard("mixed")  # type: ignore[arg-type]
