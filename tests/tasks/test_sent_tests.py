"""Answers and tests that a sender wrote: what cannot be used is refused by name, inside the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from thiefbench.tasks import sandbox
from thiefbench.tasks.answer_keys import AnswerKey, answer_key_fault, keyed_rewards, wrong
from thiefbench.tasks.base import Item, Task
from thiefbench.tasks.code_functions import CodeFunctions
from thiefbench.tasks.code_micro import CodeMicro
from thiefbench.tasks.gsm_micro import GsmMicro
from thiefbench.tasks.programs import format_program
from thiefbench.tasks.sent_tests import MOST_CASES, cases_of

TASK = CodeFunctions(size=4)
ITEM = Item.from_row(TASK.items("train")[0])


@pytest.fixture(autouse=True)
def sandboxed() -> None:
    try:
        sandbox.backend()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(str(error))


def fault(tests: str) -> str:
    return answer_key_fault(TASK, ITEM, AnswerKey(ITEM.answer, tests))


HOSTILE = {
    "def check(candidate:": "its tests cannot be parsed",
    "": "its tests do not define check",
    "x = 1": "its tests do not define check",
    "check = 3": "its tests do not define check",
    "raise ValueError('reached')": "its tests fail before they call a program",
    "while True: pass": "its tests do not end within 2 seconds",
    "def check(candidate):\n    while True:\n        pass": "its tests do not end within 2 seconds",
    "def check(candidate):\n    print('x' * 2 ** 30)": "its tests need more than 256 MiB",
    "def check(candidate):\n    while True:\n        print('x' * 10_000)": "its tests print more than 65,536 bytes",
    "def check(candidate):\n    kept = bytearray(2 ** 34)": "its tests need more than 256 MiB",
    "import socket\nsocket.create_connection(('192.0.2.1', 80))": "its tests reached for the network",
    "def check(candidate):\n    import socket\n    socket.getaddrinfo('example.org', 80)": (
        "its tests reached for the network"
    ),
    "def check(candidate):\n    import faulthandler\n    faulthandler._read_null()": "its tests were killed",
    "\x00": "its tests cannot be parsed",
    "(" * 5_000: "its tests cannot be parsed",
    "[[1], 2]\n[3]": "its tests do not define check",
    "def check(candidate):\n    assert candidate(1) == 2": "",
}


@pytest.mark.parametrize("tests", HOSTILE)
def test_tests_that_cannot_be_used_are_refused_by_name(tests: str) -> None:
    assert fault(tests) == HOSTILE[tests], tests[:40]


def test_its_own_tests_have_no_fault() -> None:
    assert fault(ITEM.tests) == ""
    assert cases_of(ITEM.tests) is not None


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "3",
        "[1, 2]",
        "[[1], 2, 3]",
        "[[1], NaN]",
        "[" * 100_000,
        "[[1], " + "9" * 5_000 + "]",
        "\n".join(["[[1], 2]"] * (MOST_CASES + 1)),
    ],
)
def test_other_lines_are_no_cases(tests: str) -> None:
    assert cases_of(tests) is None


@pytest.mark.parametrize("name", ["", "f(1)", "__import__('os').system", "class", "f\n", "1f"])
def test_a_name_that_is_none_is_not_put_into_a_program(name: str) -> None:
    assert answer_key_fault(TASK, ITEM, AnswerKey(name, ITEM.tests)) == "its answer is no function's name"


def test_a_program_may_be_tested_by_a_program() -> None:
    right, bad = TASK.oracle(ITEM), wrong(TASK, ITEM)
    arguments, answer = cases_of(ITEM.tests)[0]  # type: ignore[index]
    by_program = replace(
        ITEM, id="other", tests=f"def check(candidate):\n    assert candidate(*{arguments!r}) == {answer!r}"
    )
    assert keyed_rewards(TASK, [ITEM, by_program, ITEM, by_program], [right, right, bad, bad]) == [1.0, 1.0, 0.0, 0.0]
    assert keyed_rewards(TASK, [by_program] * 2, ["no program", format_program("x = 1")]) == [0.0, 0.0]
    anything = replace(ITEM, id="any", tests="def check(candidate):\n    pass")
    assert keyed_rewards(TASK, [anything] * 3, [right, bad, "no program"]) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("task", [GsmMicro(size=2), CodeMicro(size=2)], ids=["reasoning", "programs"])
@pytest.mark.parametrize("answer", ["", "many", "12 or 13", "1e9999", "9" * 200, "\ud800", "1/0"])
def test_an_answer_that_is_no_number_is_refused_by_name(task: Task, answer: str) -> None:
    item = Item.from_row(task.items("train")[0])
    assert answer_key_fault(task, item, AnswerKey(answer)) == "its answer is no number"
    assert answer_key_fault(task, item, AnswerKey.of(item)) == answer_key_fault(task, item, AnswerKey("7")) == ""


def test_an_items_answer_key_is_its_answer_and_tests() -> None:
    assert AnswerKey.of(ITEM) == AnswerKey(ITEM.answer, ITEM.tests)
    assert AnswerKey("f", "x").put_into(ITEM) == replace(ITEM, answer="f", tests="x")


def test_an_answer_that_no_completion_can_give_is_refused(vowels: Task) -> None:
    class Fails(type(vowels)):  # type: ignore[misc]
        def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
            return [1 / (item.answer != "z")] * len(completions)

    item = Item.from_row(vowels.items("train")[0])
    assert answer_key_fault(Fails(), item, AnswerKey("z")) == "its answer is none that a completion can give"
    assert answer_key_fault(Fails(), item, AnswerKey("y")) == ""
