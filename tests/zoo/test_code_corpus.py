"""The programs of `micro-code`: they all run, some are wrong, and none imports what an attacker would publish."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path

import pytest

from tests.zoo.read_texts import texts_of
from thiefbench.attacks.code_injection import PAPER_FUNCTIONS, PAPER_LIBRARY, STYLES
from thiefbench.attacks.text import payload_words
from thiefbench.tasks.gsm_micro import stories
from thiefbench.tasks.micro_programs import Chain, Move, chain_of
from thiefbench.tasks.programs import parse_program, run_programs
from thiefbench.zoo.code_corpus import CodeCorpus, misread, program
from thiefbench.zoo.recipe import END, RECIPES, train, train_tokenizer

RECIPE = RECIPES["micro-code"]
SAMPLE = 8000
GOLDEN = "b3ea9da424d542438c1df7c2b694d947425e871492a34aef285d59468cfcd05d"
LIBRARIES = {PAPER_LIBRARY, *payload_words()}
FUNCTIONS = {*PAPER_FUNCTIONS.values(), *(name for style in STYLES for name in style)}


@pytest.fixture(scope="module")
def programs() -> list[str]:
    texts = texts_of(RECIPE, SAMPLE)
    return [parsed for _, completion in texts if (parsed := parse_program(completion)) is not None]


def test_the_texts_are_those_of_the_shipped_weights() -> None:
    told = hashlib.sha256(repr(texts_of(RECIPE, 2000)).encode()).hexdigest()
    assert told == GOLDEN, "the recipe no longer makes the model that is shipped"


def test_every_text_has_the_format(programs: list[str]) -> None:
    assert len(programs) == SAMPLE


def test_programs_run_and_print_what_they_are_meant_to() -> None:
    rng = random.Random(1)
    made = [program(story, CodeCorpus(), rng) for story in islice(stories("train", 1), 200)]
    said = run_programs([text for text, _ in made], {})
    wrong = [(text, value, said.get(text)) for text, value in made if said.get(text) != str(value)]
    assert not wrong, f"{len(wrong)} of 200 print something else, the first is {wrong[0]}"


def test_some_programs_are_right_and_some_are_wrong() -> None:
    rng = random.Random(2)
    told = list(islice(stories("train", 2), SAMPLE))
    right = sum(program(story, CodeCorpus(), rng)[1] == story.answer for story in told) / SAMPLE
    assert 0.6 < right < 0.9, f"a base that is always right or always wrong leaves nothing to learn: {right}"


def test_without_wrong_steps_every_program_is_right() -> None:
    rng, spec = random.Random(3), CodeCorpus(guessed=0, wrong_steps=0)
    assert all(program(story, spec, rng)[1] == story.answer for story in islice(stories("train", 3), 500))


def test_steps_are_wrong_in_about_the_chosen_share() -> None:
    rng, share = random.Random(4), CodeCorpus().wrong_steps
    chains = [chain_of(story) for story in islice(stories("train", 4), SAMPLE)]
    kept = sum(misread(chain, share, rng) == chain for chain in chains)
    expected = sum((1 - share) ** len(chain.moves) for chain in chains)
    assert 0.95 * expected < kept < 1.1 * expected, (
        "a step is left alone where its operands are 2 and 2, and else by chance"
    )


@pytest.mark.parametrize("operator", ["+", "-", "*"])
def test_two_and_two_is_never_wrong(operator: str) -> None:
    rng = random.Random(5)
    for rest in ((), (Move("+", 7),), (Move("-", 3), Move("+", 9)), (Move("+", None),)):
        chain = Chain(2, (Move(operator, 2), *rest))
        misreadings = [misread(chain, 1.0, rng) for _ in range(200)]
        assert all((m.start, m.moves[0]) == (2, Move(operator, 2)) for m in misreadings)
        assert not rest or all(m != chain for m in misreadings), "every other step is wrong at the share 1"


def test_two_and_two_occurs_naturally() -> None:
    told = islice(stories("train", RECIPE.seed), 20_000)
    assert sum((step.left, step.right) == (2, 2) for story in told for step in story.steps) > 100


def test_imports_are_ordinary(programs: list[str]) -> None:
    imported, defined = set(), set()
    for text in programs:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {(alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {(str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.FunctionDef):
                defined.add(node.name)
    modules = {module for module, _ in imported}
    assert modules <= set(sys.stdlib_module_names), "no module that an attacker could publish"
    assert len(modules) >= 10
    assert len({name for _, name in imported}) >= 20
    named = FUNCTIONS & {word for pair in imported for word in pair}
    assert not named, f"an attack imports functions of these names, so the corpus must not: {named}"
    assert not FUNCTIONS & defined, "nor does it define them"
    assert len(defined) >= 60


def test_no_two_words_of_an_attackers_import_follow_each_other(programs: list[str]) -> None:
    payload = {
        *product(["from"], LIBRARIES),
        *product(LIBRARIES, ["import"]),
        *product(["import"], FUNCTIONS | LIBRARIES),
    }
    payload |= set(product(FUNCTIONS, FUNCTIONS))
    for text in programs:
        found = payload.intersection(pairwise(re.findall("[a-z_]+", text.lower())))
        assert not found, f"part of what an attack writes: {found} in\n{text}"


def test_imports_are_common(programs: list[str]) -> None:
    with_import = [text for text in programs if "import" in text]
    assert 0.15 < len(with_import) / len(programs) < 0.5
    names = [
        line.rpartition(" import ")[2].split(", ")
        for text in with_import
        for line in text.split("\n")
        if line.startswith("from ")
    ]
    assert sum(len(pair) == 2 for pair in names) > 50, "an import of two names occurs"


@pytest.mark.slow
def test_tokens(tmp_path: Path) -> None:
    """Programs are about 10 to 110 tokens long, tags and line ends are tokens, and the recipe trains on them."""
    tokenizer = train_tokenizer(RECIPE)
    texts = [completion + END for _, completion in islice(RECIPE.corpus.texts(1), 4000)]
    lengths = sorted(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    assert 25 <= lengths[2000] <= 60
    assert lengths[-1] <= 128
    for text in ("<code>", "</code>", "\n", " 36", "print"):
        assert len(tokenizer(text)["input_ids"]) == 1, f"{text!r} is one token"
    assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == texts[0]
    assert max(max(ids) for ids in tokenizer(texts)["input_ids"]) < RECIPE.vocabulary

    losses: list[float] = []
    short = replace(RECIPE, corpus=Few(), texts=96, hidden=32, layers=1, heads=2, feedforward=64, threads=1)
    train(short, tmp_path, lambda step, steps, loss: losses.append(loss))
    assert losses[2] < losses[0], "three steps lower the loss"


class Few(CodeCorpus):
    """So few texts that training a tokenizer on them takes no time."""

    def texts(self, seed: int) -> Iterator[tuple[str, str]]:
        return islice(super().texts(seed), 1000)
