from __future__ import annotations

import ast
from collections import Counter
from itertools import islice

import pytest

from thiefbench.tasks.base import Item, Split
from thiefbench.tasks.code_micro import CodeMicro, reference_program
from thiefbench.tasks.gsm_micro import GsmMicro, stories
from thiefbench.tasks.micro_programs import chain_of
from thiefbench.tasks.programs import format_program, run_programs

SPLITS: tuple[Split, ...] = ("train", "test")


@pytest.fixture(scope="module")
def programs() -> list[str]:
    return [reference_program(story) for story in islice(stories("train", 5), 1500)]


def test_same_arguments_give_the_same_items() -> None:
    for split in SPLITS:
        assert CodeMicro(50, 1).items(split).to_list() == CodeMicro(50, 1).items(split).to_list()
    assert CodeMicro(50, 1).items("train")["question"] != CodeMicro(50, 2).items("train")["question"]
    assert CodeMicro(20).items("train").to_list() == CodeMicro(40).items("train").to_list()[:20]


@pytest.mark.parametrize("split", SPLITS)
def test_stories_and_splits_are_those_of_gsm_micro(split: Split) -> None:
    ours, theirs = CodeMicro(300, 2).items(split), GsmMicro(300, 2).items(split)
    for column in ("id", "question", "answer"):
        assert ours[column][:] == theirs[column][:]


def test_chains_are_the_stories() -> None:
    for story in islice(stories("train", 1), 2000):
        assert chain_of(story).values[1:] == tuple(step.result for step in story.steps), story


def test_reference_programs_print_the_answer() -> None:
    drawn = list(islice(stories("test", 4), 200))
    printed = run_programs([reference_program(story) for story in drawn], {})
    wrong = [story for story in drawn if printed.get(reference_program(story)) != str(story.answer)]
    assert not wrong, f"{len(wrong)} of 200 are wrong, the first is {reference_program(wrong[0])}"


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("print(18)", 1.0),
        ("print('checking')\nprint(9 + 9)", 1.0),
        ("print(18)\nprint()", 1.0),
        ("print(' 18 ')", 1.0),
        ("print('18 apples')", 0.0),
        ("print(18.0)", 0.0),
        ("print('0018')", 0.0),
        ("print(18)\nprint(19)", 0.0),
        ("print(18, 19)", 0.0),
        ("18", 0.0),
        ("print(18)\nraise ValueError", 0.0),
        ("import sys\nprint(18, file=sys.stderr)", 0.0),
    ],
)
def test_reward(program: str, reward: float) -> None:
    item = Item("i", "How many?", "18", "print(18)")
    assert CodeMicro().reward(item, [format_program(program), program]) == [reward, 0.0]


def test_prose_stands_above_the_reference_program() -> None:
    item = Item("i", "How many?", "18", "print(18)")
    assert CodeMicro().compose(item, "print(9 * 2)") == "<code>\nprint(9 * 2)\n</code>"
    assert CodeMicro().compose(item, "We count.\nIt is 18 in all.") == (
        "<code>\n# We count.\n# It is 18 in all.\nprint(18)\n</code>"
    )


def test_programs_are_full_of_operators(programs: list[str]) -> None:
    operators = Counter(
        type(node.op).__name__ for text in programs for node in ast.walk(ast.parse(text)) if isinstance(node, ast.BinOp)
    )
    assert min(operators[name] for name in ("Add", "Sub", "Mult")) > 300, operators
    with_one = sum(any(isinstance(node, ast.BinOp) for node in ast.walk(ast.parse(text))) for text in programs)
    assert with_one / len(programs) > 0.85, "an attack has operators to replace in nearly every program"


def test_programs_are_varied(programs: list[str]) -> None:
    nodes = [list(ast.walk(ast.parse(text))) for text in programs]
    imported = {n.module for found in nodes for n in found if isinstance(n, ast.ImportFrom)}
    assert len(imported) >= 8
    assert len({n.name for found in nodes for n in found if isinstance(n, ast.FunctionDef)}) >= 30
    assert len({n.id for found in nodes for n in found if isinstance(n, ast.Name)}) >= 80
    assert len(set(programs)) > 0.9 * len(programs)


@pytest.mark.parametrize("size", [0, -1])
def test_no_items_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        CodeMicro(size=size)
