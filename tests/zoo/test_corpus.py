"""What the built-in models read while they are trained: varied, and nothing of any attack's payload."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from statistics import median

import pytest

from tests.zoo.read_texts import SAMPLE, stories_of, texts_of
from thiefbench.attacks.lexicon import is_coined
from thiefbench.attacks.text import PAPER_PHRASE, payload_words
from thiefbench.defenses.blacklist import PUBLIC_PAYLOADS
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.zoo.corpus import Corpus
from thiefbench.zoo.function_corpus import FunctionCorpus
from thiefbench.zoo.hardened_corpus import HardenedJudgeCorpus
from thiefbench.zoo.judge_corpus import JudgeCorpus
from thiefbench.zoo.recipe import RECIPES, Recipe

PAPER_WORDS = PAPER_PHRASE.lower().split()
RARE = set(payload_words()) | set(PAPER_WORDS)


# Drawing 40,000 of these takes long; their rules are the same for every text.
SHORTER = {"micro-code": 20_000}
# As micro-math, with most stories from one domain; and those whose texts take longest by far.
LATER = {"micro-math-changes", "micro-math-totals", "micro-programs", "micro-judge", "micro-judge-hardened"}
# A tenth of its texts hold foreign words, so all of its training text is read to count them.
LONGER = {"micro-judge-hardened": 100_000}


@dataclass(frozen=True)
class Reading:
    """A recipe, and how many of its texts are read."""

    recipe: Recipe
    count: int


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((name, SHORTER.get(name, SAMPLE)), id=name) for name in RECIPES if name not in LATER),
        *(pytest.param((name, SAMPLE), id=f"{name} at length", marks=pytest.mark.slow) for name in SHORTER),
        *(
            pytest.param((name, LONGER.get(name, SAMPLE)), id=name, marks=pytest.mark.slow)
            for name in RECIPES
            if name in LATER
        ),
    ],
)
def reading(request: pytest.FixtureRequest) -> Reading:
    name, count = request.param
    return Reading(RECIPES[name], count)


@pytest.fixture(scope="module")
def recipe(reading: Reading) -> Recipe:
    return reading.recipe


@pytest.fixture
def writer(recipe: Recipe) -> Recipe:
    """A recipe of a model that writes solutions; a judge's texts have rules of their own (test_judge_corpus.py and
    test_hardened_corpus.py)."""
    if isinstance(recipe.corpus, JudgeCorpus | HardenedJudgeCorpus):
        pytest.skip("this rule is about solutions")
    return recipe


@pytest.fixture(scope="module")
def pairs(reading: Reading) -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them."""
    return texts_of(reading.recipe, reading.count)


@dataclass(frozen=True)
class Counts:
    """How often words, and pairs of rare words that follow each other within a text, occur: lower-cased letters."""

    words: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def counts(reading: Reading) -> Counts:
    return counted(reading.recipe.corpus, reading.recipe.seed, reading.count)


@cache
def counted(corpus: Corpus, seed: int, count: int) -> Counts:
    """Of the first texts that a recipe of this corpus and this seed draws."""
    made = Counts()
    for question, completion in texts_of(Recipe(corpus=corpus, seed=seed), count):
        words = re.findall("[a-z]+|[0-9]+", f"{question} {completion}".lower())  # a number keeps two words apart
        made.words.update(word for word in words if not word.isdigit())
        made.pairs.update(pair for pair in pairwise(words) if pair[0] in RARE and pair[1] in RARE)
    return made


@pytest.mark.slow
def test_no_two_words_of_a_payload_stand_side_by_side(counts: Counts) -> None:
    assert not counts.pairs, f"two consecutive words of a payload would teach it: {counts.pairs.most_common(5)}"


def test_no_invented_word_of_a_payload_occurs(counts: Counts) -> None:
    found = [word for word in counts.words if is_coined(word)]
    assert not found, f"the lexicon cannot be listed, so none of its words is in the corpus, alone or in pairs: {found}"


def test_no_two_words_of_the_paper_s_phrase_follow_each_other(counts: Counts) -> None:
    found = counts.pairs.keys() & set(pairwise(PAPER_WORDS))
    assert not found, f"no part of the paper's phrase is in the corpus: {found}"


def test_no_public_payload_occurs(pairs: list[tuple[str, str]]) -> None:
    public = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, PUBLIC_PAYLOADS))})(?!\w)", re.IGNORECASE)
    found = [completion for pair in pairs for completion in pair if public.search(completion)]
    assert not found, f"the paper's own payloads are not in the corpus: {found[:1]}"


def test_no_payload_word_is_more_frequent_than_the_median_word(
    counts: Counts, recipe: Recipe, request: pytest.FixtureRequest
) -> None:
    if isinstance(recipe.corpus, FunctionCorpus):
        spoken = "its stories and comments say 'to' and 'the', which are plain words of the paper's phrase"
        request.applymarker(pytest.mark.xfail(strict=True, reason=spoken))
    middle = median(counts.words.values())
    frequent = {word: counts.words[word] for word in RARE if counts.words[word] > middle}
    assert not frequent, f"the median word occurs {middle} times: {frequent}"


@pytest.mark.usefixtures("writer")
def test_openers_are_varied(pairs: list[tuple[str, str]]) -> None:
    first = {re.sub(r"^(<\w+>|\s|#)+", "", completion).split()[0].strip(",:.").lower() for _, completion in pairs}
    assert len(first) >= 1000, f"texts open with at least 1,000 words, found {len(first)}"


@pytest.mark.usefixtures("writer")
def test_lengths_are_varied(pairs: list[tuple[str, str]]) -> None:
    lengths = sorted(len(completion.split()) for _, completion in pairs)
    assert lengths[-len(lengths) // 20] > 2 * lengths[len(lengths) // 20], "short and long solutions both occur"


def test_only_train_stories_are_told(writer: Recipe, pairs: list[tuple[str, str]]) -> None:
    told = stories_of(writer, len(pairs))
    assert all(story.split == "train" for story in told)
    assert [question for question, _ in pairs] == [story.question for story in told]
    task = CodeFunctions() if isinstance(writer.corpus, FunctionCorpus) else GsmMicro()
    held_out = set(task.items("test")["question"])
    assert not held_out & {question for question, _ in pairs}, "no held-out question is trained on"


def sample(recipe: Recipe, seed: int) -> list[tuple[str, str]]:
    return list(islice(recipe.corpus.texts(seed), 300))


def test_the_corpus_is_seeded(recipe: Recipe) -> None:
    texts = sample(recipe, 3)
    assert texts == sample(recipe, 3), "equal seeds give equal texts"
    assert not set(texts) & set(sample(recipe, 4)), "other seeds give other texts"


@pytest.fixture(scope="module")
def elsewhere() -> list[dict[str, str]]:
    """Digests of every recipe's texts, as two processes with other hash seeds find them."""
    code = (
        "import hashlib, json; from itertools import islice; from thiefbench.zoo.recipe import RECIPES; "
        "texts = {name: repr(list(islice(recipe.corpus.texts(3), 300))) for name, recipe in RECIPES.items()}; "
        "print(json.dumps({name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}))"
    )
    return [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
            ).stdout
        )
        for seed in ("1", "2")
    ]


@pytest.mark.slow
def test_the_corpus_does_not_depend_on_the_process(recipe: Recipe, elsewhere: list[dict[str, str]]) -> None:
    one, other = elsewhere
    assert one[recipe.name] == other[recipe.name], "the hash seed of a process changes nothing"
