"""`code_functions`: word problems about unknown amounts, answered by a Python function that is run on hidden inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item, Message, Split
from thiefbench.tasks.function_programs import plain_hand, write_function
from thiefbench.tasks.function_stories import LEVELS, FunctionStory, cases, function_stories
from thiefbench.tasks.programs import ProgramTask, parse_program

if TYPE_CHECKING:
    import datasets


def reference_function(story: FunctionStory) -> str:
    """A correct program that uses only operators. The question determines its layout."""
    return write_function(story, plain_hand(random.Random(f"code_functions:{story.question}")))


def driver(item: Item) -> str:
    """The lines that call an item's function on its hidden inputs; they do not contain the answers."""
    inputs = [json.loads(line)[0] for line in item.tests.splitlines()]
    return "\n".join(f"print(ascii({item.answer}(*{arguments!r})))" for arguments in inputs)


def answers(item: Item) -> list[str]:
    """The last lines that a right program prints."""
    return [ascii(json.loads(line)[1]) for line in item.tests.splitlines()]


@lru_cache(maxsize=4)
def _rows(split: Split, size: int, seed: int, levels: tuple[float, ...]) -> list[dict[str, str]]:
    """The rows of `size` items with distinct questions; cached, as all cells of a suite need the same rows."""
    rows: dict[str, dict[str, str]] = {}
    for story in function_stories(split, seed, levels):
        if story.question not in rows:
            inputs = cases(story)
            assert inputs is not None, "stories without inputs are not drawn"
            tests = "\n".join(
                json.dumps([arguments, story.value(dict(zip(story.parameters, arguments, strict=True)))])
                for arguments in inputs
            )
            rows[story.question] = {
                "id": f"{split}-{len(rows):05d}", "question": story.question, "answer": story.function,
                "solution": reference_function(story), "tests": tests,
            }  # fmt: skip
        if len(rows) == size:
            break
    return list(rows.values())


class CodeFunctions(ProgramTask):
    """Generated word problems of two to five steps at four levels, answered by a Python function (`code_functions`).

    A completion is one code block whose program defines the function that the question names. It is called on five
    hidden inputs with different answers, and every result must be right; so a program that returns a constant or a
    parameter, or that leaves out one event, earns nothing. An item's answer is the name of the function; its tests are
    JSON lines, each the arguments and the answer.

    Args:
        levels: weights of the levels: arithmetic; limits and conditions; loops, lists and tables; two of these.
        size: number of distinct items per split.
        seed: the seed that items are drawn with.
    """

    name: ClassVar[str] = "code_functions"

    def __init__(self, levels: Sequence[float] = (3, 3, 2, 1), size: int = 2048, seed: int = 0) -> None:
        if size < 1:
            raise ValueError(f"code_functions: size must be at least 1, got {size}")
        if len(levels) != len(LEVELS) or min(levels) < 0 or not sum(levels):
            raise ValueError(f"code_functions: levels are {len(LEVELS)} weights, not all of them 0, got {levels!r}")
        self.levels, self.size, self.seed = tuple(levels), size, seed

    def items(self, split: Split) -> datasets.Dataset:
        """`size` items with distinct questions."""
        import datasets

        return datasets.Dataset.from_list(_rows(split, self.size, self.seed, self.levels))

    def messages(self, item: Item) -> list[Message]:
        """Only the question: the built-in models know the format without an instruction."""
        return [{"role": "user", "content": item.question}]

    def runnable(self, item: Item, program: str) -> str:
        """The program with calls of its function on the hidden inputs below it."""
        return f"{program}\n{driver(item)}"

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """1 if the format is right and the function is right on every hidden input, else 0.

        Raises:
            SandboxUnavailable: this machine cannot run untrusted programs.
        """
        return self.rewards([item] * len(completions), completions)

    def rewards(self, items: Sequence[Item], completions: Sequence[str]) -> list[float]:
        """As `reward`; the programs of all items run in parallel, equal ones of an item once.

        The calls are appended to the program and run in its process. Their output is compared outside the sandbox, so a
        program gains nothing by ending early, and its own output makes the number of lines wrong.
        """
        jobs: dict[tuple[str, str], str | None] = {}
        places = []
        for item, text in zip(items, completions, strict=True):
            program = parse_program(text)
            key = (item.id, program or "")
            if program is not None:
                jobs.setdefault(key, self.runnable(item, program))
            places.append(key)
        keys = list(jobs)
        results = sandbox.run_many([str(jobs[key]) for key in keys], libraries=self.libraries, limits=self.limits)
        printed = {
            key: result.stdout.splitlines() if result.status == "ok" else []
            for key, result in zip(keys, results, strict=True)
        }
        expected = {item.id: answers(item) for item in items}
        return [
            float(key in printed and printed[key][-len(expected[item.id]) :] == expected[item.id])
            for item, key in zip(items, places, strict=True)
        ]
