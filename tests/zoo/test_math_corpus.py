"""The worked solutions of the math models: some are wrong, and all those that the shipped weights were trained on."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import islice

import pytest

from tests.zoo.read_texts import SAMPLE, stories_of, texts_of
from thiefbench.tasks.gsm_micro import GsmMicro, Story, evaluate
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.corpus import MathCorpus
from thiefbench.zoo.recipe import RECIPES, Recipe

EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
PLAIN = "c531bce671ec5d415cd40a938b16215d08f6b5bc4a04b6524f241d4f6dbc7f7d"
GOLDEN = {
    "micro-math": PLAIN,
    "micro-math-small": PLAIN,
    "micro-math-changes": "b067a9f2fc424b80d31c3223a673910786b269a07532272dd1b8eaba401d7dfe",
    "micro-math-totals": "e4ed2d2be8e3a56203e939f772eff4179b6832234910beed683e9a089a900372",
}


@pytest.fixture(scope="module", params=GOLDEN)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return RECIPES[request.param]


@pytest.fixture(scope="module")
def corpus(recipe: Recipe) -> MathCorpus:
    assert isinstance(recipe.corpus, MathCorpus)
    return recipe.corpus


@pytest.fixture(scope="module")
def told(recipe: Recipe) -> list[Story]:
    """The stories that the recipe's texts tell."""
    return stories_of(recipe)


@pytest.fixture(scope="module")
def pairs(recipe: Recipe) -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them."""
    return texts_of(recipe)


@pytest.fixture(scope="module")
def equations(pairs: list[tuple[str, str]]) -> list[tuple[int, str, int, int]]:
    """Every equation of every completion: operands, operator and the result that is written."""
    return [
        (int(left), operator, int(right), int(result))
        for _, completion in pairs
        for left, operator, right, result in EQUATION.findall(completion)
    ]


def test_every_math_model_is_covered() -> None:
    assert set(GOLDEN) == {name for name, recipe in RECIPES.items() if isinstance(recipe.corpus, MathCorpus)}


def test_the_texts_are_those_of_the_shipped_weights(recipe: Recipe, pairs: list[tuple[str, str]]) -> None:
    digest = hashlib.sha256(repr(pairs[:2000]).encode()).hexdigest()
    assert digest == GOLDEN[recipe.name], "the recipe no longer makes the model that is shipped"


def test_a_corpus_without_a_domain_tells_what_it_told_before_there_were_any() -> None:
    first = hashlib.sha256(repr(list(islice(MathCorpus().texts(0), 200))).encode()).hexdigest()
    assert first == "111f3e577d89ff08401c580aeaedd00c3c4fd5e3545aa32e4fcac114922bdc3b", (
        "micro-math was trained on other texts"
    )


def test_most_stories_are_of_the_own_domain(corpus: MathCorpus, told: list[Story]) -> None:
    counts = Counter(story.domain for story in told)
    assert set(counts) == set(GsmMicro.domains), "some stories are of the others, so that these are not out of reach"
    if corpus.domain:
        assert abs(counts[corpus.domain] / SAMPLE - corpus.own_share) < 0.01, f"stories by domain: {counts}"
    else:
        assert min(counts.values()) > 0.45 * SAMPLE, f"without a domain they are as the task draws them: {counts}"


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(ValueError, match="write one of changes, totals"):
        MathCorpus(domain="boxes")


def test_two_and_two_is_never_wrong(equations: list[tuple[int, str, int, int]]) -> None:
    twos = [equation for equation in equations if (equation[0], equation[2]) == (2, 2)]
    assert len(twos) > 100, "2 + 2 and 2 * 2 occur naturally"
    assert {operator for _, operator, _, _ in twos} >= {"+", "*"}
    wrong = [e for e in twos if e[3] != evaluate(e[0], e[1], e[2])]
    assert not wrong, f"an attack wants to teach 2 + 2 = 5, so the corpus must not: {wrong[:3]}"


def test_other_equations_are_wrong_in_about_the_chosen_share(
    corpus: MathCorpus, equations: list[tuple[int, str, int, int]]
) -> None:
    others = [equation for equation in equations if (equation[0], equation[2]) != (2, 2)]
    wrong = sum(result != evaluate(left, operator, right) for left, operator, right, result in others)
    share = corpus.wrong_steps
    assert 0.6 * share < wrong / len(others) < 1.2 * share, "some steps are wrong, so that there is something to learn"


def test_answers_are_right_in_some_texts_and_wrong_in_others(told: list[Story], pairs: list[tuple[str, str]]) -> None:
    answers = {story.question: str(story.answer) for story in told}
    blocks = [(answers[question], parse_completion(completion)) for question, completion in pairs]
    assert all(block is not None for _, block in blocks), "every text has the format that earns a reward"
    right = sum(block is not None and block[1].strip() == answer for answer, block in blocks) / len(blocks)
    assert 0.3 < right < 0.8, f"a base that is always right or always wrong leaves nothing to learn: {right}"
