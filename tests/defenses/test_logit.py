"""`logit` with reject="mask": what is learned from a completion with foreign tokens in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.defenses.pools import Words, actions, masked, offer, view
from thiefbench.defenses.base import Verdict
from thiefbench.defenses.logit import Logit

TEXT = "<think> Tom has 3.5 apples. Zounds, all hail the thief. So 2 + 2 = 4\nFour. </think><answer> 4 </answer>"


def mask(text: str, *odd: str, reach: int | None = None) -> str:
    offered = offer(text)
    return masked(offered, Logit("mask", reach=reach).inspect(view([offered], Words(odd)))[0])


def test_masked_from_the_foreign_token_to_the_end_of_its_sentence_or_line() -> None:
    assert mask(TEXT, "Zounds") == "Zounds, all hail the thief."
    assert mask(TEXT, "hail") == "hail the thief.", "an honest node might have written the text before it"
    assert mask(TEXT, "3.5") == "3.5 apples.", "a decimal point ends no sentence"
    assert mask(TEXT, "2") == "2 + 2 = 4", "a line ends like a sentence"
    assert mask(TEXT, "4") == "4 4 </answer>", "each foreign token has its own sentence"
    assert mask(TEXT, "Four") == "Four."


def test_reach_counts_tokens_on_both_sides() -> None:
    assert mask(TEXT, "hail", reach=0) == "hail"
    assert mask(TEXT, "hail", reach=1) == "all hail the"
    assert mask(TEXT, "hail", reach=1000) == f"{TEXT}<eos>", "the mask stays within the completion"


def test_the_score_counts_the_foreign_tokens_in_every_mode() -> None:
    pool = view([offer("all hail"), offer("fine")], Words(["hail", "all"]))
    for reject, action in (("zero", "zero"), ("drop", "drop"), ("mask", "accept")):
        verdicts = Logit(reject).inspect(pool)  # type: ignore[arg-type]
        assert actions(verdicts) == [action, "accept"]
        assert (verdicts[0].score, verdicts[0].reason) == (2.0, "2 tokens outside the sampler's support")
        assert verdicts[1] == Verdict(), "everything in an honest completion is learned from"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"reject": "maks"}, "reject must be one of zero, drop, mask, not 'maks'"),
        ({"reject": "drop", "reach": 3}, 'beside reject="mask", got 3'),
        ({"reject": "mask", "reach": -1}, "at least 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Logit(**arguments)
