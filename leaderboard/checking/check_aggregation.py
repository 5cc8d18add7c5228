"""Check in about a minute whether an aggregation may be submitted, and say what to change.

The rules are those of the contract kit (`thiefbench.testing.contracts.aggregation`), asked of the isolated aggregation,
and those of every submission: sizes, imports, restarts, time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch

from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.leaderboard.checking.findings import (
    Finding,
    RuleBroken,
    ask_all,
    files_are_small,
    imports_what_it_may,
)
from thiefbench.leaderboard.isolation.isolated import DefenseError
from thiefbench.leaderboard.isolation.isolated_aggregation import IsolatedAggregation
from thiefbench.leaderboard.isolation.limits import AGGREGATION_CAPS, Caps
from thiefbench.leaderboard.isolation.unconfined import UnconfinedAggregation
from thiefbench.testing.contracts.aggregation import AggregationContract, view_of, view_of_round

LONGEST: Final = 2 * 870_000
"""Numbers of the longest vector of a built-in model: two halves, as in noloco, of `micro-math`."""
RECEIVED: Final = 7
"""Vectors in the exchange whose time is measured."""

Rule = Callable[["AggregationSubject"], str]


@dataclass(frozen=True)
class AggregationSubject:
    """An aggregation to check.

    Attributes:
        spec: of the aggregation.
        unsafe: whether it runs in this process.
        caps: what it may use.
    """

    spec: str
    unsafe: bool = False
    caps: Caps = AGGREGATION_CAPS

    def make(self, hash_seed: int = 0) -> Aggregation:
        """A fresh aggregation, in a fresh process unless `unsafe`; raises DefenseError."""
        return UnconfinedAggregation(self.spec) if self.unsafe else IsolatedAggregation(self.spec, self.caps, hash_seed)


class _Contract(AggregationContract):
    """The contract's rules, of a subject.

    Args:
        subject: the aggregation.
        hash_seeds: of its instances, in the order in which they are made; those after the last have the last one.
    """

    def __init__(self, subject: AggregationSubject, hash_seeds: Sequence[int] = (0,)) -> None:
        self._subject, self._hash_seeds = subject, list(hash_seeds)

    def make(self) -> Aggregation:
        seed = self._hash_seeds.pop(0) if len(self._hash_seeds) > 1 else self._hash_seeds[0]
        return self._subject.make(seed)


def check_aggregation(subject: AggregationSubject) -> Iterator[Finding]:
    """Ask all questions, in order; stop if an aggregation cannot be constructed or breaks the contract.

    Raises:
        SandboxUnavailable: this machine has no working sandbox, and the check is not unsafe.
        SpecStringError: the spec string is malformed, or names a file that does not exist.
    """
    with suppress(DefenseError):
        warm = subject.make()  # while it lives, others start at once  # noqa: F841
    yield from ask_all(AGGREGATION_QUESTIONS, subject, DefenseError, (_is_made, _joins))


def _is_made(subject: AggregationSubject) -> str:
    first, second = subject.make(), subject.make()
    if first.name != second.name:
        raise RuleBroken(f"two instances differ in name ({first.name}, {second.name}); make it constant")
    _kept(AggregationContract.test_it_has_a_name_and_requires_averaging)(subject)
    return first.name


def _kept(rule: Callable[[AggregationContract], None], hash_seeds: Sequence[int] = (0,)) -> Rule:
    """A question: whether a rule of the contract is kept."""

    def ask(subject: AggregationSubject) -> str:
        try:
            rule(_Contract(subject, hash_seeds))
        except AssertionError as broken:
            because = f": {broken.__cause__}" if broken.__cause__ else ""
            raise RuleBroken(f"{broken}{because}") from broken
        return ""

    return ask


def _continues_after_a_restart(subject: AggregationSubject) -> str:
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


def _is_quick_and_small(subject: AggregationSubject) -> str:
    drawn = 0.1 + 0.05 * torch.randn(1 + RECEIVED, LONGEST, generator=torch.Generator().manual_seed(0))
    rule = subject.make()
    rule.aggregate(view_of(drawn[0], list(drawn[1:])))
    if not isinstance(rule, IsolatedAggregation):
        return "measured only in the sandbox"
    caps = subject.caps
    return (
        f"{rule.seconds:.2g} s of at most {caps.seconds:g} s for {RECEIVED} vectors of {LONGEST:,} numbers, "
        f"{rule.memory >> 20:,} MiB of at most {caps.memory >> 20:,} MiB beyond torch's own"
    )


_joins = _kept(AggregationContract.test_one_vector_and_one_verdict_per_vector)

AGGREGATION_QUESTIONS: Sequence[tuple[str, Rule]] = (
    ("files are small, weights named by hash", files_are_small("aggregation")),
    ("imports only what is allowed", imports_what_it_may("aggregation")),
    ("can be constructed from its spec string, twice", _is_made),
    ("one vector and one verdict per vector", _joins),
    ("what all agree on is the result", _kept(AggregationContract.test_it_keeps_what_all_agree_on)),
    ("huge, tiny and zero vectors", _kept(AggregationContract.test_extreme_vectors_do_not_raise)),
    ("changes no vector", _kept(AggregationContract.test_it_changes_no_vector)),
    ("equal views, equal verdicts", _kept(AggregationContract.test_equal_views_give_equal_results, (0, 1))),
    ("order changes nothing", _kept(AggregationContract.test_order_and_pseudonyms_change_nothing)),
    ("continues after a restart", _continues_after_a_restart),
    ("time and memory", _is_quick_and_small),
)
"""Every question with the function that answers it, in the order in which they are asked."""
