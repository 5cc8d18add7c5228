"""A task that answers what it may not is told so in one sentence, wherever it is used."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.bench import tiny
from tests.bench.plugins import Sums
from thiefbench import registry
from thiefbench.errors import UserError
from thiefbench.task_answers import check_task, is_share, wrong_rewards
from thiefbench.tasks.base import Item, Message, Split, TaskError

HERE = Path(__file__)


class Rewards(Sums):
    """Gives what it is told to."""

    def __init__(self, rewards: str = "[1.0]") -> None:
        self.rewards_given = rewards

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        made: list[float] = eval(self.rewards_given, {"n": len(completions), "np": np, "nan": float("nan")})
        return made


class Items(Sums):
    """Has these items."""

    def __init__(self, rows: str = "[]") -> None:
        self.rows = rows

    def items(self, split: Split) -> Any:
        return eval(self.rows, globals() | {"split": split})


class Says(Sums):
    """Asks with this instead of messages."""

    def __init__(self, messages: Any = "1 + 1?") -> None:
        self.given = messages

    def messages(self, item: Item) -> list[Message]:
        return self.given  # type: ignore[no-any-return]


class NoSplit(Sums):
    """Has no items at all."""

    splits = ()


ROW = {"id": "a", "question": "1 + 1?", "answer": "2", "solution": "It is"}
COUNT = itertools.count()


@pytest.mark.parametrize(
    ("rewards", "complaint"),
    [
        ("[7.0] * n", "gave the reward 7.0 to a completion of the item train-1-1; a reward is a number from 0 to 1"),
        ("[-1] * n", "gave the reward -1 to a completion"),
        ("[nan] * n", "gave the reward nan to a completion"),
        ("['1'] * n", "gave the reward '1' to a completion"),
        ("[None] * n", "gave the reward None to a completion"),
        ("[1.0] * (n - 1)", "gave 1 reward for 2 completions of the item"),
        ("0.5", "gave 0.5 instead of a list of rewards for 2 completions"),
        ("None", "gave None instead of a list of rewards"),
        ("{0: 1.0, 1: 0.0}", "gave {0: 1.0, 1: 0.0} instead of a list of rewards"),
        ("{0.0, 1.0}", "gave {0.0, 1.0} instead of a list of rewards"),
        ("[np.bool_(True)] * n", "gave the reward .* to a completion"),
        ("[1.1] * n", "gave the reward 1.1 to a completion"),
    ],
)
def test_what_is_no_reward(rewards: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        check_task(Rewards(rewards))


@pytest.mark.parametrize(
    "rewards",
    [
        "[0, 1.0]",
        "[True, False]",
        "np.array([0.5, 1], dtype='float32')",
        "(0.0 for _ in 'ab')",
        "[0.3 + 0.6 + 0.1 + 2e-16] * n",
    ],
)
def test_what_is_a_reward(rewards: str) -> None:
    check_task(Rewards(rewards))


def test_numbers_of_other_libraries_are_shares() -> None:
    held = (True, 0, 1.0, 0.2 + 0.4 + 0.3 + 0.1, np.float32(0.5), np.int64(1))
    assert all(map(is_share, held))
    assert [type(value) for value in held if pa.array([value], pa.float64()).null_count] == [], "a table can hold them"
    assert not any(map(is_share, (None, "1", np.str_("1"), 1.1, float("nan"), float("inf"), 10**400, [1.0])))
    assert not any(map(is_share, (np.bool_(True), torch.tensor(0.5), Fraction(1, 2), Decimal(1)))), "a table cannot"
    assert wrong_rewards(np.ones(2), 2) == ""


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("[]", "has no items in its split train"),
        ("[ROW] * 3", "has 6 items with the id 'a' \\(in train and test\\); every item has its own"),
        (
            "[ROW] if split == 'train' else [ROW | {'question': 'b?'}]",
            "has 2 items with the id 'a' \\(in train and test",
        ),
        ("None", "has None instead of the items of its split train"),
        ("['a']", "has 'a' among the items of its split train; `items` returns"),
        ("[Item('a', '', '', '')]", "has Item.* among the items of its split train; `items` returns"),
        ("[{'id': 'a', 'question': '', 'answer': ''}]", "has an item with no solution in its split train"),
        ("[ROW | {'answer': 5}]", "has an item with the answer 5 in its split train; each of these is a text"),
        ("[ROW | {'id': 7}]", "has an item with the id 7 in its split train"),
        ("[ROW | {'question': np.str_('a')}]", "has an item with the question .*; each of these is a text"),
        ("[ROW | {'tests': 7}]", "has an item with the tests 7 in its split train; they are a text"),
        (
            "[ROW | {'answer': chr(0xD800)}]",
            "has an item with the answer '.ud800' in its split train, which holds half",
        ),
        (
            "[ROW | {'id': f'{split} {next(COUNT)}'}]",
            "gave the items of its split train other ids when it was asked again",
        ),
    ],
)
def test_what_are_no_items(rows: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        check_task(Items(rows))


@pytest.mark.parametrize(
    "given",
    [
        "1 + 1?",
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": 1, "content": ""}],
        [{"role": "user", "content": "\ud800"}],
    ],
)
def test_what_are_no_messages(given: Any) -> None:
    with pytest.raises(TaskError, match=r"^the messages of the task sums are .* for the item .*; messages are a list"):
        check_task(Says(given))


def test_a_task_has_a_split() -> None:
    with pytest.raises(TaskError, match=r"^the splits of the task sums are \(\); it has train, test or both$"):
        check_task(NoSplit())


def test_our_own_tasks_are_not_tried() -> None:
    task = registry.make("task", "gsm_micro(size=64)")
    task.items = None  # which would fail
    check_task(task)


class Later(Sums):
    """Gives a reward that is none to what does not look like a solution or nothing."""

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [7.0 if text and " = " not in text else 0.0 for text in completions]


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ("Rewards(rewards='[7.0] * n')", "gave the reward 7.0"),
        ("Rewards(rewards='[1.0] * (n - 1)')", "gave 1 reward for 2 completions of the item"),
        ("Items(rows='[]')", "has no items in its split"),
    ],
)
def test_a_swarm_says_it(task: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=complaint):
        tiny.run(tiny.suite(task=f"{HERE}:{task}", kind=tiny.Attacked), tmp_path)


def test_a_task_s_own_error_is_a_sentence_before_the_first_round(tmp_path: Path) -> None:
    task = f"{HERE}:Rewards(rewards='1 / 0')"
    with pytest.raises(UserError, match=r"^your own code failed: ZeroDivisionError: division by zero \(.*line \d+\)$"):
        tiny.run(tiny.suite(task=task, kind=tiny.Attacked), tmp_path)


def test_a_reward_that_is_none_later_fails_the_cell(tmp_path: Path) -> None:
    (record,) = tiny.run(tiny.suite(task=f"{HERE}:Later", kind=tiny.Attacked), tmp_path)
    assert record.status == "error"
    assert "the task sums gave the reward 7.0 to a completion; a reward is a number from 0 to 1" in record.error
