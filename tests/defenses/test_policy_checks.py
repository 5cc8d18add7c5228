"""`termination` and `likelihood`: how probable a completion is to the verifier's model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.defenses.pools import LIMIT, Words, actions, offer, view
from thiefbench.defenses.base import DefenderView, PoolCompletion
from thiefbench.defenses.likelihood import Likelihood
from thiefbench.defenses.termination import Termination


def test_termination_asks_for_a_probable_end_or_the_whole_length() -> None:
    pool = [
        offer("fine"),
        offer("cut off"),
        offer("just so"),
        offer("w " * (LIMIT - 1) + "w", ended=False),
        offer("stopped early", ended=False),
        offer("", ids=(), ended=False),
    ]
    verdicts = Termination().inspect(view(pool, Words(ends={"cut off": 0.1, "just so": 0.11})))
    assert actions(verdicts) == ["accept", "drop", "accept", "accept", "drop", "drop"]
    assert verdicts[1].score == pytest.approx(0.9)
    assert "probability 0.1" in verdicts[1].reason
    lenient = Termination(minimum=0.0, reject="zero").inspect(view(pool, Words(ends={"cut off": 0.1})))
    assert actions(lenient) == ["accept", "accept", "accept", "accept", "zero", "zero"]
    with pytest.raises(ValueError, match="a probability below 1"):
        Termination(1.0)


class Drawn:
    """A model under which a completion's tokens have the log-probs that its text consists of."""

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[np.ndarray]:
        return [np.array([float(word) for word in o.text.split()], np.float32) for o in completions]


def honest(seed: int, senders: str = "abc", count: int = 60) -> list[PoolCompletion]:
    rng = random.Random(seed)
    return [
        offer(" ".join(f"{-rng.expovariate(1.5):.3f}" for _ in range(30)), sender, ended=False)
        for sender in senders
        for _ in range(count)
    ]


def pool(*completions: PoolCompletion, number: int = 1) -> DefenderView:
    return view(completions, Drawn(), number)


def test_likelihood_rejects_a_few_foreign_tokens_and_a_foreign_whole() -> None:
    tail = [offer(f"-12 -13 -12 {o.text}", "m", ended=False) for o in honest(2, "m", 20)]
    whole = [offer(" ".join(["-2.0"] * 30), "m", ended=False) for _ in range(20)]
    verdicts = Likelihood().inspect(pool(*honest(1), *tail, *whole))
    assert set(actions(verdicts[180:])) == {"drop"}
    assert "least probable tokens" in verdicts[180].reason
    assert "mean log-prob" in verdicts[200].reason
    assert actions(verdicts[:180]).count("drop") <= 12, "about one honest completion in a hundred, or a few more"


def test_likelihood_s_false_rejections_are_near_the_target_once_rounds_are_known() -> None:
    defense, rejected = Likelihood(false_rejection=0.05), 0
    for number in range(1, 9):
        verdicts = defense.inspect(pool(*honest(number), number=number))
        rejected += actions(verdicts).count("drop") if number > 3 else 0
    assert 0.02 < rejected / (5 * 180) < 0.09
    assert len(defense.past) == 3, "and only the window is kept"


def test_likelihood_takes_no_thresholds_from_the_judged_sender_or_from_many_names() -> None:
    foreign = [offer("-9 " * 30, f"m{i}", ended=False) for i in range(60)]
    verdicts = Likelihood().inspect(pool(*honest(1), *foreign))
    assert set(actions(verdicts[180:])) == {"drop"}
    alone = Likelihood().inspect(pool(*foreign[:1]))
    assert actions(alone) == ["accept"], "one sender alone has nobody to be compared with"


def test_wrong_arguments() -> None:
    for wrong in ({"false_rejection": 0.0}, {"tail": 0}, {"window": -1}):
        with pytest.raises(ValueError, match="likelihood: "):
            Likelihood(**wrong)  # type: ignore[arg-type]
