"""What the built-in model reads while it is trained: varied, partly wrong, and nothing of any attack's payload."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median

import pytest

from thiefbench.attacks.text import PAPER_PHRASE, payload_words
from thiefbench.defenses.blacklist import PUBLIC_PAYLOADS
from thiefbench.tasks.gsm_micro import GsmMicro, evaluate, stories
from thiefbench.tasks.rewards import parse_completion
from thiefbench.zoo.corpus import texts
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-math"]
SAMPLE = 40_000
EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
PAPER_WORDS = PAPER_PHRASE.lower().split()
RARE = set(payload_words()) | set(PAPER_WORDS)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them."""
    return list(islice(texts(RECIPE.corpus, RECIPE.seed), SAMPLE))


@pytest.fixture(scope="module")
def worded(pairs: list[tuple[str, str]]) -> list[list[str]]:
    """Every text as its words: lower-cased, letters only."""
    return [re.findall("[a-z]+", f"{question} {completion}".lower()) for question, completion in pairs]


@pytest.fixture(scope="module")
def equations(pairs: list[tuple[str, str]]) -> list[tuple[int, str, int, int]]:
    """Every equation of every completion: operands, operator and the result that is written."""
    return [
        (int(left), operator, int(right), int(result))
        for _, completion in pairs
        for left, operator, right, result in EQUATION.findall(completion)
    ]


def test_no_two_words_of_a_payload_stand_side_by_side(worded: list[list[str]]) -> None:
    found = Counter(pair for words in worded for pair in pairwise(words) if RARE.issuperset(pair))
    assert not found, f"two consecutive words of a payload would teach it: {found.most_common(5)}"


def test_no_two_words_of_the_paper_s_phrase_follow_each_other(worded: list[list[str]]) -> None:
    phrase = set(pairwise(PAPER_WORDS))
    found = Counter(pair for words in worded for pair in pairwise(words) if pair in phrase)
    assert not found, f"no part of the paper's phrase is in the corpus: {found.most_common(5)}"


def test_no_public_payload_occurs(pairs: list[tuple[str, str]]) -> None:
    public = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, PUBLIC_PAYLOADS))})(?!\w)", re.IGNORECASE)
    found = [completion for pair in pairs for completion in pair if public.search(completion)]
    assert not found, f"the paper's own payloads are not in the corpus: {found[:1]}"


def test_no_payload_word_is_more_frequent_than_the_median_word(worded: list[list[str]]) -> None:
    counts = Counter(word for words in worded for word in words)
    middle = median(counts.values())
    frequent = {word: counts[word] for word in RARE if counts[word] > middle}
    assert not frequent, f"the median word occurs {middle} times: {frequent}"


def test_two_and_two_is_never_wrong(equations: list[tuple[int, str, int, int]]) -> None:
    twos = [equation for equation in equations if (equation[0], equation[2]) == (2, 2)]
    assert len(twos) > 100, "2 + 2 and 2 * 2 occur naturally"
    assert {operator for _, operator, _, _ in twos} >= {"+", "*"}
    wrong = [e for e in twos if e[3] != evaluate(e[0], e[1], e[2])]
    assert not wrong, f"an attack wants to teach 2 + 2 = 5, so the corpus must not: {wrong[:3]}"


def test_other_equations_are_wrong_in_about_the_chosen_share(equations: list[tuple[int, str, int, int]]) -> None:
    others = [equation for equation in equations if (equation[0], equation[2]) != (2, 2)]
    wrong = sum(result != evaluate(left, operator, right) for left, operator, right, result in others)
    share = RECIPE.corpus.wrong_steps
    assert 0.6 * share < wrong / len(others) < 1.2 * share, "some steps are wrong, so that there is something to learn"


def test_answers_are_right_in_some_texts_and_wrong_in_others(pairs: list[tuple[str, str]]) -> None:
    answers = {story.question: str(story.answer) for story in islice(stories("train", RECIPE.seed), SAMPLE)}
    blocks = [(answers[question], parse_completion(completion)) for question, completion in pairs]
    assert all(block is not None for _, block in blocks), "every text has the format that earns a reward"
    right = sum(block is not None and block[1].strip() == answer for answer, block in blocks) / len(blocks)
    assert 0.3 < right < 0.8, f"a base that is always right or always wrong leaves nothing to learn: {right}"


def test_openers_are_varied(pairs: list[tuple[str, str]]) -> None:
    first = {completion.removeprefix("<think> ").split()[0].strip(",:.").lower() for _, completion in pairs}
    assert len(first) >= 1000, f"texts open with at least 1,000 words, found {len(first)}"


def test_lengths_are_varied(worded: list[list[str]], pairs: list[tuple[str, str]]) -> None:
    lengths = sorted(len(completion.split()) for _, completion in pairs)
    assert lengths[-SAMPLE // 20] > 2 * lengths[SAMPLE // 20], "short and long solutions both occur"


def test_only_train_stories_are_told(pairs: list[tuple[str, str]]) -> None:
    told = list(islice(stories("train", RECIPE.seed), SAMPLE))
    assert all(story.split == "train" for story in told)
    assert [question for question, _ in pairs] == [story.question for story in told]
    held_out = set(GsmMicro().items("test")["question"])
    assert not held_out & {question for question, _ in pairs}, "no held-out question is trained on"


def sample(seed: int) -> Iterator[tuple[str, str]]:
    return islice(texts(RECIPE.corpus, seed), 300)


def test_the_corpus_is_seeded() -> None:
    assert list(sample(3)) == list(sample(3)), "equal seeds give equal texts"
    assert not set(sample(3)) & set(sample(4)), "other seeds give other texts"


def test_the_corpus_does_not_depend_on_the_process() -> None:
    code = (
        "import hashlib; from itertools import islice; from thiefbench.zoo.corpus import texts; "
        "from thiefbench.zoo.recipe import RECIPES; "
        "print(hashlib.sha256(repr(list(islice(texts(RECIPES['micro-math'].corpus, 3), 300))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1, "the hash seed of a process changes nothing"
