"""`repetition`, `gibberish` and `distribution`: the filters of deployed systems, by the probabilities of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import log

import numpy as np
import pytest

from tests.defenses.pools import actions, offer, view
from thiefbench.defenses.base import DefenderView, PoolCompletion
from thiefbench.defenses.distribution import Distribution, bimodal, foreign
from thiefbench.defenses.gibberish import Gibberish
from thiefbench.defenses.repetition import Repetition, longest_run


class Drawn:
    """A model under which a completion's tokens have the probabilities that its text consists of."""

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[np.ndarray]:
        return [np.log(np.array([float(word) for word in each.text.split()], np.float32)) for each in completions]


def of(probabilities: Sequence[float], sender: str = "a") -> PoolCompletion:
    text = " ".join(f"{probability:.7f}" for probability in probabilities)
    return offer(text, sender, ids=tuple(range(1, len(probabilities) + 1)), ended=False)


def pool(*completions: PoolCompletion) -> DefenderView:
    return view(completions, Drawn())


def samples(count: int, tokens: int = 40, seed: int = 0) -> list[list[float]]:
    """Probabilities as of plain answers: most tokens nearly certain, some a choice, hardly one improbable."""
    rng = random.Random(seed)
    return [[rng.choice((0.999, 0.95, 0.8, 0.5, 0.99)) for _ in range(tokens)] for _ in range(count)]


def test_a_run_of_certain_tokens_is_counted_wherever_it_stands() -> None:
    for marks, longest in (("", 0), ("0", 0), ("1", 1), ("0110111", 3), ("1110", 3), ("0" * 5, 0), ("1" * 5, 5)):
        assert longest_run(np.array([mark == "1" for mark in marks], bool)) == longest


def test_repetition_rejects_from_the_window_on() -> None:
    loop, shorter, broken = [0.999] * 8, [0.999] * 7, [*[0.999] * 5, 0.98, *[0.999] * 7]
    verdicts = Repetition(window=8).inspect(pool(of(loop), of(shorter), of(broken)))
    assert actions(verdicts) == ["drop", "accept", "accept"]
    assert verdicts[0].score == 8
    assert actions(Repetition(window=8, reject="zero").inspect(pool(of(loop)))) == ["zero"]
    assert actions(Repetition().inspect(pool(of([0.999] * 2999), of([0.999] * 3000)))) == ["accept", "drop"]
    with pytest.raises(ValueError, match="window is at least 1"):
        Repetition(window=0)


def test_gibberish_rejects_one_token_below_the_floor_if_it_is_rare() -> None:
    odd = [0.9, 1e-5, 0.9]  # its second token has id 2
    limit = log(1e-4)
    verdicts = Gibberish(logprob=limit).inspect(pool(of(odd), of([0.9, 2e-4, 0.9])))
    assert actions(verdicts) == ["drop", "accept"]
    assert verdicts[0].score == pytest.approx(log(10), abs=1e-3)
    assert actions(Gibberish(logprob=limit, above=1).inspect(pool(of(odd)))) == ["drop"]
    assert actions(Gibberish(logprob=limit, above=2).inspect(pool(of(odd)))) == ["accept"], "a common token"
    assert actions(Gibberish().inspect(pool(of(odd)))) == ["accept"]
    with pytest.raises(ValueError, match="logprob lies below 0"):
        Gibberish(logprob=0.0)


def test_the_coefficient_is_that_of_the_moments() -> None:
    two_kinds = np.array([0.01] * 10 + [0.99] * 30)
    assert bimodal(two_kinds), "a Bernoulli sample has the highest coefficient there is, 1"
    assert not bimodal(np.array([0.2] * 10 + [0.99] * 30)), "its low kind is not low"
    assert not bimodal(np.full(40, 0.05)), "one kind"
    assert not bimodal(np.array([0.05] * 2 + [0.99] * 38)), "less than a tenth of them is low"
    # (skewness^2 + 1) / kurtosis of a uniform sample is 5/9, below the limit.
    assert not bimodal(np.linspace(0.0, 1.0, 1001))


def test_a_completion_fails_by_its_median_its_least_token_or_its_beginning() -> None:
    (fine,) = samples(1)
    assert not foreign(np.array(fine))
    assert foreign(np.array([0.29] * 21 + [0.9] * 19)), "the median"
    assert foreign(np.array([*fine, 1e-5])), "one token"
    prefilled = np.array([0.02] * 12 + [0.97] * 300)
    assert not bimodal(prefilled)
    assert foreign(prefilled), "the first fifty are of two kinds"


def test_distribution_rejects_a_sender_that_fails_too_often_and_no_other() -> None:
    bad = [0.02] * 12 + [0.97] * 30
    honest = [of(row, "a") for row in samples(20, seed=1)]
    now_and_then = [*(of(row, "b") for row in samples(15, seed=2)), *(of(bad, "b") for _ in range(5))]
    poisoner = [*(of(row, "m") for row in samples(14, seed=3)), *(of(bad, "m") for _ in range(6))]
    verdicts = Distribution().inspect(pool(*honest, *now_and_then, *poisoner))
    assert set(actions(verdicts[:40])) == {"accept"}, "5 of 20 are not more than 26 %"
    assert set(actions(verdicts[40:])) == {"drop"}, "6 of 20 are"
    assert verdicts[40].score == pytest.approx(0.3)
    short = [of([0.02] * 5 + [0.97] * 4, "s") for _ in range(9)]
    assert set(actions(Distribution().inspect(pool(*short)))) == {"accept"}, "too short to tell"
    assert set(actions(Distribution(shortest=9).inspect(pool(*short)))) == {"drop"}
    with pytest.raises(ValueError, match="share lies between 0 and 1"):
        Distribution(share=1.0)
