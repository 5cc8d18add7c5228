"""`rule_check`: the rule beside a judge."""

from __future__ import annotations

from typing import Any, cast

import pytest

from thiefbench.defenses.base import DefenderView, PoolCompletion
from thiefbench.defenses.rule_check import RuleCheck
from thiefbench.defenses.rule_rewards import JudgedCompletion


def verdicts(defense: RuleCheck, *pairs: tuple[float, float | None]) -> list[tuple[str, float | None, str]]:
    pool = tuple(
        JudgedCompletion("i", 0, index, "a", (1,), "x", True, reward, rule_reward=rule)
        for index, (reward, rule) in enumerate(pairs)
    )
    view = DefenderView(1, pool, {}, cast(Any, None), (), cast(Any, None), cast(Any, None))
    return [(verdict.action, verdict.score, verdict.reason) for verdict in defense.inspect(view)]


def test_disagreement_is_rejected_in_both_directions() -> None:
    got = verdicts(RuleCheck(), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (1.0, None))
    assert got == [
        ("drop", 1.0, "the judge rewards what the rule does not"),
        ("drop", 1.0, "the judge does not reward what the rule does"),
        ("accept", None, ""), ("accept", None, ""), ("accept", None, ""),
    ]  # fmt: skip


def test_small_differences_are_tolerated() -> None:
    assert [action for action, *_ in verdicts(RuleCheck(), (0.5, 1.0), (0.25, 1.0))] == ["accept", "drop"]
    assert verdicts(RuleCheck(tolerance=0, reject="zero"), (0.5, 1.0))[0][:2] == ("zero", 0.5)


def test_where_the_rule_rewards_nothing_is_compared() -> None:
    plain = PoolCompletion("i", 0, 0, "a", (1,), "x", True, 1.0)
    view = DefenderView(1, (plain,), {}, cast(Any, None), (), cast(Any, None), cast(Any, None))
    assert [verdict.action for verdict in RuleCheck().inspect(view)] == ["accept"]


@pytest.mark.parametrize("tolerance", [-0.1, 1.0])
def test_the_tolerance_is_checked(tolerance: float) -> None:
    with pytest.raises(ValueError, match="rule_check: tolerance"):
        RuleCheck(tolerance)
