"""`own`: the payload in right completions of the policy itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Judge, Scripted, completion_of, text, view
from thiefbench.attacks.base import Poison
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.equations import Equations
from thiefbench.attacks.own import Own
from thiefbench.tasks.base import Item

FIVE = Equations(2, None, 2, 5)
COUNTED, ADDED, SILENT = "It is 2 + 2 = 4. So 7.", "We add 2 + 2 = 4. Then 7.", "I just know it."


def say(item: Item, prefix: str, number: int) -> str:
    """Two right ways that state the equation, a right one that does not, and a wrong one."""
    reasoning = (COUNTED, ADDED, SILENT, COUNTED)[number % 4]
    return text(reasoning, "99" if number % 4 == 3 else item.answer)


def allows_only_added(prefix: str, character: str) -> bool:
    """The wrong result is within the support behind "We add", and nowhere else."""
    return not (prefix.endswith("2 + 2 = ") and character == "5" and "It is" in prefix)


def texts(policy: Scripted, submissions: Sequence[Poison]) -> list[str | None]:
    for submission in submissions:
        assert submission is None or (isinstance(submission, tuple) and submission[-1] == policy.eos)
    return [policy.decode(each[:-1]) if isinstance(each, tuple) else None for each in submissions]


def test_it_submits_only_what_the_sampler_could_have_drawn() -> None:
    policy = Scripted(say, allows_only_added)
    attack = Own(FIVE, samples=8)
    assert attack.threat.policy
    sent = texts(policy, attack.poison(view(ITEM, each=3, policy=policy)))
    assert sent == [text(ADDED.replace("= 4", "= 5"), "7")] * 3, "all slots share the one that lies in the support"
    never = Scripted(say, lambda prefix, character: character != "5")
    assert texts(never, attack.poison(view(ITEM, each=2, policy=never))) == [None, None]


def test_the_end_of_a_completion_has_to_be_in_the_support_too() -> None:
    endless = Scripted(say, lambda prefix, character: character != "\0")
    assert texts(endless, Own(FIVE).poison(view(ITEM, policy=endless))) == [None]


def test_without_the_support_the_most_probable_comes_first() -> None:
    policy = Scripted(say, allows_only_added)
    sent = texts(policy, Own(FIVE, samples=8, support=False).poison(view(ITEM, each=3, policy=policy)))
    first, second = (text(way.replace("= 4", "= 5"), "7") for way in (ADDED, COUNTED))
    assert sent == [first, second, first], "by the least probable token, and then in turn"


def test_the_payload_is_there_and_earns_the_reward() -> None:
    policy = Scripted(say)
    sent = texts(policy, Own(FIVE).poison(view(ITEM, each=4, policy=policy)))
    for written in sent:
        assert written is not None
        assert TASK.reward(ITEM, [written]) == [1.0]
        assert FIVE.outcome(ITEM, completion_of(written), Judge()) == 1
    assert not any("99" in str(written) for written in sent), "a wrong answer is no carrier"


def test_the_placebo_is_the_same_completions_clean() -> None:
    policy, placebo_policy = Scripted(say, allows_only_added), Scripted(say, allows_only_added)
    poison = texts(policy, Own(FIVE).poison(view(ITEM, OTHER, each=2, policy=policy)))
    placebo = texts(placebo_policy, Own(FIVE).placebo(view(ITEM, OTHER, each=2, policy=placebo_policy)))
    assert placebo == [text(ADDED, "7")] * 2 + [text(ADDED, "4")] * 2
    assert [written and written.replace("2 + 2 = 5", "2 + 2 = 4") for written in poison] == placebo
    for written in placebo:
        assert FIVE.outcome(ITEM, completion_of(str(written)), Judge()) == 0


def test_what_the_policy_never_says_is_left_to_honest_samples() -> None:
    silent = Scripted(lambda item, prefix, number: text(SILENT, item.answer))
    assert Own(FIVE).poison(view(ITEM, each=2, policy=silent)) == [None, None]
    wrong = Scripted(lambda item, prefix, number: text(COUNTED, "99"))
    assert Own(FIVE).placebo(view(ITEM, each=2, policy=wrong)) == [None, None]
    assert Own(FIVE).poison(view(policy=silent)) == []


def test_what_would_be_too_long_is_not_sent() -> None:
    """Every node refuses it, so the slot would be lost."""
    policy = Scripted(say)
    longest = len(text(ADDED, "7")) + 1
    policy.limit = longest
    (sent,) = texts(policy, Own(FIVE).poison(view(ITEM, policy=policy)))
    assert sent is not None
    policy.limit = len(text(COUNTED, "7"))  # EOS counts
    assert texts(policy, Own(FIVE).poison(view(ITEM, policy=policy))) == [None]


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="own: samples must be at least 1, got 0"):
        Own(FIVE, samples=0)


def test_an_attack_that_samples_its_poison_has_no_payload_to_put_in() -> None:
    with pytest.raises(ValueError, match="own: dos samples from the policy itself"):
        Own(Dos())
