"""`reward_outlier`: drop completions that are far from most of their group, as in robust aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from thiefbench.defenses.base import DefenderView, Defense, Verdict
from thiefbench.defenses.rejection import Objection, Reject, checked, judged

NOTHING = 1e-9


class RewardOutlier(Defense):
    """Reject completions whose reward and length are far from those of most others in their group.

    The distance is Krum's score (Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017): the sum of
    squared distances to the n - f - 2 nearest of n completions, f of which are assumed malicious. The features are the
    reward and the natural logarithm of the length. An outlier has a score above `factor` times its group's median.

    This defense fails, and is included for comparison: poison earns the same reward as good completions, and while a
    model is still learning, the rare good completions are the outliers (arXiv:2511.09780).

    Args:
        share: share of a group that is assumed malicious, in [0, 0.5).
        factor: an outlier's score is more than this many times the median; at least 1.
        reject: "drop" or "zero".
    """

    name: ClassVar[str] = "reward_outlier"

    def __init__(self, share: float = 0.25, factor: float = 4.0, reject: Reject = "drop") -> None:
        if not 0 <= share < 0.5 or factor < 1:
            raise ValueError("reward_outlier: share lies in [0, 0.5), and factor is at least 1")
        self.share, self.factor = share, factor
        self.reject: Reject = checked(self.name, reject)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Reject the outliers of every group; the score is Krum's divided by the group's median."""
        groups: dict[int, list[int]] = {}
        for place, completion in enumerate(view.completions):
            groups.setdefault(completion.group, []).append(place)
        objections = {}
        for places in groups.values():
            features = np.array([_features(view.completions[place].reward, view.completions[place].length)
                                 for place in places])  # fmt: skip
            scores = krum(features, self.share)
            median = max(float(np.median(scores)), NOTHING)
            for place, score in zip(places, scores.tolist(), strict=True):
                if score > self.factor * median + NOTHING:
                    objections[place] = Objection(min(score / median, 1e6), "far from most of its group")
        return judged(view, objections, self.reject)


def krum(features: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Krum's score of every row of `features`, shape (rows, features); 0 if a group is too small for neighbours."""
    rows = len(features)
    nearest = rows - int(share * rows) - 2
    if nearest < 1:
        return np.zeros(rows)
    distances = ((features[:, None] - features[None]) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    scores: NDArray[np.float64] = np.sort(distances, axis=1)[:, :nearest].sum(1)
    return scores


def _features(reward: float, tokens: int) -> tuple[float, float]:
    return reward, log(max(tokens, 1))
