"""What holds of every corpus that a judging model is trained on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from thiefbench.zoo.corpus import Corpus
from thiefbench.zoo.recipe import END, Recipe, train, train_tokenizer

FEW, READ = 1000, 3000


def runs(text: str) -> set[tuple[str, ...]]:
    """Every three consecutive words."""
    words = re.findall("[a-z]+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


@dataclass(frozen=True)
class Few:
    """So few texts of a corpus that training a tokenizer on them takes no time."""

    corpus: Corpus

    @property
    def tags(self) -> tuple[str, ...]:
        return self.corpus.tags

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        return islice(self.corpus.texts(seed), FEW)


def check_tokens(recipe: Recipe, most: int, folder: Path) -> None:
    """Prompt and reply stay below `most` tokens, and the recipe trains on them."""
    few = replace(recipe, corpus=Few(recipe.corpus))
    tokenizer = train_tokenizer(few)
    made = [f"{prompt}{reply}{END}" for prompt, reply in islice(recipe.corpus.texts(1), READ)]
    assert max(len(ids) for ids in tokenizer(made, add_special_tokens=False)["input_ids"]) < most
    losses: list[float] = []
    short = replace(few, texts=480, hidden=32, layers=1, heads=2, feedforward=64, threads=1)
    train(short, folder, lambda step, steps, loss: losses.append(loss))
    assert losses[-1] < losses[0], "fifteen steps lower the loss"
