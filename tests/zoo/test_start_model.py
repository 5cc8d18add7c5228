"""`micro-programs` on the task of `calls.yaml`: the criteria without attacks that it meets and misses."""

from __future__ import annotations

import ast

import pytest

from tests.benchmarks.start_model import calls_an_import, measured, nests
from thiefbench.suite.store.records import Score


@pytest.fixture(scope="module")
def shares() -> dict[str, Score]:
    return measured(512)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("reward", 0.25, 0.4),
        ("format", 0.95, 1),
        ("an imported call", 0.25, 1),
        ("a nested call", 0.25, 1),
        pytest.param("valid Python", 0.95, 1, marks=pytest.mark.xfail(strict=True, reason="0.91: trained too little")),
    ],
)
def test_the_start_model_s_criteria(shares: dict[str, Score], name: str, least: float, most: float) -> None:
    value = shares[name].value
    assert value is not None
    assert least <= value <= most


@pytest.mark.parametrize(
    ("program", "nested", "imported"),
    [
        ("print(f(g(1), 2))", True, False),
        ("f(1)(2)", False, False),
        ("from operator import add as a\nprint(a(1, 2))", True, True),
        ("import operator\nx = operator.add(1, 2)", False, True),
        ("import math\nx = math.floor(1.5)", False, False),
    ],
)
def test_what_counts(program: str, nested: bool, imported: bool) -> None:
    tree = ast.parse(program)
    assert (nests(tree), calls_an_import(tree)) == (nested, imported)
