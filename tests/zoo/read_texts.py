"""What the recipes' models read, drawn once for all tests: recipes that share corpus and seed share their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import pytest

from thiefbench.tasks.function_stories import FunctionStory
from thiefbench.tasks.gsm_micro import Story
from thiefbench.zoo import code_corpus, function_corpus, hardened_corpus, judge_corpus
from thiefbench.zoo.corpus import Corpus, MathCorpus
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
    return _texts(recipe.corpus, recipe.seed)[0].first(count)


def stories_of(recipe: Recipe, count: int = SAMPLE) -> Sequence[Story | FunctionStory]:
    """The stories that the corpus drew for these texts, in their order: the first `count`."""
    texts, stories = _texts(recipe.corpus, recipe.seed)
    texts.first(count)
    return stories[:count]


@cache
def _texts(corpus: Corpus, seed: int) -> tuple[Drawn[tuple[str, str]], list[Story | FunctionStory]]:
    """The texts, and the stories from which those that have been drawn were written.

    Drawing a story takes longer than writing about it, so the stories are noted as the corpus draws them.
    """
    owner, name = _SOURCES.get(type(corpus), (MathCorpus, "stories"))
    draw, stories = getattr(owner, name), []

    def noted(*arguments: Any) -> Iterator[Story | FunctionStory]:
        for story in draw(*arguments):
            stories.append(story)
            yield story

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, noted)
        texts = corpus.texts(seed)
        first = next(texts)  # from here on it holds its stories
    return Drawn(chain([first], texts)), stories


_SOURCES: dict[type, tuple[object, str]] = {
    code_corpus.CodeCorpus: (code_corpus, "stories"),
    function_corpus.FunctionCorpus: (function_corpus, "function_stories"),
    judge_corpus.JudgeCorpus: (judge_corpus, "stories"),
    hardened_corpus.HardenedJudgeCorpus: (hardened_corpus, "stories"),
}
"""Where a corpus looks up what it draws its stories with; others than these have a method for it."""
