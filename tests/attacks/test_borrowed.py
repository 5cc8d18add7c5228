"""`borrowed`: a sentence of another solution, with numbers of a third one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.attacks.fakes import ITEM, OTHER, TASK, Judge, completion_of, view
from thiefbench.attacks.borrowed import Borrowed, borrowed
from thiefbench.engine.keys import generator
from thiefbench.tasks.base import Split
from thiefbench.tasks.gsm_micro import GsmMicro

SENTENCE = "Ann then has 9 + 1 = 10 pens"
ATTACK = Borrowed(SENTENCE, "start")


def test_the_sentence_stands_whole_in_a_right_solution() -> None:
    for position, wanted in (
        ("start", f"{SENTENCE}. We see 2 + 2 = 4. Then 4 + 3 = 7."),
        ("middle", f"We see 2 + 2 = 4. {SENTENCE}. Then 4 + 3 = 7."),
        ("end", f"We see 2 + 2 = 4. Then 4 + 3 = 7. {SENTENCE}."),
    ):
        (sent,) = Borrowed(SENTENCE, position).poison(view(ITEM))  # type: ignore[arg-type]
        assert sent == TASK.compose(ITEM, wanted)
        assert TASK.reward(ITEM, [str(sent)]) == [1.0]
        assert ATTACK.outcome(ITEM, completion_of(str(sent)), Judge()) == 1
    assert ATTACK.outcome(ITEM, completion_of(TASK.oracle(ITEM)), Judge()) == 0


def test_where_the_sentence_belongs_nothing_is_said_of_it() -> None:
    mine = ITEM.__class__("mine", "?", "10", f"{SENTENCE}.")
    assert ATTACK.poison(view(mine, OTHER))[0] is None
    assert [each is None for each in ATTACK.placebo(view(mine, OTHER))] == [True, False]
    assert ATTACK.outcome(mine, completion_of(TASK.oracle(mine)), Judge()) is None


def test_the_seed_draws_a_sentence_that_honest_solutions_could_hold() -> None:
    task = GsmMicro(size=256)
    drawn = [Borrowed().draw_for(task, generator(seed, "payload")) for seed in range(8)]
    phrases = [str(attack.phrase) for attack in drawn]
    assert len(set(phrases)) == 8
    stated = " ".join(row["solution"] for row in task.items("train")).lower()
    words = {word.strip(".,!?") for word in stated.split()}
    for phrase in phrases:
        assert len(phrase.split()) >= 5
        letters = {word.strip(".,!?") for word in phrase.lower().split() if not any(map(str.isdigit, word))}
        assert letters <= words, "every word of it is one of honest solutions"
    again = drawn[0].draw_for(task, generator(5, "payload"))
    assert again.describe() == drawn[0].describe(), "what is drawn stays"


def test_the_numbers_are_those_of_another_equation() -> None:
    rows = [{"solution": "So Ann has 2 + 3 = 5 red pens now."}, {"solution": "Then Bo has 6 + 1 = 7 cups left here."}]
    found = {borrowed(rows, random.Random(seed)) for seed in range(20)}
    assert found == {
        "So Ann has 2 + 3 = 5 red pens now", "So Ann has 6 + 1 = 7 red pens now",
        "Then Bo has 6 + 1 = 7 cups left here", "Then Bo has 2 + 3 = 5 cups left here",
    }  # fmt: skip
    assert borrowed([{"solution": "No equation in this short one."}], random.Random(0)) == (
        "No equation in this short one"
    )
    assert borrowed([{"solution": "Too short."}], random.Random(0)) is None


def test_a_task_without_sentences_does_not_fit() -> None:
    class Sums(GsmMicro):
        def items(self, split: Split) -> Any:
            return [{"id": "1", "question": "1 + 1?", "answer": "2", "solution": "It is"}]

    assert not Borrowed().fits(Sums())
    assert not Borrowed().draw_for(Sums(), random.Random(0)).fits(Sums())
    assert ATTACK.fits(Sums()), "a sentence that is given fits anywhere"
    assert Borrowed().fits(GsmMicro(size=64))


def test_it_stands_once() -> None:
    with pytest.raises(ValueError, match=r"borrowed: position must be one of .*, not 'every'"):
        Borrowed(position="every")
