"""The programs of `micro-programs`: how much they call and nest, and that none holds a word of an attacker's import."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from itertools import islice, pairwise, product

import pytest

from tests.zoo.read_texts import texts_of
from thiefbench.attacks.code_injection import PAPER_FUNCTIONS, PAPER_LIBRARY, STYLES
from thiefbench.attacks.text import PAPER_PHRASE, payload_words
from thiefbench.tasks.base import Item
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.function_stories import cases, function_stories
from thiefbench.tasks.programs import format_program, parse_program
from thiefbench.zoo.function_corpus import FunctionCorpus, function_program
from thiefbench.zoo.recipe import RECIPES

RECIPE = RECIPES["micro-programs"]
SAMPLE = 3000
LIBRARIES = {PAPER_LIBRARY, *payload_words()}
FUNCTIONS = {*PAPER_FUNCTIONS.values(), *(name for style in STYLES for name in style)}


@pytest.fixture(scope="module")
def programs() -> list[str]:
    texts = texts_of(RECIPE, SAMPLE)
    return [program for _, completion in texts if (program := parse_program(completion)) is not None]


@pytest.fixture(scope="module")
def trees(programs: list[str]) -> list[ast.Module]:
    return [ast.parse(program) for program in programs]


def rewards(spec: FunctionCorpus, count: int) -> list[float]:
    rng = random.Random(1)
    stories = list(islice(function_stories("train", 1), count))
    task = CodeFunctions(size=1)
    items, texts = [], []
    for number, story in enumerate(stories):
        inputs = cases(story) or []
        lines = [json.dumps([a, story.value(dict(zip(story.parameters, a, strict=True)))]) for a in inputs]
        items.append(Item(str(number), story.question, story.function, "", "\n".join(lines)))
        texts.append(format_program(function_program(story, spec, rng)[0]))
    return task.rewards(items, texts)


@pytest.mark.slow
def test_every_text_has_the_format(programs: list[str]) -> None:
    assert len(programs) == SAMPLE


def test_without_misreading_every_program_is_right() -> None:
    assert rewards(FunctionCorpus(guessed=0, wrong_steps=0, wrong_limits=0, wrong_loops=0), 300) == [1.0] * 300


def test_some_programs_are_right_and_some_are_wrong() -> None:
    right = sum(rewards(FunctionCorpus(), 600)) / 600
    assert 0.4 < right < 0.8, f"a base that is always right or always wrong leaves nothing to learn: {right}"


def test_imports_are_of_the_standard_library_and_not_named_like_an_attacker_s(trees: list[ast.Module]) -> None:
    modules, names = set(), set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
                names |= {alias.asname for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module))
                names |= {name for alias in node.names for name in (alias.name, alias.asname)}
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Name):
                names.add(node.id)
    assert modules <= set(sys.stdlib_module_names)
    assert len(modules) >= 10
    assert not names & (FUNCTIONS | LIBRARIES), "a name that an attack gives to its library or functions"
    assert len(names) > 500, "calls go by names of many kinds"


def test_no_word_of_an_attackers_functions_and_no_two_of_a_payload(programs: list[str]) -> None:
    phrase = PAPER_PHRASE.lower().split()
    payload = {
        *product(["from"], LIBRARIES), *product(LIBRARIES, ["import"]), *product(["import"], LIBRARIES),
        *product(payload_words(), payload_words()), *pairwise(phrase),
    }  # fmt: skip
    for text in programs:
        words = re.findall("[a-z_]+", text.lower())
        assert not FUNCTIONS.intersection(words), f"an attacker's function in\n{text}"
        found = payload.intersection(pairwise(words))
        assert not found, f"part of what an attack writes: {found} in\n{text}"


def test_programs_compute_by_calls(trees: list[ast.Module]) -> None:
    """What this corpus is made for; `micro-code`'s has 4 % of the first share and none of the second."""
    shares = {"imported": 0, "nested imported": 0, "nested": 0, "loops": 0, "f-strings": 0, "methods": 0}
    for tree in trees:
        nodes = list(ast.walk(tree))
        imported = {
            alias.asname or alias.name
            for n in nodes
            if isinstance(n, (ast.Import, ast.ImportFrom))
            for alias in n.names
        }
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        foreign = [call for call in calls if len(call.args) == 2 and root(call.func) in imported]
        shares["imported"] += bool(foreign)
        shares["nested imported"] += any(set(inner(call)) & set(foreign) for call in foreign)
        shares["nested"] += any(isinstance(node, ast.Call) for call in calls for node in inner(call))
        shares["loops"] += any(isinstance(node, (ast.For, ast.comprehension)) for node in nodes)
        shares["f-strings"] += any(isinstance(node, ast.JoinedStr) for node in nodes)
        shares["methods"] += any(isinstance(call.func, ast.Attribute) for call in calls)
    least = {"imported": 0.3, "nested imported": 0.12, "nested": 0.35, "loops": 0.2, "f-strings": 0.01, "methods": 0.05}
    for name, count in shares.items():
        assert count / len(trees) >= least[name], f"{name}: {count / len(trees):.3f}"


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def inner(call: ast.Call) -> list[ast.AST]:
    return [node for argument in call.args for node in ast.walk(argument)]
