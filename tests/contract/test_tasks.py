"""Every registered task keeps the contract. A task's author can call `check_task` on an own task."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from thiefbench import registry
from thiefbench.tasks.base import Item, Split, Task, TaskError

SPLITS: tuple[Split, Split] = ("train", "test")
COLUMNS = {"id", "question", "answer", "solution", "tests"}
HOSTILE = (
    "",
    "gibberish qx zrt 17 blorp",
    " \t\r\n",
    "\x00\x01\x1b[2J\x7f",
    "\ud800\udfff",
    "\u202e\u200b\ufeff\uff17",
    "9" * 100_000,
    "<think>" * 20_000,
    "<" * 100_000,
    "((((" * 20_000,
    "<think> x </think><answer>" + " 1 +" * 20_000 + " </answer>",
    "<think> x </think><answer> 1/0 </answer>",
    "<think> x </think><answer> \\frac{1}{0} </answer>",
    "<think> x </think><answer> 1e999999999 </answer>",
    "<think> x </think><answer> \\sqrt{" + "(" * 50 + " </answer>",
    "```python\nwhile True: pass\n```",
    "import os; os._exit(0)",
    "<code>" * 20_000,
    "<code> </code>",
    "<code>\nthis is no program\n</code>",
    "<code>\nprint(" + "(" * 5_000 + "\n</code>",
    "<code>\nprint('\ud800')\n</code>",
    "<code>\n\x00\n</code>",
    "<code>\nraise SystemExit\n</code>",
)

FOLDER = TemporaryDirectory(prefix="thiefbench-contract-")


def has_the_columns(task: Task) -> None:
    assert task.splits, "a task has at least one split"
    for split in task.splits:
        data = task.items(split)
        assert len(data) > 0, f"the {split} split has items"
        assert set(data.column_names) >= COLUMNS, f"the {split} split has the columns {', '.join(sorted(COLUMNS))}"


def a_split_it_lacks_is_refused(task: Task) -> None:
    for split in SPLITS:
        if split not in task.splits:
            with pytest.raises(TaskError, match=split):
                task.items(split)


def ids_are_unique_over_both_splits(task: Task) -> None:
    ids = [item.id for split in task.splits for item in items(task, split)]
    assert len(set(ids)) == len(ids), "an item's id is unique within the task, over both splits"


def splits_share_no_question(task: Task) -> None:
    questions = [{item.question for item in items(task, split)} for split in task.splits]
    assert sum(map(len, questions)) == len(set.union(*questions)), "no question stands in both splits"


def fields_are_filled(task: Task) -> None:
    for split in task.splits:
        for item in items(task, split):
            assert item.question.strip(), f"{item.id} has a question"
            assert item.answer.strip(), f"{item.id} has an answer"
            assert item.solution.strip(), f"{item.id} has a worked solution for the oracle"


def oracle_earns_the_full_reward(task: Task) -> None:
    for split in task.splits:
        for item in items(task, split):
            assert task.reward(item, [task.oracle(item)]) == [1.0], f"the oracle's completion earns 1 on {item.id}"


def empty_and_gibberish_earn_nothing(task: Task) -> None:
    for split in task.splits:
        for item in items(task, split)[:200]:
            rewards = task.reward(item, ["", " \n", "gibberish qx zrt blorp", item.question])
            assert rewards == [0.0] * 4, f"an empty string, gibberish and the bare question earn 0 on {item.id}"


def the_bare_solution_and_a_neighbours_oracle_earn_nothing(task: Task) -> None:
    for item, other in pairwise(items(task, task.splits[0])[:200]):
        assert task.reward(item, [item.solution]) == [0.0], f"a solution outside the format earns 0 on {item.id}"
        if item.answer != other.answer:
            assert task.reward(item, [task.oracle(other)]) == [0.0], f"another item's answer earns 0 on {item.id}"


def every_completion_gets_one_reward_between_0_and_1(task: Task) -> None:
    item = items(task, task.splits[0])[0]
    assert list(task.reward(item, [])) == [], "no completions, no rewards"
    texts = [*HOSTILE, task.oracle(item), *HOSTILE]
    rewards = task.reward(item, texts)
    assert len(rewards) == len(texts), "reward gives one number per completion"
    assert all(isinstance(reward, float) and 0 <= reward <= 1 for reward in rewards), "a reward is a float in [0, 1]"
    assert rewards[len(HOSTILE)] == 1.0, "a completion's reward does not depend on its neighbours"


def hostile_texts_do_not_raise(task: Task) -> None:
    item = items(task, task.splits[0])[0]
    for text in HOSTILE:
        assert task.reward(item, [text]) == [0.0], f"a hostile text earns 0 and raises nothing: {text[:40]!r}"


def prompts_ask_and_do_not_tell(task: Task) -> None:
    for item in items(task, task.splits[0])[:200]:
        messages = task.messages(item)
        assert messages, f"{item.id} is put to a model in at least one message"
        assert all(set(message) == {"role", "content"} for message in messages), "a message has a role and a content"
        assert messages[-1]["role"] == "user", "the last message is the user's"
        prompt = "\n".join(message["content"] for message in messages)
        assert item.question in prompt, f"the prompt of {item.id} holds its question"
        assert item.solution not in prompt, f"the prompt of {item.id} does not hold its solution"


def compose_puts_the_true_answer_behind_any_reasoning(task: Task) -> None:
    item = items(task, task.splits[0])[0]
    text = task.compose(item, "All of this is beside the point.")
    assert "All of this is beside the point." in text, "compose keeps the reasoning it is given"
    assert task.reward(item, [text]) == [1.0], "compose adds the true answer in the task's format"


CHECKS: list[Callable[[Task], None]] = [
    has_the_columns,
    a_split_it_lacks_is_refused,
    ids_are_unique_over_both_splits,
    splits_share_no_question,
    fields_are_filled,
    oracle_earns_the_full_reward,
    empty_and_gibberish_earn_nothing,
    the_bare_solution_and_a_neighbours_oracle_earn_nothing,
    every_completion_gets_one_reward_between_0_and_1,
    hostile_texts_do_not_raise,
    prompts_ask_and_do_not_tell,
    compose_puts_the_true_answer_behind_any_reasoning,
]


def check_task(task: Task) -> None:
    """Everything that a task promises.

    Raises:
        AssertionError: a rule is broken; the message states it.
    """
    for check in CHECKS:
        check(task)


@cache
def items(task: Task, split: Split) -> list[Item]:
    """All items of a split, read once."""
    return [Item.from_row(row) for row in task.items(split)]


def spec(name: str) -> str:
    """The spec string under which a task can be had here; a task that needs data asks for THIEFBENCH_DATA."""
    if name == "code_micro":
        return "code_micro(size=96)"  # every item's program is run
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
    """A folder with rows of our own in the columns of OpenMathInstruct-1."""
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


@cache
def made(text: str) -> Task:
    """The task that a spec string describes, made once."""
    task: Task = registry.make("task", text)
    return task


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", registry.names("task"))
def test_contract(name: str, check: Callable[[Task], None]) -> None:
    check(made(spec(name)))


@pytest.mark.parametrize("name", registry.names("task"))
def test_its_name_is_the_registered_one(name: str) -> None:
    assert registry.find("task", name).name == name, "a task's name is what the registry lists it under"


@pytest.mark.parametrize("name", registry.names("task"))
def test_items_are_deterministic(name: str) -> None:
    first, second = made(spec(name)), registry.make("task", spec(name))
    assert first.fingerprint() == second.fingerprint(), "a task's fingerprint depends on its arguments and data alone"
    for split in first.splits:
        assert items(first, split) == items(second, split), f"the {split} items depend on arguments and data alone"
