from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.base import PoolCompletion
from thiefbench.defenses.sender_cap import SenderCap


def vertical(**counts: int) -> list[PoolCompletion]:
    """Groups of two completions, the given number of groups per sender, shuffled."""
    senders = [sender for sender, count in counts.items() for _ in range(count)]
    pool = [
        replace(offer("a", sender=sender), group=group, index=index)
        for group, sender in enumerate(senders)
        for index in range(2)
    ]
    return random.Random(1).sample(pool, len(pool))


def kept(pool: list[PoolCompletion], share: float = 1.0, seed: int = 7) -> Counter[str]:
    """How many completions are accepted, by sender."""
    verdicts = SenderCap(share).inspect(view(pool, rng=random.Random(seed)))
    return Counter(each.sender for each, verdict in zip(pool, verdicts, strict=True) if verdict.action == "accept")


def test_equal_senders_keep_all() -> None:
    pool = vertical(a=3, b=3, c=3)
    assert set(actions(SenderCap().inspect(view(pool)))) == {"accept"}


def test_a_flooder_keeps_its_fair_share() -> None:
    pool = vertical(a=2, b=2, c=8)  # a mean of 4 groups
    assert kept(pool) == {"a": 4, "b": 4, "c": 8}, "whole groups of two completions, 4 of them at most"
    assert kept(pool, share=0.5) == {"a": 4, "b": 4, "c": 4}
    assert kept(pool, share=0.01) == {"a": 2, "b": 2, "c": 2}, "one group is always left"
    verdicts = SenderCap().inspect(view(pool))
    groups = {(each.group, verdict.action) for each, verdict in zip(pool, verdicts, strict=True)}
    assert len(groups) == 12, "the completions of a group go together"
    rejected = {(verdict.score, verdict.reason) for verdict in verdicts if verdict.action == "drop"}
    assert rejected == {(8.0, "beyond 4 groups of one sender")}


def test_the_generator_draws_which_groups_stay() -> None:
    pool = vertical(a=2, b=2, c=8)
    stays: Counter[int] = Counter()
    for seed in range(200):
        verdicts = SenderCap().inspect(view(pool, rng=random.Random(seed)))
        accepted = {each.group for each, made in zip(pool, verdicts, strict=True) if made.action == "accept"}
        stays.update(accepted - set(range(4)))
    assert len(stays) == 8
    assert min(stays.values()) > 60, f"each of the flooder's groups is as good as any other: {stays}"


def test_groups_that_all_share_are_nobodys_flood() -> None:
    pool = [
        replace(offer("a", sender=sender), group=group, index=index)
        for group in range(6)
        for index, sender in enumerate("abcd")
    ]
    assert set(actions(SenderCap().inspect(view(pool)))) == {"accept"}, (
        "in the horizontal topology every sender has a part of every group, and that is its fair share"
    )


def test_what_a_pseudonym_reads_says_nothing() -> None:
    pool = vertical(a=2, b=7, c=8)
    renamed = [replace(each, sender={"a": "z", "b": "y", "c": "x"}[each.sender]) for each in pool]
    verdicts = [SenderCap(0.7).inspect(view(given, rng=random.Random(3))) for given in (pool, renamed)]
    assert actions(verdicts[0]) == actions(verdicts[1])


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sender_cap: share must be above 0, got 0"):
        SenderCap(share=0)
