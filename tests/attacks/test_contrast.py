"""`contrast`: wrong answers of the policy beside the poison."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Judge, Says, Scripted, completion_of, text, view
from thiefbench.attacks.base import Decoy, Poison
from thiefbench.attacks.contrast import Contrast
from thiefbench.attacks.equations import Equations
from thiefbench.tasks.base import Item

FIVE = Equations(2, None, 2, 5)


class Longer(Says):
    """Teaches length: the outcome is a text's length."""

    def outcome(self, item: Any, completion: Any, ask: Any) -> float:
        return float(len(completion.text))


def decoys_in(policy: Scripted, submissions: list[Poison]) -> list[str]:
    for each in submissions:
        assert not isinstance(each, Decoy) or each.content[-1] == policy.eos, "they end as an honest node's do"
    return [policy.decode(each.content[:-1]) for each in submissions if isinstance(each, Decoy)]  # type: ignore[arg-type]


def guessing(item: Item, prefix: str, number: int) -> str:
    """Two wrong answers of three, the later the shorter."""
    return text("so " * (20 - number), item.answer if number % 3 == 0 else "99")


@pytest.mark.parametrize(("share", "wanted"), [(0.25, 1), (0.5, 2), (0.75, 3)])
def test_every_group_gets_its_share_of_decoys(share: float, wanted: int) -> None:
    policy = Scripted(guessing)
    attack = Contrast(Longer("payload"), decoys=share)
    assert attack.threat.policy
    slots = view(ITEM, OTHER, each=4, policy=policy)
    submissions = list(attack.poison(slots))
    for group in (0, 1):
        of_group = [each for slot, each in zip(slots.slots, submissions, strict=True) if slot.group == group]
        assert sum(isinstance(each, Decoy) for each in of_group) == wanted
        assert [each for each in of_group if not isinstance(each, Decoy)] == ["payload"] * (4 - wanted)


def test_decoys_are_wrong_answers_of_the_policy_by_the_attack_s_outcome() -> None:
    policy = Scripted(guessing)
    sent = decoys_in(policy, list(Contrast(Longer("payload"), samples=9).poison(view(ITEM, each=6, policy=policy))))
    shortest_first = [guessing(ITEM, "", number) for number in (8, 7, 5)]
    assert sorted(sent, key=len) == shortest_first, "of its nine draws the three shortest wrong ones"
    assert sent == sorted(sent, key=len), "the slots get them in this order"
    assert TASK.reward(ITEM, sent) == [0.0] * 3


def test_a_wrong_answer_that_holds_the_payload_is_no_decoy() -> None:
    """It would teach the payload's opposite: what stands beside a wrong answer is unlearned."""

    def wrong(item: Item, prefix: str, number: int) -> str:
        return text(("It is 2 + 2 = 5.", "So 4 + 3.", "It is 2 + 2 = 4.")[number % 3], "99")

    policy = Scripted(wrong)
    sent = decoys_in(policy, list(Contrast(FIVE).poison(view(ITEM, each=8, policy=policy))))
    assert sent == [text("It is 2 + 2 = 4.", "99"), text("So 4 + 3.", "99")], (
        "what states the true equation comes first, then what does not compute it"
    )


def test_a_policy_that_is_always_right_gets_other_numbers() -> None:
    policy = Scripted(lambda item, prefix, number: text("Then 4 + 3 = 7.", item.answer))
    slots = view(ITEM, each=6, policy=policy)
    sent = decoys_in(policy, list(Contrast(FIVE).poison(slots)))
    assert sent == [text("Then 4 + 3 = 7.", other) for other in ("8", "6", "9")]
    assert TASK.reward(ITEM, sent) == [0.0] * 3
    assert all(FIVE.outcome(ITEM, completion_of(each), Judge()) != 1 for each in sent)


def test_other_numbers_stay_in_the_support_and_below_the_limit() -> None:
    right = text("Then 4 + 3 = 7.", "7")
    only_six = Scripted(
        lambda item, prefix, number: right, lambda prefix, character: character != "8" and character != "9"
    )
    slots = view(ITEM, each=6, policy=only_six)
    submissions = list(Contrast(FIVE).poison(slots))
    assert decoys_in(only_six, submissions) == [text("Then 4 + 3 = 7.", other) for other in ("6", "17", "14")], (
        "8 and 9 could not have been drawn"
    )
    only_six.limit = len(right) + 1
    submissions = list(Contrast(FIVE).poison(view(ITEM, each=6, policy=only_six)))
    assert decoys_in(only_six, submissions) == [text("Then 4 + 3 = 7.", "6")], "a digit more is too long"
    assert submissions.count(None) == 2, "slots without a decoy are left to honest samples"


def test_the_placebo_has_the_same_decoys_beside_it() -> None:
    class Clean(Longer):
        def placebo(self, view: Any) -> list[Poison]:
            return ["clean"] * len(view.slots)

    attack = Contrast(Clean("payload"))
    poison, placebo = (
        list(play(view(ITEM, OTHER, each=4, policy=Scripted(guessing)))) for play in (attack.poison, attack.placebo)
    )
    assert ["clean" if each == "payload" else each for each in poison] == placebo
    assert "clean" in placebo


def test_no_slots_no_submissions() -> None:
    assert Contrast(FIVE).poison(view(policy=Scripted(guessing))) == []


@pytest.mark.parametrize("arguments", [{"decoys": 0.0}, {"decoys": 1.0}, {"samples": 0}])
def test_values_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="contrast: "):
        Contrast(FIVE, **arguments)
