"""Intervals of rejection rates: by hand, and by how often they hold a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from thiefbench.suite.analysis.clustered import clustered_rate, design_effect, numbered
from thiefbench.suite.analysis.scoring import wilson

Labels = NDArray[np.int64]


def labels(senders: int, items: int, each: int) -> tuple[Labels, Labels]:
    """Every sender answers every item so often."""
    sender, item, _ = np.meshgrid(np.arange(senders), np.arange(items), np.arange(each), indexing="ij")
    return sender.ravel(), item.ravel()


def test_nothing_to_judge_has_no_value() -> None:
    empty = np.array([], np.int64)
    assert clustered_rate(np.array([], bool), empty, empty).value is None


def test_cases_of_their_own_have_the_exact_interval() -> None:
    """Where every completion has an item of its own and a single sender, as many rejected as not: Clopper-Pearson."""
    rejected = np.arange(400) % 2 == 0
    rate = clustered_rate(rejected, np.zeros(400, np.int64), np.arange(400))
    exact = binomtest(200, 400).proportion_ci(0.95, "exact")
    assert rate.value == 0.5
    assert (rate.low, rate.high) == (pytest.approx(exact.low, abs=2e-3), pytest.approx(exact.high, abs=2e-3))


@pytest.mark.parametrize("rejected", [False, True])
def test_without_a_difference_every_item_is_one_case(rejected: bool) -> None:
    senders, items = labels(3, 50, 4)
    rate = clustered_rate(np.full(600, rejected), senders, items)
    exact = binomtest(50 * rejected, 50).proportion_ci(0.95, "exact")
    assert (rate.low, rate.high, rate.count) == (pytest.approx(exact.low), pytest.approx(exact.high), 600)
    lone = clustered_rate(np.array([rejected]), np.array([0]), np.array([0]))
    assert (lone.low, lone.high) == ((pytest.approx(0.025), 1.0) if rejected else (0.0, pytest.approx(0.975)))


def test_items_that_fare_alike_are_one_case_each() -> None:
    """Half of 100 items are rejected by every completion: the design effect is the six completions of an item."""
    senders, items = labels(1, 100, 6)
    assert design_effect(items % 2 == 0, senders, items) == pytest.approx(6, rel=0.05)


def test_the_two_way_variance_by_hand() -> None:
    """Two senders, two items, one completion each; only that of sender 0 on item 0 is rejected.

    Residuals 3/4 and three times -1/4. Sums by sender 1/2 and -1/2: V = 2 * (1/4 + 1/4) / 16 = 1/16, and by item the
    same; by pair 4/3 * (9/16 + 3/16) / 16 = 1/16. Together 1/16; independent ones 3/64. The effect seen is 4/3; one
    item holds a rejection and both an acceptance, so it counts (1 * 4/3 + 2) / 2 = 5/3. Beyond 3/64 each part has
    1/64, so there are (1/16)^2 / (2 * (1/64)^2) = 8 degrees of freedom, capped at 3: t = 3.1824.
    """
    senders, items = labels(2, 2, 1)
    rejected = np.array([True, False, False, False])
    assert design_effect(rejected, senders, items) == pytest.approx(5 / 3 * (3.1824 / 1.95996) ** 2, rel=1e-4)


def test_a_rare_rejection_adds_little_certainty() -> None:
    """From one rejection no cluster can be seen, so the bound stays far above that of independent completions."""
    senders, items = labels(3, 100, 4)
    for count in (0, 1, 2):
        high = clustered_rate(np.arange(1200) < count, senders, items).high
        independent = wilson(count, 1200).high
        assert high is not None
        assert independent is not None
        assert high > 3 * independent


def test_names_are_numbered_and_order_changes_nothing() -> None:
    assert numbered(["b", "a", "b"]).tolist() == [0, 1, 0]
    rng = np.random.default_rng(0)
    senders, items = labels(3, 20, 4)
    rejected, order = rng.random(240) < 0.3, rng.permutation(240)
    one = clustered_rate(rejected, senders, items)
    other = clustered_rate(rejected[order], 7 - senders[order], items[order] + 5)
    assert (one.low, one.high) == (pytest.approx(other.low), pytest.approx(other.high))


def coverage(by_item: float, by_sender: float) -> tuple[float, float]:
    """How often the clustered and the Wilson interval hold the truth; verdicts have a logit with these deviations."""
    rng = np.random.default_rng(1)
    senders, items = labels(3, 60, 4)
    spread = np.hypot(by_item, by_sender)
    truth = float((1 / (1 + np.exp(2 - rng.normal(0, 1, 200_000) * spread))).mean())
    held = np.zeros(2)
    for _ in range(200):
        logit = -2 + rng.normal(0, by_sender, 3)[senders] + rng.normal(0, by_item, 60)[items]
        rejected = rng.random(len(items)) < 1 / (1 + np.exp(-logit))
        rates = clustered_rate(rejected, senders, items), wilson(int(rejected.sum()), len(rejected))
        held += [rate.low <= truth <= rate.high for rate in rates]  # type: ignore[operator]
    return float(held[0] / 200), float(held[1] / 200)


@pytest.mark.parametrize(("by_item", "by_sender"), [(2.0, 0.0), (0.0, 0.7), (2.0, 0.7)])
def test_clustered_verdicts_are_covered_and_were_not(by_item: float, by_sender: float) -> None:
    """With 200 pools a measured 95 % is exact to about three points; three senders have few degrees of freedom."""
    clustered, independent = coverage(by_item, by_sender)
    assert clustered > 0.88
    assert independent < 0.75, "why completions are not taken for independent"


def test_independent_verdicts_are_covered() -> None:
    assert coverage(0.0, 0.0)[0] > 0.93
