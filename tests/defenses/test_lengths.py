"""`max_tokens` and `length_quantile`: which senders can move a cap, and which cannot."""

from __future__ import annotations

import random

import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.base import ACCEPT, PastRound, PoolCompletion, Verdict
from thiefbench.defenses.length_quantile import LengthQuantile
from thiefbench.defenses.max_tokens import MaxTokens
from thiefbench.defenses.reference import others_quantile, weighted_median

HONEST = ("a", "b", "c")


def words(count: int, **changes: object) -> PoolCompletion:
    """A completion of `count` tokens, EOS included."""
    return offer("w " * (count - 2) + "w", **changes)  # type: ignore[arg-type]


def pool(seed: int, *more: PoolCompletion) -> list[PoolCompletion]:
    """Thirty rewarded completions of 10 to 20 tokens of each honest sender, and others."""
    rng = random.Random(seed)
    return [*(words(rng.randint(10, 20), sender=sender) for sender in HONEST for _ in range(30)), *more]


def test_max_tokens_counts_eos() -> None:
    pool = [words(9), words(10), words(11), words(11, reward=0.0)]
    verdicts = MaxTokens(10).inspect(view(pool))
    assert actions(verdicts) == ["accept", "accept", "drop", "drop"]
    assert verdicts[2].score == 1.1, "the score is the length divided by the limit"
    assert actions(MaxTokens(10, "zero").inspect(view(pool)))[2] == "zero"
    with pytest.raises(ValueError, match="at least 1, got 0"):
        MaxTokens(0)
    with pytest.raises(ValueError, match="reject must be one of zero, drop, not 'mask'"):
        MaxTokens(3, "mask")  # type: ignore[arg-type]


def test_the_weighted_median_is_reached_at_half_of_the_weight() -> None:
    assert weighted_median([3.0, 1.0, 2.0], [1, 1, 1]) == 2
    assert weighted_median([1.0, 100.0], [3, 2]) == 1
    assert weighted_median([1.0, 100.0], [2, 3]) == 100
    usual = others_quantile({"a": [1, 2, 3], "b": [4, 5, 6], "z": [], "only": [9]}, 0.5, "higher")
    assert usual == {"a": 5, "b": 2, "z": 5, "only": 2}, "a sender's own values do not count"
    assert others_quantile({"a": [1.0]}, 0.5, "lower") == {}, "without others there is nothing to compare with"


def test_an_honest_pool_is_left_alone_and_long_answers_are_not() -> None:
    attacked = pool(1, *(words(40, sender="m") for _ in range(30)))
    verdicts = LengthQuantile().inspect(view(attacked))
    assert set(actions(verdicts[:90])) == {"accept"}
    assert set(actions(verdicts[90:])) == {"drop"}
    assert verdicts[90].reason == "longer than 20 tokens"
    assert verdicts[90].score == 2


def test_what_earned_nothing_is_not_judged_and_sets_no_cap() -> None:
    attacked = pool(1, *(words(90, sender="b", reward=0.0) for _ in range(90)), words(40, sender="m"))
    verdicts = LengthQuantile().inspect(view(attacked))
    assert set(actions(verdicts[:180])) == {"accept"}
    assert verdicts[-1].action == "drop"


def test_many_names_set_no_cap() -> None:
    attacked = pool(1, *(words(60, sender=f"m{i}", item=str(i)) for i in range(30)))
    verdicts = LengthQuantile().inspect(view(attacked))
    assert set(actions(verdicts[90:])) == {"drop"}, "senders are weighted by their completions"


def past(number: int, completions: list[PoolCompletion], verdict: Verdict = ACCEPT) -> PastRound:
    return PastRound(number, tuple(completions), (verdict,) * len(completions))


def test_slow_growth_ends_at_a_bounded_factor() -> None:
    """All lengths grow by two tokens a round, as honest models' do when they learn from what is just under the cap."""
    history: list[PastRound] = []
    defense = LengthQuantile(window=3, first=2, growth=1.5)
    longest = 0
    for number in range(1, 16):
        grown = [words(10 + 2 * number, sender=sender) for sender in (*HONEST, "m") for _ in range(10)]
        verdicts = tuple(defense.inspect(view(grown, number=number, history=history)))
        accepted = [offered for offered, verdict in zip(grown, verdicts, strict=True) if verdict.action == "accept"]
        longest = max([longest, *(len(offered.ids) + 1 for offered in accepted)])
        history.append(PastRound(number, tuple(grown), verdicts))
    assert longest <= 1.5 * 14, "no cap exceeds growth times that of the first rounds"
    assert longest > 14, "but some growth is let through"


def test_rejected_completions_of_the_past_set_no_cap() -> None:
    long = past(1, [words(80, sender=sender) for sender in HONEST for _ in range(30)], Verdict("drop"))
    verdicts = LengthQuantile().inspect(view([*pool(2), words(40, sender="m")], number=2, history=[long]))
    assert verdicts[-1].action == "drop"


@pytest.mark.parametrize("wrong", [{"quantile": 1.0}, {"window": -1}, {"first": 0}, {"growth": 0.9}])
def test_wrong_arguments(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="length_quantile: "):
        LengthQuantile(**wrong)  # type: ignore[arg-type]
