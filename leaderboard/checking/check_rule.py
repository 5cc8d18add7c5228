"""Check in about a minute whether an aggregation or a stage check may be submitted, and say what to change.

The rules are those of the contract kit (`thiefbench.testing.contracts`), asked of the isolated object, and those of
every submission: sizes, imports, restarts, time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from thiefbench.defenses.aggregation.base import AVERAGING, Aggregation
from thiefbench.defenses.stages.base import PIPELINE, StageCheck
from thiefbench.leaderboard.checking.findings import (
    FILES,
    IMPORTS,
    REPEATABLE,
    Finding,
    RuleBroken,
    ask_all,
    can_be_repeated,
    files_are_in_order,
    imports_what_it_may,
)
from thiefbench.leaderboard.defense_kinds import TensorKind
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.isolated_aggregation import IsolatedAggregation
from thiefbench.leaderboard.isolation.isolated_rules import isolated_rule
from thiefbench.leaderboard.isolation.isolated_stage_check import IsolatedStageCheck
from thiefbench.leaderboard.isolation.limits import Caps
from thiefbench.leaderboard.isolation.unconfined import UnconfinedAggregation, UnconfinedStageCheck
from thiefbench.testing.contracts.aggregation import AggregationContract, view_of, view_of_round
from thiefbench.testing.contracts.stage_check import STAGES, StageCheckContract, views_of_run

LONGEST: Final = 2 * 870_000
"""Numbers of the longest vector of a built-in model: two halves, as in noloco, of `micro-math`."""
RECEIVED: Final = 7
"""Vectors in the exchange whose time is measured."""
STAGE_SIZE: Final = 200_000
"""Numbers of a stage's weights in the round whose time is measured: about a quarter of `micro-math`."""


@dataclass(frozen=True)
class RuleSubject:
    """An aggregation or a stage check to check.

    Attributes:
        spec: its spec string.
        kind: which of the two it is.
        unsafe: whether it runs in this process.
        caps: what it may use; None for the published limits.
    """

    spec: str
    kind: TensorKind
    unsafe: bool = False
    caps: Caps | None = None

    def make(self, hash_seed: int = 0) -> Any:
        """A fresh one, in a fresh process unless `unsafe`; raises DefenseError."""
        if self.unsafe:
            return UnconfinedAggregation(self.spec) if self.kind == "aggregation" else UnconfinedStageCheck(self.spec)
        return isolated_rule(self.spec, self.kind, self.caps, hash_seed)


Rule = Callable[[RuleSubject], str]

_GIVEN: Final[dict[TensorKind, str]] = {"aggregation": AVERAGING, "stage_check": PIPELINE}
"""What swarms give that are inspected by each kind; they give nothing else that could be required."""


class _HashSeeds:
    """Makes instances of a subject, for the contract's rules.

    Args:
        subject: the subject.
        hash_seeds: of its instances, in the order in which they are made; those after the last have the last one.
    """

    def __init__(self, subject: RuleSubject, hash_seeds: Sequence[int] = (0,)) -> None:
        self._subject, self._hash_seeds = subject, list(hash_seeds)

    def make(self) -> Any:
        seed = self._hash_seeds.pop(0) if len(self._hash_seeds) > 1 else self._hash_seeds[0]
        return self._subject.make(seed)


class _AggregationRules(_HashSeeds, AggregationContract):
    """The contract of aggregations, of a subject."""


class _StageCheckRules(_HashSeeds, StageCheckContract):
    """The contract of stage checks, of a subject."""


def check_rule(subject: RuleSubject) -> Iterator[Finding]:
    """Ask all questions, in order; stop if the subject cannot be constructed or breaks the first rule of its contract.

    Raises:
        SandboxUnavailable: this machine has no working sandbox, and the check is not unsafe.
        SpecStringError: the spec string is malformed, or names a file that does not exist.
    """
    questions = QUESTIONS[subject.kind]
    first = [ask for name, ask in questions if name in (IMPORTS, _MADE, _JOINS, _JUDGES)]
    yield from ask_all(questions, subject, DefenseError, first, subject.make, _is_made)


def _is_made(subject: RuleSubject) -> str:
    first, second = subject.make(), subject.make()
    if first.name != second.name:
        raise RuleBroken(f"two instances differ in name ({first.name}, {second.name}); make it constant")
    if subject.kind == "aggregation":
        _kept(AggregationContract.test_it_has_a_name_and_requires_averaging)(subject)
    else:
        _kept(StageCheckContract.test_it_has_a_name_and_requires_a_pipeline)(subject)
    if more := sorted(first.requires - {_GIVEN[subject.kind]}):
        raise RuleBroken(f"it requires {' and '.join(more)}, which no swarm of its kind gives; remove that")
    name: str = first.name
    return name


def _kept(rule: Callable[[Any], None], hash_seeds: Sequence[int] = (0,)) -> Rule:
    """A question: whether a rule of the contract is kept."""

    def ask(subject: RuleSubject) -> str:
        rules = _AggregationRules if subject.kind == "aggregation" else _StageCheckRules
        try:
            rule(rules(subject, hash_seeds))
        except AssertionError as broken:
            because = f": {broken.__cause__}" if broken.__cause__ else ""
            raise RuleBroken(f"{broken}{because}") from broken
        return ""

    return ask


def _continues_after_a_restart(subject: RuleSubject) -> str:
    running, restarted = subject.make(), subject.make()
    running.aggregate(view_of_round(5))
    restarted.restore(running.state())
    if restarted.state() != running.state():
        raise RuleBroken("after restore(state()), state() differs; return all that is remembered, as JSON")
    one, other = (rule.aggregate(view_of_round(5, seed=1)) for rule in (running, restarted))
    if not torch.equal(one.vector, other.vector) or one.verdicts != other.verdicts:
        raise RuleBroken(
            "after a restart between two exchanges it gives another result; let state() return all that later results "
            "depend on"
        )
    return ""


def _joins_quickly(subject: RuleSubject) -> str:
    drawn = 0.1 + 0.05 * torch.randn(1 + RECEIVED, LONGEST, generator=torch.Generator().manual_seed(0))
    rule: Aggregation = subject.make()
    rule.aggregate(view_of(drawn[0], list(drawn[1:])))
    return _used(rule, f"{RECEIVED} vectors of {LONGEST:,} numbers")


def _judges_quickly(subject: RuleSubject) -> str:
    check: StageCheck = subject.make()
    slowest = 0.0
    for view in views_of_run(4, size=STAGE_SIZE):
        check.check(view)
        slowest = max(slowest, getattr(check, "seconds", 0.0))
    return _used(check, f"a stage among {STAGES}", slowest)


def _used(rule: object, what: str, seconds: float | None = None) -> str:
    """Time and memory of an isolated subject, in words."""
    if not isinstance(rule, IsolatedAggregation | IsolatedStageCheck):
        return "measured only in the sandbox"
    caps, taken = rule.caps, rule.seconds if seconds is None else seconds
    return (
        f"{taken:.2g} s of at most {caps.seconds:g} s for {what}, {rule.memory >> 20:,} MiB of at most "
        f"{caps.memory >> 20:,} MiB beyond torch's own"
    )


_MADE, _JOINS = "can be constructed from its spec string, twice", "one vector and one verdict per vector"
_JUDGES = "a verdict on every stage in every round"

QUESTIONS: dict[TensorKind, Sequence[tuple[str, Rule]]] = {
    "aggregation": (
        (FILES, files_are_in_order("aggregation")),
        (IMPORTS, imports_what_it_may("aggregation")),
        (REPEATABLE, can_be_repeated("aggregation")),
        (_MADE, _is_made),
        (_JOINS, _kept(AggregationContract.test_one_vector_and_one_verdict_per_vector)),
        ("what all agree on is the result", _kept(AggregationContract.test_it_keeps_what_all_agree_on)),
        ("huge, tiny and zero vectors", _kept(AggregationContract.test_extreme_vectors_do_not_raise)),
        ("changes no vector", _kept(AggregationContract.test_it_changes_no_vector)),
        ("equal views, equal verdicts", _kept(AggregationContract.test_equal_views_give_equal_results, (0, 1))),
        ("order changes nothing", _kept(AggregationContract.test_order_and_pseudonyms_change_nothing)),
        ("continues after a restart", _continues_after_a_restart),
        ("time and memory", _joins_quickly),
    ),
    "stage_check": (
        (FILES, files_are_in_order("stage_check")),
        (IMPORTS, imports_what_it_may("stage_check")),
        (REPEATABLE, can_be_repeated("stage_check")),
        (_MADE, _is_made),
        (_JUDGES, _kept(StageCheckContract.test_every_stage_gets_a_verdict_in_every_round)),
        ("accepts a stage that never changes", _kept(StageCheckContract.test_a_stage_that_never_changes_is_accepted)),
        (
            "silence, huge, tiny and zero numbers",
            _kept(StageCheckContract.test_silence_and_extreme_numbers_do_not_raise),
        ),
        ("changes nothing", _kept(StageCheckContract.test_it_changes_nothing)),
        ("equal views, equal verdicts", _kept(StageCheckContract.test_equal_views_give_equal_verdicts, (0, 1))),
        ("continues after a restart", _kept(StageCheckContract.test_state_survives_a_restart)),
        ("time and memory", _judges_quickly),
    ),
}
"""Every question with the function that answers it, by kind, in the order in which they are asked."""
