"""The rules for every aggregation, as a test class."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, get_args

import torch

from thiefbench.defenses.aggregation.base import (
    AVERAGING,
    Aggregate,
    Aggregation,
    AggregationView,
    SentVector,
    VectorAction,
    VectorVerdict,
)
from thiefbench.testing.contracts.subjects import made

SIZE = 24
"""Numbers of a vector in these tests."""


def view_of(own: torch.Tensor, others: Sequence[torch.Tensor]) -> AggregationView:
    """A node's view of an exchange. Its model is best, by reward and by loss, where all numbers are 0.1."""

    def loss(vector: torch.Tensor) -> float:
        return 1 + float((vector.double() - 0.1).square().mean())

    def reward(vector: torch.Tensor) -> float:
        return 1 / loss(vector)

    sent = tuple(SentVector(f"{number:08x}", vector) for number, vector in enumerate(others))
    return AggregationView(1, own, sent, random.Random(0), reward, loss)


def view_of_round(received: int, seed: int = 0) -> AggregationView:
    """A view in which all vectors point in about the same direction, as after honest local rounds."""
    drawn = 0.1 + 0.05 * torch.randn(received + 1, SIZE, generator=torch.Generator().manual_seed(seed))
    return view_of(drawn[0], list(drawn[1:]))


class AggregationContract:
    """Subclass it as ``class TestMine(AggregationContract)``; every rule is one test.

    The aggregation joins random vectors, and vectors that strangers may send. To leave out a rule that does not apply
    to an aggregation, set it to None.

    Attributes:
        aggregation: a spec string, as "my_aggregation.py:Mine(level=2)", or the class itself.
    """

    aggregation: ClassVar[str | type[Aggregation]]

    def make(self) -> Aggregation:
        """A fresh aggregation at every call; override this if neither a spec string nor a class is enough."""
        made_one: Aggregation = made(self, "aggregation")
        return made_one

    def test_it_has_a_name_and_requires_averaging(self) -> None:
        """Swarms that exchange completions refuse it, because nothing would be aggregated."""
        aggregation = self.make()
        assert isinstance(aggregation, Aggregation), "it derives from thiefbench.defenses.aggregation.base.Aggregation"
        assert isinstance(getattr(aggregation, "name", None), str), "an aggregation has a name"
        assert AVERAGING in aggregation.requires, 'an aggregation requires "averaging"'

    def test_one_vector_and_one_verdict_per_vector(self) -> None:
        """For any number of vectors, also none."""
        for received in range(8):
            view = view_of_round(received)
            _check(view, self.make().aggregate(view))

    def test_it_keeps_what_all_agree_on(self) -> None:
        """If every vector is the node's own, that is the result."""
        own = view_of_round(0).own
        for received in (0, 1, 5):
            joined = self.make().aggregate(view_of(own, [own.clone() for _ in range(received)]))
            assert torch.allclose(joined.vector, own, atol=1e-6), "equal vectors give that vector"

    def test_extreme_vectors_do_not_raise(self) -> None:
        """A sender could otherwise stop a node. Only finite vectors of the right shape arrive."""
        own = view_of_round(0).own
        extreme = [torch.full_like(own, value) for value in (1e30, -1e30, 0.0, 1e-40)]
        for others in (extreme, extreme[:1], [torch.zeros_like(own)] * 3):
            for mine in (own, torch.zeros_like(own)):
                view = view_of(mine, others)
                try:
                    joined = self.make().aggregate(view)
                except Exception as error:
                    raise AssertionError("huge, tiny and zero vectors are joined like all others") from error
                _check(view, joined)

    def test_it_changes_no_vector(self) -> None:
        """They are shared with other nodes."""
        view = view_of_round(5)
        before = view.stacked()
        self.make().aggregate(view)
        assert torch.equal(view.stacked(), before), "the vectors of a view are not modified"

    def test_equal_views_give_equal_results(self) -> None:
        """They must not depend on a clock or a global random generator."""
        first, second = (self.make().aggregate(view_of_round(5)) for _ in range(2))
        assert torch.equal(first.vector, second.vector), "equal views give equal vectors"
        assert first.verdicts == second.verdicts, "equal views give equal verdicts"

    def test_order_and_pseudonyms_change_nothing(self) -> None:
        """Neither the place of a vector nor its sender's pseudonym has a meaning."""
        view = view_of_round(6)
        order = [3, 0, 5, 1, 4, 2]
        renamed = [SentVector(f"{100 - place:08x}", view.vectors[place].vector) for place in order]
        straight = self.make().aggregate(view)
        shuffled = self.make().aggregate(replace(view, vectors=tuple(renamed), rng=random.Random(0)))
        assert torch.allclose(straight.vector, shuffled.vector, atol=1e-5), "the order of the vectors changes nothing"
        actions = [verdict.action for verdict in shuffled.verdicts]
        assert actions == [straight.verdicts[place].action for place in order], "neither does it change a verdict"


def _check(view: AggregationView, joined: Aggregate) -> None:
    """A result is of the right shape and finite.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    assert isinstance(joined, Aggregate), "aggregate gives an Aggregate"
    assert joined.vector.shape == view.own.shape, "the result has the shape of the node's own vector"
    assert joined.vector.dtype == view.own.dtype, "the result has the dtype of the node's own vector"
    assert bool(joined.vector.isfinite().all()), "the result of finite vectors is finite"
    assert len(joined.verdicts) == len(view.vectors), "there is one verdict per vector, in the view's order"
    for verdict in joined.verdicts:
        assert isinstance(verdict, VectorVerdict), "aggregate gives vector verdicts"
        assert verdict.action in get_args(VectorAction), f"an action is one of {', '.join(get_args(VectorAction))}"
        finite = isinstance(verdict.score, float) and math.isfinite(verdict.score)
        assert verdict.score is None or finite, "a score is a finite float or None"
        assert isinstance(verdict.reason, str), "a reason is text"
