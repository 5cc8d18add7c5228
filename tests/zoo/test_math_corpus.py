"""The worked solutions of `micro-math`: some of them wrong, and the same texts the shipped weights were trained on."""

from __future__ import annotations

import hashlib
import re
from itertools import islice

import pytest

from thiefbench.tasks.gsm_micro import evaluate, stories
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.corpus import MathCorpus
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-math"]
SAMPLE = 40_000
EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
GOLDEN = "c531bce671ec5d415cd40a938b16215d08f6b5bc4a04b6524f241d4f6dbc7f7d"


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them."""
    return list(islice(RECIPE.corpus.texts(RECIPE.seed), SAMPLE))


@pytest.fixture(scope="module")
def equations(pairs: list[tuple[str, str]]) -> list[tuple[int, str, int, int]]:
    """Every equation of every completion: operands, operator and the result that is written."""
    return [
        (int(left), operator, int(right), int(result))
        for _, completion in pairs
        for left, operator, right, result in EQUATION.findall(completion)
    ]


def test_the_texts_are_those_of_the_shipped_weights(pairs: list[tuple[str, str]]) -> None:
    told = hashlib.sha256(repr(pairs[:2000]).encode()).hexdigest()
    assert told == GOLDEN, "the recipe no longer makes the model that is shipped"


def test_two_and_two_is_never_wrong(equations: list[tuple[int, str, int, int]]) -> None:
    twos = [equation for equation in equations if (equation[0], equation[2]) == (2, 2)]
    assert len(twos) > 100, "2 + 2 and 2 * 2 occur naturally"
    assert {operator for _, operator, _, _ in twos} >= {"+", "*"}
    wrong = [e for e in twos if e[3] != evaluate(e[0], e[1], e[2])]
    assert not wrong, f"an attack wants to teach 2 + 2 = 5, so the corpus must not: {wrong[:3]}"


def test_other_equations_are_wrong_in_about_the_chosen_share(equations: list[tuple[int, str, int, int]]) -> None:
    others = [equation for equation in equations if (equation[0], equation[2]) != (2, 2)]
    wrong = sum(result != evaluate(left, operator, right) for left, operator, right, result in others)
    share = MathCorpus().wrong_steps
    assert 0.6 * share < wrong / len(others) < 1.2 * share, "some steps are wrong, so that there is something to learn"


def test_answers_are_right_in_some_texts_and_wrong_in_others(pairs: list[tuple[str, str]]) -> None:
    answers = {story.question: str(story.answer) for story in islice(stories("train", RECIPE.seed), SAMPLE)}
    blocks = [(answers[question], parse_completion(completion)) for question, completion in pairs]
    assert all(block is not None for _, block in blocks), "every text has the format that earns a reward"
    right = sum(block is not None and block[1].strip() == answer for answer, block in blocks) / len(blocks)
    assert 0.3 < right < 0.8, f"a base that is always right or always wrong leaves nothing to learn: {right}"
