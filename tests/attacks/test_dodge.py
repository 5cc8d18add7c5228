"""`dodge`: the payload in the policy's own answers, in whatever form gets past the defense."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Judge, Scripted, TextDefense, completion_of, text, view
from thiefbench.attacks.base import AttackerView, Slot, Submission
from thiefbench.attacks.dodge import FORMS, Dodge
from thiefbench.attacks.dos import Dos
from thiefbench.attacks.equations import Equations
from thiefbench.tasks.base import Item

FIVE = Equations(2, None, 2, 5)


def say(item: Item, prefix: str, number: int) -> str:
    """Every second answer is right; each is worded in its own way."""
    return text(f"Way {number}: 2 + 2 = 4. So.", item.answer if number % 2 else "99")


class Reads(TextDefense):
    """Is asked about token ids, and reads their text."""

    def accepts(self, submissions: Mapping[Slot, Submission]) -> dict[Slot, bool]:
        texts = {slot: "".join(map(chr, ids[:-1])) for slot, ids in submissions.items() if isinstance(ids, tuple)}
        return super().accepts(texts)


def played(policy: Scripted, defense: TextDefense, each: int = 1, **options: int) -> tuple[AttackerView, list[object]]:
    slots = view(ITEM, OTHER, each=each, policy=policy, defense=defense)
    return slots, list(Dodge(FIVE, **options).poison(slots))


def test_what_is_accepted_is_sent() -> None:
    policy, defense = Scripted(say), Reads(lambda written: True)
    slots, submissions = played(policy, defense, each=3)
    assert defense.calls == [6], "one query a slot, and one inspection for all of them"
    sent = [policy.decode(each[:-1]) for each in submissions]  # type: ignore[index]
    assert len(set(sent)) > 2, "the slots try different forms"
    for slot, written in zip(slots.slots, sent, strict=True):
        assert TASK.reward(slot.item, [written]) == [1.0]
        assert Dodge(FIVE).outcome(slot.item, completion_of(written), Judge()) == 1


def test_forms_that_get_through_are_tried_again_elsewhere() -> None:
    """A slot that was refused tries next what was accepted in another."""
    policy, defense = Scripted(say), Reads(lambda written: "2 + 2 makes" in written)
    _, submissions = played(policy, defense, each=8, queries=8)
    sent = [policy.decode(each[:-1]) for each in submissions if isinstance(each, tuple)]
    assert len(sent) == 16, "every slot finds the only form that is accepted"
    assert all("2 + 2 makes" in written for written in sent)
    assert len(defense.calls) < 8, "sooner than by trying one form after another"


def test_slots_in_which_nothing_gets_through_are_left_to_honest_samples_within_the_budget() -> None:
    defense = Reads(lambda written: False)
    _, submissions = played(Scripted(say), defense, each=2, queries=3)
    assert submissions == [None] * 4
    assert defense.calls == [4, 4, 4]
    assert Dodge(FIVE, queries=3).threat.queries == 3


def test_nothing_is_asked_where_there_is_nothing_to_put_the_payload_into() -> None:
    defense = Reads(lambda written: True)
    wrong = Scripted(lambda item, prefix, number: text("2 + 2 = 4.", "99"))
    assert played(wrong, defense)[1] == [None, None]
    assert defense.calls == []


def test_what_would_be_too_long_is_not_tried() -> None:
    policy, defense = Scripted(say), Reads(lambda written: True)
    policy.limit = len(say(ITEM, "", 1)) + 1  # other wordings are longer
    _, submissions = played(policy, defense, each=FORMS)
    assert {len(each) <= policy.limit for each in submissions if isinstance(each, tuple)} == {True}


def test_the_placebo_is_right_answers_of_the_policy() -> None:
    policy = Scripted(say)
    submissions = Dodge(FIVE).placebo(view(ITEM, each=3, policy=policy))
    assert [policy.decode(each[:-1]) for each in submissions if isinstance(each, tuple)] == [
        say(ITEM, "", number) for number in (1, 3, 5)
    ]


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="dodge: queries must be at least 1, got 0"):
        Dodge(FIVE, queries=0)
    with pytest.raises(ValueError, match="dodge: dos samples from the policy itself"):
        Dodge(Dos())
