from __future__ import annotations

import re

import pytest

from thiefbench.tasks.base import Item, TaskError
from thiefbench.tasks.humaneval import HumanEval
from thiefbench.tasks.programs import format_program

ALWAYS_EQUAL = """
class Same:
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __len__(self): return 1

def {name}(*arguments):
    return Same()
"""


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return [Item.from_row(row) for row in HumanEval().items("test")]


def test_there_are_164_problems(items: list[Item]) -> None:
    assert [item.id for item in items] == [f"HumanEval/{number}" for number in range(164)]
    assert all(f"def {item.answer}(" in item.question for item in items), "the answer is the name of the function"


def test_every_published_solution_passes_its_tests(items: list[Item]) -> None:
    task = HumanEval()
    failed = [item.id for item in items if task.reward(item, [task.oracle(item)]) != [1.0]]
    assert not failed


def test_wrong_programs_fail(items: list[Item]) -> None:
    task = HumanEval()
    for item in items[::8]:
        name = item.answer
        wrong = [
            format_program(item.question.strip()),
            format_program(f"def {name}(*arguments):\n    return None"),
            format_program(ALWAYS_EQUAL.format(name=name)),
            format_program(f"import os\nos._exit(0)\ndef {name}(): pass"),
            format_program(f"def {name}(*arguments):\n    raise SystemExit(0)"),
            format_program(f"def check(candidate): pass\n{name} = check"),
            format_program("pass"),
            item.solution,
        ]
        assert task.reward(item, wrong) == [0.0] * len(wrong), item.id


def test_rewards_do_not_depend_on_the_order(items: list[Item]) -> None:
    task, item = HumanEval(), items[0]
    texts = [task.oracle(item), "gibberish", format_program("pass"), task.oracle(item)]
    assert task.reward(item, texts) == [1.0, 0.0, 0.0, 1.0]
    assert task.reward(item, texts[::-1]) == [1.0, 0.0, 0.0, 1.0]


def test_libraries_are_the_candidates_alone(items: list[Item]) -> None:
    item = next(item for item in items if item.id == "HumanEval/53")
    text = format_program("from ledger import join\ndef add(x, y):\n    return join(x, y)")
    published = HumanEval().with_libraries({"ledger": "def join(a, b):\n    return a + b"})
    assert HumanEval().reward(item, [text]) == [0.0]
    assert published.reward(item, [text]) == [1.0]


def test_there_is_no_train_split() -> None:
    with pytest.raises(TaskError, match="humaneval has a test split only") as error:
        HumanEval().items("train")
    assert "\n" not in str(error.value)


def test_the_fingerprint_is_a_hash_of_the_file() -> None:
    assert re.fullmatch("[0-9a-f]{64}", HumanEval().fingerprint())
