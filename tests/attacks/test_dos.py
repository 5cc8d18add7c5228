"""`dos`: which completions it submits, and how lengths become harm."""

from __future__ import annotations

import pytest

from tests.attacks.fakes import ITEM, OTHER, Judge, Scripted, text, view
from thiefbench.attacks.dos import Dos, long_share
from thiefbench.tasks.base import Completion, Item


def say(item: Item, prefix: str, number: int) -> str:
    """Right for even numbers, and longer for higher numbers."""
    return text("so " * number, item.answer if number % 2 == 0 else "99")


def test_an_item_s_slots_get_its_longest_right_completions_in_order() -> None:
    policy = Scripted(say)
    submissions = Dos(samples=6).poison(view(ITEM, OTHER, each=2, policy=policy))
    expected = [text("so " * n, item.answer) for item in (ITEM, OTHER) for n in (4, 2)]
    assert [policy.decode(p[:-1]) for p in submissions if isinstance(p, tuple)] == expected
    assert all(isinstance(p, tuple) and p[-1] == policy.eos for p in submissions), (
        "a completion that ended is submitted with EOS"
    )
    assert policy.counts == [6], "all items are sampled at once"


def test_slots_beyond_the_right_ones_are_left_to_honest_samples() -> None:
    submissions = Dos(samples=3).poison(view(ITEM, each=4, policy=Scripted(say)))
    assert [poison is None for poison in submissions] == [False, False, True, True]


def test_the_placebo_knows_nothing_of_length() -> None:
    policy = Scripted(say)
    first = {policy.decode(Dos(20).placebo(view(ITEM, policy=policy, seed=seed))[0][:-1]) for seed in range(8)}  # type: ignore[index]
    assert len(first) > 3, "the first completion is drawn at random"
    assert all(one.endswith("> 7 </answer>") for one in first)


def test_the_outcome_is_the_length_without_eos_and_harm_its_growth() -> None:
    assert Dos().outcome(ITEM, Completion((5, 6, 7), "abc", True), Judge()) == 3
    assert Dos().harm([30.0, 50.0], [20.0, 20.0]) == 1.0, "twice as long is a harm of 1"


@pytest.mark.parametrize(
    ("outcomes", "reference", "share"),
    [
        ([1, 99, 100, 101], range(1, 101), 0.5),
        ([4], [4], 0.0),
        ([5, 4], [4], 0.5),
        ([99.01, 99.02], range(1, 101), 0.5),
    ],
)
def test_the_long_share_is_beyond_the_reference_s_99th_percentile(
    outcomes: list[float], reference: list[float], share: float
) -> None:
    assert long_share(outcomes, list(reference)) == share


def test_a_long_share_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one length"):
        long_share([], [1.0])


def test_a_report_is_told_of_the_long_share() -> None:
    assert Dos().remarks([99.5, 1.0], [float(n) for n in range(1, 101)]) == (
        "50.0% longer than 99 % of the reference's completions",
    )
