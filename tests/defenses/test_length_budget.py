"""`length_budget`: one sender's completions are all long, or some of every sender's are."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.base import PastRound, PoolCompletion
from thiefbench.defenses.length_budget import LengthBudget

HONEST = ("a", "b", "c")


def words(count: int, sender: str, item: int, reward: float = 1.0) -> PoolCompletion:
    """A completion of `count` tokens, EOS included."""
    return offer("w " * (count - 2) + "w", sender=sender, item=str(item), reward=reward)


def drawn(rng: random.Random) -> int:
    return max(3, round(rng.lognormvariate(3.0, 0.5)))


def pool(rng: random.Random, senders: Iterable[str] = HONEST, items: int = 20, each: int = 3) -> list[PoolCompletion]:
    """Every sender's honest answers to the same items."""
    return [words(drawn(rng), sender, item) for item in range(items) for sender in senders for _ in range(each)]


def longest(rng: random.Random, samples: int, items: int = 20, each: int = 3) -> list[PoolCompletion]:
    """The completions of DoS: for each item the longest of many honest answers."""
    longest = []
    for item in range(items):
        longest += [words(n, "m", item) for n in sorted(drawn(rng) for _ in range(samples))[-each:]]
    return longest


def test_the_longest_of_many_samples_are_rejected_and_nothing_honest() -> None:
    rng = random.Random(1)
    for _ in range(5):
        honest, dos = pool(rng), longest(rng, 24)
        verdicts = LengthBudget().inspect(view([*honest, *dos]))
        assert set(actions(verdicts[: len(honest)])) == {"accept"}
        assert actions(verdicts[len(honest) :]).count("drop") >= 0.95 * len(dos)


def test_honest_swarms_lose_hardly_anything() -> None:
    rng = random.Random(2)
    defense, history, lost, seen = LengthBudget(), list[PastRound](), 0, 0
    for number in range(1, 61):
        honest = pool(rng, ("a", "b", "c", "d"), items=8)
        verdicts = tuple(defense.inspect(view(honest, number=number, history=history)))
        history.append(PastRound(number, tuple(honest), verdicts))
        lost += actions(verdicts).count("drop")
        seen += len(honest)
    assert lost / seen < 0.01


def test_one_long_item_is_no_offence_and_many_are() -> None:
    """In the vertical topology a sender answers whole groups, and items differ."""
    rng = random.Random(3)
    groups = [
        [words(drawn(rng), sender, 10 * n + i) for i in range(8) for _ in range(12)] for n, sender in enumerate(HONEST)
    ]
    honest = [offered for group in groups for offered in group]
    one = [words(60 if item == 90 else drawn(rng), "m", item) for item in range(90, 98) for _ in range(12)]
    assert set(actions(LengthBudget().inspect(view([*honest, *one])))) == {"accept"}
    all_long = [words(60, "m", item) for item in range(90, 98) for _ in range(12)]
    assert actions(LengthBudget().inspect(view([*honest, *all_long]))).count("drop") == len(all_long)


def test_a_record_over_rounds_tells_what_one_round_does_not() -> None:
    rng = random.Random(4)
    defense, history, rejected = LengthBudget(), list[PastRound](), []
    for number in range(1, 13):
        sent = [*pool(rng, items=4), *longest(rng, 2, items=4, each=1)]
        verdicts = tuple(defense.inspect(view(sent, number=number, history=history)))
        history.append(PastRound(number, tuple(sent), verdicts))
        rejected.append(actions(verdicts[-4:]).count("drop"))
    assert sum(rejected[:2]) < sum(rejected[-2:]), "even the longer of two samples is detected in time"


def test_what_earned_nothing_does_not_count() -> None:
    rng = random.Random(5)
    honest = pool(rng)
    wrong = [words(60, "m", item, reward=0.0) for item in range(20)]
    right = [words(drawn(rng), "m", item) for item in range(20)]
    assert set(actions(LengthBudget().inspect(view([*honest, *wrong, *right])))) == {"accept"}


def test_order_and_names_do_not_matter() -> None:
    rng = random.Random(6)
    sent = [*pool(rng), *longest(rng, 24)]
    verdicts = dict(zip([id(o) for o in sent], actions(LengthBudget().inspect(view(sent))), strict=True))
    turned = sent[::-1]
    assert [verdicts[id(o)] for o in turned] == actions(LengthBudget().inspect(view(turned)))


@pytest.mark.parametrize("wrong", [{"quantiles": ()}, {"quantiles": (1.0,)}, {"window": -1}, {"deviations": 0.0}])
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="length_budget: "):
        LengthBudget(**wrong)  # type: ignore[arg-type]
