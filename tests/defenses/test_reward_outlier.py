"""`reward_outlier`: Krum's score, and why its rule is the wrong one here."""

from __future__ import annotations

import numpy as np
import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.reward_outlier import RewardOutlier, krum


def test_krum_by_hand() -> None:
    features = np.array([[0.0], [0.0], [1.0], [3.0]])
    assert krum(features, 0.25).tolist() == [0, 0, 1, 4], (
        "one of four rows is assumed malicious, so one neighbour counts"
    )
    assert krum(features, 0.0).tolist() == [0 + 1, 0 + 1, 1 + 1, 4 + 9]
    assert krum(features[:2], 0.0).tolist() == [0, 0], "two rows have no neighbours to count"


def group(rewards: list[float], words: int = 5) -> list[PoolCompletion]:
    return [offer("w " * words, reward=reward, index=i) for i, reward in enumerate(rewards)]


def test_it_kills_the_rare_good_completion() -> None:
    verdicts = RewardOutlier().inspect(view(group([1.0] + [0.0] * 11)))
    assert actions(verdicts) == ["drop"] + ["accept"] * 11, "this is its negative result"


def test_equal_groups_are_left_alone_and_length_counts() -> None:
    assert set(actions(RewardOutlier().inspect(view(group([1.0] * 12))))) == {"accept"}
    assert set(actions(RewardOutlier().inspect(view(group([1.0] * 6 + [0.0] * 6))))) == {"accept"}
    long = [*group([1.0] * 11), *group([1.0], words=50)]
    assert actions(RewardOutlier(reject="zero").inspect(view(long))) == ["accept"] * 11 + ["zero"]


def test_wrong_arguments() -> None:
    for wrong in ({"share": 0.5}, {"factor": 0.5}):
        with pytest.raises(ValueError, match="reward_outlier: "):
            RewardOutlier(**wrong)
