"""What an isolated attack sends back: refused in a clause that says which part is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from thiefbench.attacks.base import Claimed, Decoy, Seeded, ThreatModel, Withheld
from thiefbench.leaderboard.isolation import attack_wire as wire
from thiefbench.leaderboard.isolation.wire import Malformed

MODEL = ThreatModel("in-context", topologies=frozenset({"vertical"}), queries=3, history=True)
DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]


def test_a_threat_model_arrives_as_it_was_sent() -> None:
    assert wire.threat_in(wire.threat_out(MODEL)) == MODEL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context": "in context"}, "context must be 'in-context' or 'out-of-context', not 'in context'"),
        ({"context": DEEP}, "context must be 'in-context' or 'out-of-context', not [["),
        ({"topologies": []}, "topologies must be a set of one or both of 'vertical' and 'horizontal', not frozenset()"),
        ({"topologies": [DEEP]}, "topologies are not a list of names"),
        ({"topologies": "vertical"}, "topologies are not a list of names"),
        ({"oracle": 1}, "oracle must be True or False, not 1"),
        ({"rehearsal": None}, "rehearsal must be True or False, not None"),
        ({"queries": -1}, "queries must be a whole number of at least 0, not -1"),
        ({"queries": 1 << 30}, "queries 1073741824; it must lie between 0 and"),
        ({"weights": True}, "fields are not context, topologies, oracle, policy, queries, beacon, history, rehearsal"),
    ],
)
def test_a_threat_model_is_refused_by_the_name_of_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Malformed) as error:
        wire.threat_in(wire.threat_out(MODEL) | change)
    assert said in str(error.value)


@pytest.mark.parametrize("data", [None, [], "in-context", {}])
def test_something_else_is_no_threat_model(data: Any) -> None:
    with pytest.raises(Malformed, match="a threat model whose fields are not context, "):
        wire.threat_in(data)


def test_submissions_arrive_as_they_were_sent() -> None:
    sent = [None, Withheld(), "word", (1, 2), Decoy("word"), Decoy((1,)), Claimed("word", -1.0, 2), Seeded((1, 2), 7)]
    assert wire.submissions_in([wire.submission_out(each) for each in sent], len(sent)) == sent


def test_a_wrong_number_of_submissions_is_said() -> None:
    with pytest.raises(Malformed, match=r"^1 submission for 24 slots; there is one per slot, in the view's order$"):
        wire.submissions_in([None], 24)
