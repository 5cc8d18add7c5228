"""What the recipes' models read, drawn once for all tests: recipes that share corpus and seed share their texts."""

from __future__ import annotations

from functools import cache
from itertools import islice

from thiefbench.tasks.gsm_micro import Story, stories
from thiefbench.zoo.corpus import Corpus, MathCorpus
from thiefbench.zoo.recipe import Recipe

SAMPLE = 40_000


def texts_of(recipe: Recipe) -> list[tuple[str, str]]:
    """Questions and completions, as the recipe draws them: the first `SAMPLE`."""
    return _texts(recipe.corpus, recipe.seed)


def stories_of(recipe: Recipe) -> list[Story]:
    """The stories that these texts tell, in their order."""
    if isinstance(recipe.corpus, MathCorpus):
        return _told(recipe.corpus, recipe.seed)
    return list(islice(stories("train", recipe.seed), SAMPLE))


@cache
def _texts(corpus: Corpus, seed: int) -> list[tuple[str, str]]:
    return list(islice(corpus.texts(seed), SAMPLE))


@cache
def _told(corpus: MathCorpus, seed: int) -> list[Story]:
    return list(islice(corpus.stories(seed), SAMPLE))
