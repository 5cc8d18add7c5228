"""Every registered task keeps the contract."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from thiefbench import registry
from thiefbench.testing.contracts import TaskContract

FOLDER = TemporaryDirectory(prefix="thiefbench-contract-")


def spec(name: str) -> str:
    """The spec string that makes a task here; a task that needs data takes it from THIEFBENCH_DATA."""
    if name == "code_micro":
        return "code_micro(size=96)"  # every item's program is run
    if name == "code_functions":
        return "code_functions(size=96)"
    if name == "openmath":
        return f"openmath(data={openmath_rows()!r})"
    if name != "gsm8k":
        return name
    data = Path(os.environ.get("THIEFBENCH_DATA") or "unset") / "gsm8k"
    if not data.is_dir():
        pytest.skip("gsm8k needs its data: set THIEFBENCH_DATA to the directory that holds gsm8k/train.jsonl")
    return f"gsm8k(data={str(data)!r})"


@cache
def openmath_rows() -> str:
    """A folder with hand-written rows in the columns of OpenMathInstruct-1."""
    for name, numbers in (("train", range(2, 14)), ("validation", range(14, 18))):
        rows = [
            {
                "question": f"A shelf holds {n} books. How many do {n + 1} such shelves hold?",
                "expected_answer": str(n * (n + 1)),
                "generated_solution": f"We multiply.\n<llm-code>\nbooks = {n}\nbooks * {n + 1}\n</llm-code>",
                "is_correct": True,
            }
            for n in numbers
        ]
        file = Path(FOLDER.name) / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return FOLDER.name


@pytest.mark.parametrize("name", registry.names("task"))
class TestRegistered(TaskContract):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.task = spec(name)  # type: ignore[misc]

    def test_its_name_is_the_registered_one(self, name: str) -> None:
        assert registry.find("task", name).name == name, "a task's name is what the registry lists it under"
