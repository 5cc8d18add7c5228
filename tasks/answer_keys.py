"""Answers and tests that a sender wrote: whether a task can score by them, and how.

This module is apart from `thiefbench.tasks.base`, because only swarms with truth: sender need it. A task of your own
may define the methods ``answer_key_fault(item) -> str`` and ``wrong(item) -> str``, which then decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeGuard, runtime_checkable

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item, Task
from thiefbench.tasks.programs import AnswerProgramTask, ProgramTask, format_program, last_line, parse_program
from thiefbench.tasks.rewards import Units, parse_answer
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.tasks.sent_tests import cases_of, name_fault, program_fault

_NO_NUMBER = "its answer is no number"


@dataclass(frozen=True)
class AnswerKey:
    """The answer and the tests by which an item's completions are scored.

    Where receivers score by what arrives with the work, a sender wrote them, so they are hostile input.

    Attributes:
        answer: the final answer; for some coding problems, the name of the function to write.
        tests: the tests of a coding problem; empty in other tasks.
    """

    answer: str
    tests: str = ""

    @classmethod
    def of(cls, item: Item) -> AnswerKey:
        """An item's own."""
        return cls(item.answer, item.tests)

    def put_into(self, item: Item) -> Item:
        """The item with this answer and these tests."""
        return replace(item, answer=self.answer, tests=self.tests)


@runtime_checkable
class JudgesAnswerKeys(Protocol):
    """A task that says for itself by which answers and tests it can score."""

    def answer_key_fault(self, item: Item) -> str:
        """As the function of this name, for an item with a sender's answer and tests."""


@runtime_checkable
class WritesWrong(Protocol):
    """A task that writes a wrong completion itself."""

    def wrong(self, item: Item) -> str:
        """As the function of this name."""


@lru_cache(maxsize=4096)
def answer_key_fault(task: Task, item: Item, key: AnswerKey) -> str:
    """Why a task can score no completion of an item by an answer and tests that a sender wrote; empty if it can.

    Programs in tests run only in the sandbox. It is worked out once, as tests that do not end cost time.

    Args:
        task: the task.
        item: its own, with the true answer.
        key: what the sender wrote.

    Returns:
        a clause with a verb, such as "its answer is no number".

    Raises:
        SandboxUnavailable: this machine cannot run untrusted programs.
    """
    if isinstance(task, JudgesAnswerKeys):
        return task.answer_key_fault(key.put_into(item))
    if _tests_functions(task):
        if cases_of(key.tests) is not None:
            return name_fault(key.answer)
        return name_fault(key.answer) or program_fault(key.tests, task.limits)
    if _is_number(item.answer) and not _is_number(key.answer):
        return _NO_NUMBER
    if isinstance(task, AnswerProgramTask):
        line = key.answer.strip(" \t\r\n")
        return "" if line and last_line(line) == line else "its answer is not one line of text"
    stated = key.put_into(item)
    try:
        rewarded = task.reward(stated, [task.compose(stated, "It is so.")])[0] > 0
    except SandboxUnavailable:
        raise
    except Exception:  # a stranger's answer must not end the round, whatever the task
        rewarded = False
    return "" if rewarded else "its answer is none that a completion can give"


def wrong(task: Task, item: Item) -> str:
    """A completion in a task's format that earns nothing by the item's true answer and tests.

    It is the oracle's with a wrong answer; a function that returns None; or a program that prints something else.
    """
    if isinstance(task, WritesWrong):
        return task.wrong(item)
    if _tests_functions(task):
        return format_program(f"def {item.answer}(*arguments):\n    return None")
    if isinstance(task, ProgramTask):
        return format_program("print('wrong')")
    return task.compose(replace(item, answer="0" if "1" in item.answer else "1"), item.solution)


def keyed_rewards(task: Task, items: Sequence[Item], texts: Sequence[str]) -> list[float]:
    """A task's rewards of completions on items whose answers and tests a sender may have written, at the same places.

    Where functions are tested, the tests may be cases, or a program that defines ``check(candidate)``.
    """
    if not _tests_functions(task):
        return task.rewards(items, texts)
    own = [place for place, item in enumerate(items) if cases_of(item.tests) is not None]
    known = task.rewards([items[place] for place in own], [texts[place] for place in own])
    rewards = dict(zip(own, known, strict=True))
    checked: dict[tuple[str, str, str], float] = {}
    for place, (item, text) in enumerate(zip(items, texts, strict=True)):
        program = parse_program(text)
        if place in rewards or program is None:
            continue
        at = (item.answer, item.tests, program)
        if at not in checked:
            libraries, limits = task.libraries, task.limits
            result = sandbox.check(program, item.answer, item.tests, libraries=libraries, limits=limits)
            checked[at] = float(result.status == "ok")
        rewards[place] = checked[at]
    return [rewards.get(place, 0.0) for place in range(len(items))]


def _tests_functions(task: Task) -> TypeGuard[ProgramTask]:
    """Whether an item's answer is the name of a function, which its tests call."""
    return isinstance(task, ProgramTask) and not isinstance(task, AnswerProgramTask)


def _is_number(answer: str) -> bool:
    return parse_answer(answer, Units(())) is not None
