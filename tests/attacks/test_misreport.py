from __future__ import annotations

import pytest

from tests.attacks.fakes import ITEM, OTHER, Says, view
from thiefbench import registry
from thiefbench.attacks.base import Claimed, Decoy, Seeded
from thiefbench.attacks.misreport import Misreport
from thiefbench.attacks.text import Text


def test_every_submission_carries_the_claim() -> None:
    inner = Text("hail to all", "start")
    granted = view(ITEM, OTHER, each=2)
    submissions = Misreport(inner, logprob=-30.0).poison(granted)
    assert [each.content for each in submissions if isinstance(each, Claimed)] == list(inner.poison(granted)), (
        "the text stays"
    )
    assert {each.logprob for each in submissions if isinstance(each, Claimed)} == {-30.0}


def test_what_is_no_poison_stays_as_it_is() -> None:
    kept = (None, Decoy("gibber"), Seeded((1, 2), 7))
    assert Misreport(Says(*kept)).poison(view(ITEM, each=3)) == list(kept)
    claimed, ids = Misreport(Says(Claimed("a", version=3), (1, 2))).poison(view(ITEM, each=2))
    assert claimed == Claimed("a", -100.0, 3), "other claims are kept"
    assert ids == Claimed((1, 2), -100.0)


def test_a_whole_number_is_a_log_prob_too() -> None:
    attack = registry.make("attack", "misreport(logprob=-50)")
    assert type(attack.logprob) is float, "receivers read floats only, and a spec string may hold a whole number"
    assert attack.logprob == -50


@pytest.mark.parametrize("logprob", [0.1, float("nan"), float("inf")])
def test_what_is_no_log_prob_is_refused(logprob: float) -> None:
    with pytest.raises(ValueError, match="misreport: logprob is the logarithm of a probability"):
        Misreport(Text(), logprob=logprob)
