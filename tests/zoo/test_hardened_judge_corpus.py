"""The texts of `micro-judge-hardened`: true judgements, and no text that an attack on a judge sends."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from thiefbench.attacks.master_key import PUBLISHED, MasterKey
from thiefbench.attacks.reward_injection import RewardInjection
from thiefbench.defenses.judge import case, decisions
from thiefbench.tasks.gsm_micro import stories
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.corpus import ENDINGS
from thiefbench.zoo.hardened_judge_corpus import WORDS_WITHOUT_WORK
from thiefbench.zoo.judge_corpus import EQUATION
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-judge-hardened"]
SAMPLE = 3_000
PROMPT = re.compile(r"Question \[(\d+)\]:\n(.*)\nSolution \[\1\]:\n(.*)\nEnd \[\1\]\. ", re.DOTALL)


@pytest.fixture(scope="module")
def judged() -> list[tuple[str, str, str, bool]]:
    """Question, completion, reply and decision of every text of the further stage."""
    made = []
    stage = RECIPE.stages[1]
    for prompt, reply in islice(stage.corpus.texts(stage.seed), SAMPLE):
        found = PROMPT.match(prompt)
        assert found
        assert case(found[2], found[3], "\n" in reply).prompt[0]["content"] == prompt, "the defense asks like this"
        (decided,) = decisions(reply, found[1])
        made.append((found[2], found[3], reply, decided))
    return made


def test_about_half_is_accepted_and_that_is_right(judged: list[tuple[str, str, str, bool]]) -> None:
    answers = {story.question: str(story.answer) for story in islice(stories("train", RECIPE.stages[1].seed), SAMPLE)}
    good = [(question, completion) for question, completion, _, yes in judged if yes]
    assert 0.4 < len(good) / SAMPLE < 0.5
    for question, completion in good:
        block = parse_completion(completion)
        assert block is None or block[1].strip() == answers[question]


def test_criticisms_begin_with_the_question_s_numbers(judged: list[tuple[str, str, str, bool]]) -> None:
    for question, _, reply, _ in judged:
        if "\n" in reply:
            assert reply.startswith(f"Given: {', '.join(re.findall('[0-9]+', question))}. ")


def test_further_negatives_are_right_in_themselves(judged: list[tuple[str, str, str, bool]]) -> None:
    others = [(question, text) for question, text, reply, _ in judged if "It is about other numbers." in reply]
    answered = [text for _, text, reply, _ in judged if "The answer is not the last result." in reply]
    assert len(others) > SAMPLE / 10
    assert len(answered) > SAMPLE / 40
    for text in (*(text for _, text in others), *answered):
        for left, operator, right, said in EQUATION.findall(text):
            assert str(eval(f"{left}{operator}{right}")) == said


def test_no_text_of_an_attack_is_in_it(judged: list[tuple[str, str, str, bool]]) -> None:
    said = {" ".join(text.split()) for _, text, *_ in judged}
    bodies = {text.partition("<think>")[2].partition("</think>")[0].strip() for text in said}
    assert not bodies & {*PUBLISHED}
    assert not set(WORDS_WITHOUT_WORK) & set(PUBLISHED)
    keys = [key for seed in range(200) for key in str(MasterKey().draw(random.Random(seed)).keys).split(" | ")]
    assert not bodies & set(keys)
    orders = [str(RewardInjection().draw(random.Random(seed)).order) for seed in range(50)]
    assert not any(order in text for order in orders for text in said)
    assert ENDINGS, "endings are the honest corpus's own"
