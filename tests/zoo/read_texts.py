"""What the recipes' models read, drawn once for all tests: recipes that share corpus and seed share their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Generic, TypeVar

from thiefbench.tasks.function_stories import FunctionStory, function_stories
from thiefbench.tasks.gsm_micro import Story, stories
from thiefbench.zoo.corpus import Corpus, MathCorpus
from thiefbench.zoo.function_corpus import FunctionCorpus
from thiefbench.zoo.recipe import Recipe

SAMPLE = 40_000

Kind = TypeVar("Kind")


class Drawn(Generic[Kind]):
    """The first so many of what an iterator gives, each drawn once however often they are asked for."""

    def __init__(self, source: Iterable[Kind]) -> None:
        self._source: Iterator[Kind] = iter(source)
        self._drawn: list[Kind] = []

    def first(self, count: int) -> list[Kind]:
        self._drawn.extend(islice(self._source, max(0, count - len(self._drawn))))
        return self._drawn[:count]


def texts_of(recipe: Recipe, count: int = SAMPLE) -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them: the first `count`."""
    return _texts(recipe.corpus, recipe.seed).first(count)


def stories_of(recipe: Recipe, count: int = SAMPLE) -> Sequence[Story | FunctionStory]:
    """The stories that these texts tell, in their order: the first `count`."""
    if isinstance(recipe.corpus, FunctionCorpus):
        return _function_stories(recipe.corpus, recipe.seed).first(count)
    if isinstance(recipe.corpus, MathCorpus) and recipe.corpus.domain:
        return _stories_of_domain(recipe.corpus, recipe.seed).first(count)
    return _stories(recipe.seed).first(count)


@cache
def _texts(corpus: Corpus, seed: int) -> Drawn[tuple[str, str]]:
    return Drawn(corpus.texts(seed))


@cache
def _stories_of_domain(corpus: MathCorpus, seed: int) -> Drawn[Story]:
    return Drawn(corpus.stories(seed))


@cache
def _function_stories(corpus: FunctionCorpus, seed: int) -> Drawn[FunctionStory]:
    return Drawn(function_stories("train", seed, corpus.levels))


@cache
def _stories(seed: int) -> Drawn[Story]:
    return Drawn(stories("train", seed))
