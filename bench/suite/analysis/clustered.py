"""The interval of a share with clustered cases: verdicts on one sender, or on one item, are correlated.

A filter tends to treat all completions of a sender, or of an item, alike. So 600 verdicts contain less information than
600 independent ones, and their binomial interval is too narrow. Let y_i be 1 if completion i was rejected, p their mean
and n their number:

1. **Variance.** V = V_sender + V_item - V_both, the two-way clustered variance of a mean (Cameron, Gelbach and Miller,
   Journal of Business & Economic Statistics 29, 2011). V_c is G / (G - 1) * the sum over the G clusters of (sum of y_i
   - p in the cluster)^2 / n^2, and V_both uses the pairs of sender and item as clusters. V is at least the larger of
   V_sender and V_item, and at least p (1 - p) / n. A single sender contributes nothing.
2. **Design effect** V n / (p (1 - p)) (Kish, Survey Sampling, 1965). If few items have a rejection (or few have none),
   it cannot be estimated well: with m such items, it is (m times the estimate + the worst case) / (m + 1), where the
   worst case is n / the number of items, that is, one independent verdict per item.
3. **Interval.** That of Clopper and Pearson with n / design effect * (z / t(df))^2 as the number of cases, which is
   also valid close to 0 and 1 (Korn and Graubard, Survey Methodology 24, 1998). df are Satterthwaite's degrees of
   freedom for the two variances, with G - 1 each.

The interval is about more items from the same kind of senders. One sender, or three alike, say little about other
senders; for these, more seeds are needed, each of which draws its own senders.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit  # the quantiles of scipy.stats, which takes a second to import

from thiefbench.suite.store.records import Score

_MISS = 0.05
_Z = NormalDist().inv_cdf(1 - _MISS / 2)

Labels = NDArray[np.int64]


def clustered_rate(rejected: NDArray[np.bool_], senders: Labels, items: Labels) -> Score:
    """A share with its 95 % interval; see the module.

    Args:
        rejected: shape (n,), one for every completion.
        senders, items: shape (n,), the sender and item of each completion, as integers.

    Returns:
        A score with count n; without completions it has no value.
    """
    count = len(rejected)
    if count == 0:
        return Score(value=None, low=None, high=None, count=0)
    rate = float(rejected.mean())
    effective = count / design_effect(rejected, senders, items)
    low, high = _clopper_pearson(rate * effective, effective)
    return Score(value=rate, low=min(low, rate), high=max(high, rate), count=count)


def design_effect(rejected: NDArray[np.bool_], senders: Labels, items: Labels) -> float:
    """The factor by which clustering reduces the number of effective cases, at least 1; the module has the formula."""
    count, rate = len(rejected), float(rejected.mean())
    item_of, number = _numbered(items)
    worst = count / number
    distinct = min(len(np.unique(item_of[rejected])), len(np.unique(item_of[~rejected])))
    if distinct == 0:
        return worst
    sender_of, several = _numbered(senders)
    rests = rejected.astype(np.float64) - rate
    by_item, by_sender = _variance(rests, item_of, number), _variance(rests, sender_of, several)
    both, pairs = _numbered(sender_of * number + item_of)
    single = rate * (1 - rate) / count
    variance = max(by_sender + by_item - _variance(rests, both, pairs), by_sender, by_item, single)
    seen = (distinct * max(1.0, variance / single) + worst) / (distinct + 1)
    # Satterthwaite's degrees of freedom; only the excess over independent cases is estimated from few clusters.
    parts = [(max(by_item - single, 0.0), number), (max(by_sender - single, 0.0), several)]
    spread = sum(part**2 / (groups - 1) for part, groups in parts if groups > 1)
    freedom = min(variance**2 / spread if spread else np.inf, count - 1)
    return seen * float((stdtrit(max(freedom, 1.0), 1 - _MISS / 2) / _Z) ** 2)


def numbered(names: Iterable[object]) -> Labels:
    """Names as numbers, equal ones as equal numbers."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def _numbered(labels: Labels) -> tuple[Labels, int]:
    """Labels as 0 .. G - 1, and G."""
    names, numbered = np.unique(labels, return_inverse=True)
    return numbered.reshape(-1), len(names)


def _variance(rests: NDArray[np.float64], clusters: Labels, number: int) -> float:
    """The variance of a mean with one level of clusters; 0 for a single cluster, which says nothing."""
    if number < 2:
        return 0.0
    sums = np.bincount(clusters, weights=rests, minlength=number)
    return float(number / (number - 1) * (sums**2).sum() / len(rests) ** 2)


def _clopper_pearson(successes: float, cases: float) -> tuple[float, float]:
    """The exact 95 % interval of a share, for numbers of cases that need not be whole."""
    failures = cases - successes
    low = float(betaincinv(successes, failures + 1, _MISS / 2)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - _MISS / 2)) if failures > 0 else 1.0
    return low, high
