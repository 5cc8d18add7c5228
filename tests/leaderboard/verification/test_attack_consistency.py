"""Equal completions have equal outcomes, and equal views equal submissions, in all cells of an attack's entry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.leaderboard.made_attacks import BLACK_BOX
from thiefbench.leaderboard.verification.attack_consistency import outcomes_apart, rounds_alike, submissions_apart
from thiefbench.suite.store.records import Record

HONEST: dict[str, Any] = {
    "phase": "train", "round": 1, "group": 0, "place": 0, "item_id": "one", "ids": [5, 6], "ended": True,
    "text": "a b", "malicious": False, "payload": False, "outcome": 0.0,
}  # fmt: skip
SENT = HONEST | {"malicious": True, "payload": True, "place": 1, "ids": [7]}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"outcome": 1.0}, "the outcome of a completion is 0.0 in one cell and 1.0 in another: 'a b'"),
        ({"outcome": None}, "is 0.0 in one cell and None"),
        ({"phase": "eval", "outcome": 1.0}, "1.0"),
        ({"ids": [5], "outcome": 1.0}, ""),
        ({"ended": False, "outcome": 1.0}, ""),
        ({"text": "of tokens that were not these", "outcome": 1.0}, ""),
        ({"item_id": "other", "outcome": 1.0}, ""),
        ({"malicious": True, "round": 9}, ""),
    ],
)
def test_equal_completions_have_equal_outcomes(changed: dict[str, Any], said: str) -> None:
    found = outcomes_apart([table(HONEST), table(HONEST, HONEST | changed)])
    assert said in found
    assert bool(said) == bool(found)


def test_beside_probes_evaluations_measure_something_else() -> None:
    probe, spilled = HONEST | {"phase": "probe"}, HONEST | {"phase": "eval", "outcome": 1.0}
    assert not outcomes_apart([table(HONEST, probe, spilled)])
    assert outcomes_apart([table(HONEST, probe, spilled), table(probe, spilled | {"outcome": 0.5})])


@pytest.mark.parametrize(
    ("changed", "rounds", "apart"),
    [
        ({}, 3, False),
        ({"ids": [8]}, 3, True),
        ({"ended": False}, 1, True),
        ({"item_id": "other"}, 1, True),
        ({"ids": [8], "round": 2}, 1, False),
        ({"ids": [8], "malicious": False}, 3, False),
        ({"ids": [8], "phase": "eval"}, 3, False),
        ({"payload": False}, 1, True),
    ],
)
def test_equal_views_get_equal_submissions(changed: dict[str, Any], rounds: int, apart: bool) -> None:
    alone = table(HONEST, SENT, SENT | {"round": 2})
    found = submissions_apart(alone, table(HONEST, SENT | changed), rounds)
    assert bool(found) == apart
    assert not apart or found == "in round 1 it submits something else beside the defense, although it sees the same"


def test_a_slot_that_is_left_to_an_honest_sample_depends_on_the_weights() -> None:
    left = SENT | {"payload": False}
    assert not submissions_apart(table(left), table(left | {"ids": [8]}), 3)


def record(torch: str = "2.15.0", **swarm: Any) -> Record:
    return Record.model_construct(cell={"rounds": 24, "swarm": swarm}, provenance={"torch": torch})


def test_what_an_attack_is_granted_decides_how_long_its_views_are_equal() -> None:
    blind = BLACK_BOX.model_copy(update={"queries": 0})
    one = record()
    assert rounds_alike(blind, one, record("2.11.0")) == 24, "last bits change no view without the policy"
    seeing = blind.model_copy(update={"policy": True})
    assert rounds_alike(seeing, one, record()) == 1, "until the first update"
    assert rounds_alike(seeing, one, record("2.11.0")) == 0
    assert rounds_alike(blind, record(reward="judge"), record(reward="judge")) == 1
    assert rounds_alike(blind.model_copy(update={"queries": 1}), one, record()) == 0
    assert rounds_alike(blind.model_copy(update={"kind": "stage_attack"}), one, record()) == 0
