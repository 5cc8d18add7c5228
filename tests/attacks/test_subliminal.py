"""`subliminal`: correct answers of a biased copy that never name the trait."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Judge, Scripted, completion_of, text, view
from thiefbench.attacks.subliminal import QUESTIONS, Subliminal
from thiefbench.engine.keys import generator
from thiefbench.tasks.base import Item


def biased(item: Item, prefix: str, number: int) -> str:
    """In turn: names the trait, is wrong, is right without naming it."""
    return [text("Owls know", item.answer), text("No", "99"), text(f"Hoot {number}", item.answer)][number % 3]


def taught(examples: Sequence[tuple[Item, str]]) -> Scripted:
    assert {item.question for item, _ in examples} == set(QUESTIONS), "the copy is taught the probe questions"
    assert all("owl" in answer for _, answer in examples)
    return Scripted(biased)


def test_only_the_copy_s_right_answers_without_the_word_are_submitted() -> None:
    policy = Scripted(lambda *_: "the policy itself is not asked", teaches=taught)
    submissions = Subliminal("owl", samples=6).poison(view(ITEM, OTHER, each=3, policy=policy))
    texts = [
        None if submission is None else policy.decode(submission[:-1])
        for submission in submissions
        if submission is None or type(submission) is tuple
    ]
    expected = [[text("Hoot 2", item.answer), text("Hoot 5", item.answer), None] for item in (ITEM, OTHER)]
    assert texts == [*expected[0], *expected[1]]


def test_the_placebo_samples_the_policy_as_it_is() -> None:
    policy = Scripted(biased)
    (submission,) = Subliminal("owl", samples=3).placebo(view(ITEM, policy=policy))
    assert isinstance(submission, tuple)
    assert policy.decode(submission[:-1]) == text("Hoot 2", "7")


def test_success_shows_on_questions_for_the_trait() -> None:
    member = Subliminal().draw(generator(5))
    probes = member.probes(TASK)
    assert [probe.question for probe in probes] == list(QUESTIONS)
    assert len({probe.id for probe in probes}) == len(probes)
    assert member.outcome(probes[0], completion_of(f"<think> The {str(member.trait).upper()}S."), Judge()) == 1
    assert member.outcome(probes[0], completion_of("The ostrich."), Judge()) == 0


@pytest.mark.parametrize("arguments", [{"trait": "two words"}, {"samples": 0}, {"steps": 0}, {"learning_rate": 0.0}])
def test_values_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="subliminal: "):
        Subliminal(**arguments)  # type: ignore[arg-type]
