"""What an attack says that it used: at least what was seen of it, and no more than a run can use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bench.handmade import Numbers
from tests.leaderboard.made_attacks import BLACK_BOX, WHITE_BOX
from tests.leaderboard.made_entries import NUMERICS, _record
from thiefbench.averaging.exchange import ExchangeRow
from thiefbench.engine.spec import Role
from thiefbench.leaderboard.attacking.cells import wanted
from thiefbench.leaderboard.attacking.manifest import Granted
from thiefbench.leaderboard.attacking.scores import AttackCell, AttackCost, attack_cell
from thiefbench.leaderboard.isolation.sandbox_paths import AttackKind
from thiefbench.leaderboard.verification.attack_costs import check_costs
from thiefbench.leaderboard.verification.rescoring import Beside, InconsistentError, SubmittedCell
from thiefbench.pipeline.report import StageRow
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite

SUITES: dict[AttackKind, str] = {"attack": "trial", "weight_attack": "averaging-v1", "stage_attack": "pipeline-v1"}
VECTOR = ExchangeRow(1, 2, 0, 3, True, "accept", None, "", 1.0, 1.0, 8)
STAGE = StageRow(1, 2, True, False, True, 3, 0, 0, "", "accept", None, "", False, 1.0, 8)
SEEN = Beside(exchanges=[VECTOR, replace(VECTOR, exchange=2)]), Beside(stages=[STAGE, replace(STAGE, round=2)])


def check(threat: Granted, role: Role = "attack", beside: Beside | None = None, **used: int) -> None:
    record = _record(spec_of("attack", role), Numbers())
    scores = attack_cell(record, "", "", "0" * 64).model_copy(update={"cost": AttackCost(**used)})
    assert isinstance(scores, AttackCell)
    check_costs(SubmittedCell(spec_of(threat.kind, role), "", scores, record, own=True), beside or Beside(), threat)


def spec_of(kind: AttackKind, role: Role) -> CellSpec:
    suite = load_suite(SUITES[kind])
    return next(e.spec for e in wanted(suite, (suite.scenes[0].name,), "text", (), NUMERICS) if e.spec.role == role)


def of_kind(kind: AttackKind) -> Granted:
    return WHITE_BOX.model_copy(update={"kind": kind})


@pytest.mark.parametrize(
    ("kind", "beside", "used"),
    [
        ("attack", Beside(), {"rounds": 60, "sent": 5760, "samples": 30720, "scored": 9000, "steps": 200}),
        ("weight_attack", SEEN[0], {"rounds": 2, "sent": 2, "samples": 64, "steps": 400}),
        ("stage_attack", SEEN[1], {"rounds": 2, "sent": 8, "steps": 400}),
    ],
)
def test_what_a_run_can_use_is_believed(kind: AttackKind, beside: Beside, used: dict[str, int]) -> None:
    check(of_kind(kind), beside=beside, **used)


@pytest.mark.parametrize(
    ("kind", "beside", "used"),
    [
        ("weight_attack", SEEN[0], {"rounds": 1, "sent": 1}),
        ("weight_attack", SEEN[0], {"rounds": 1, "sent": 2}),
        ("stage_attack", SEEN[1], {}),
    ],
)
def test_less_than_was_seen_is_not(kind: AttackKind, beside: Beside, used: dict[str, int]) -> None:
    with pytest.raises(InconsistentError, match=r"honest nodes saw it 2 times, in 2 rounds"):
        check(of_kind(kind), beside=beside, **used)


@pytest.mark.parametrize(
    ("threat", "role", "beside", "used", "why"),
    [
        (BLACK_BOX, "attack", Beside(), {"rounds": 61, "sent": 61}, '"rounds" is 61'),
        (BLACK_BOX, "attack", Beside(), {"rounds": 2, "sent": 1}, "in 2 rounds, and 1 time in all"),
        (BLACK_BOX, "attack", Beside(), {"queries": 10**9}, '"queries" is 1,000,000,000'),
        (BLACK_BOX, "attack", Beside(), {"samples": 1}, '"samples" is 1, .* no run has more than 0'),
        (WHITE_BOX, "attack", Beside(), {"queries": 1}, '"queries" is 1, .* no run has more than 0'),
        (WHITE_BOX, "control", Beside(), {"steps": 1}, '"steps" is 1, and the control cell of no run'),
        (WHITE_BOX, "placebo", Beside(), {"rounds": 1, "sent": 1}, '"rounds" is 1, and the placebo cell of no run'),
        (of_kind("weight_attack"), "attack", SEEN[0], {"rounds": 2, "sent": 10**6}, '"sent" is 1,000,000'),
        (of_kind("weight_attack"), "attack", SEEN[0], {"rounds": 2, "sent": 2, "steps": 2**53}, '"steps" is 9,007'),
        (
            of_kind("weight_attack"),
            "attack",
            SEEN[0],
            {"rounds": 2, "sent": 2, "steps": 2 * 1600 + 1},
            '"steps" is 3,201, .* more than 3,200',
        ),
        (of_kind("stage_attack"), "attack", SEEN[1], {"rounds": 2, "sent": 9}, '"sent" is 9, .* more than 8'),
    ],
)
def test_more_than_a_run_can_use_is_not(
    threat: Granted, role: Role, beside: Beside, used: dict[str, Any], why: str
) -> None:
    with pytest.raises(InconsistentError, match=why):
        check(threat, role, beside, **used)


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 10**400])
def test_no_entry_has_a_cost_that_is_no_count(number: int) -> None:
    with pytest.raises(ValueError, match="sent"):
        AttackCost(sent=number)
