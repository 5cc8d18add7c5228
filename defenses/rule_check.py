"""`rule_check`: the task's own reward beside a judge's; where they disagree, the work is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from thiefbench.defenses.base import DefenderView, Defense, PoolCompletion, Requirement, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged
from thiefbench.defenses.rule_rewards import RULE_REWARDS, rule_reward_of


class RuleCheck(Defense):
    """Reject every completion whose reward by the judge differs from the task's own by more than a tolerance.

    In a swarm with reward: judge, or on the items of a mixed swarm that have a rule, nobody needs the judge's word.
    Where nodes have no rule, everything is accepted.

    Args:
        tolerance: the largest difference that is accepted, from 0 to 1. The objection's score is the difference.
        reject: "drop" (the default) or "zero", which lets a right answer that the judge did not reward keep its 0.
    """

    name: ClassVar[str] = "rule_check"
    requires: ClassVar[frozenset[Requirement]] = frozenset({RULE_REWARDS})

    def __init__(self, tolerance: float = 0.5, reject: Reject = "drop") -> None:
        if not 0 <= tolerance < 1:
            raise ValueError(f"rule_check: tolerance must be at least 0 and below 1, got {tolerance}")
        self.tolerance = tolerance
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject where judge and rule disagree."""
        found = {place: self._objection(completion) for place, completion in enumerate(view.completions)}
        return judged(view, {place: one for place, one in found.items() if one is not None}, self.reject)

    def _objection(self, completion: PoolCompletion) -> Objection | None:
        rule = rule_reward_of(completion)
        if rule is None or completion.refused or abs(completion.reward - rule) <= self.tolerance:
            return None
        wrongly = "rewards what the rule does not" if completion.reward > rule else "does not reward what the rule does"
        return Objection(abs(completion.reward - rule), f"the judge {wrongly}")
