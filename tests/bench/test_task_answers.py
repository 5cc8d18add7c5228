"""A task that answers what it may not is told so in one sentence, wherever it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
        return eval(self.rows)


class Says(Sums):
    """Asks with a text instead of messages."""

    def messages(self, item: Item) -> list[Message]:
        return item.question  # type: ignore[return-value]


ITEM = Item("a", "1 + 1?", "2", "It is")


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
    ],
)
def test_what_is_no_reward(rewards: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        check_task(Rewards(rewards))


@pytest.mark.parametrize(
    "rewards", ["[0, 1.0]", "[True, False]", "np.array([0.5, 1], dtype='float32')", "(0.0 for _ in 'ab')"]
)
def test_what_is_a_reward(rewards: str) -> None:
    check_task(Rewards(rewards))


def test_numbers_of_other_libraries_are_shares() -> None:
    assert all(map(is_share, (True, 0, 1.0, np.float32(0.5), np.int64(1), torch.tensor(0.5))))
    assert not any(map(is_share, (None, "1", 1.1, float("nan"), float("inf"), 10**400, torch.ones(2), [1.0])))
    assert wrong_rewards(torch.ones(2), 2) == ""


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("[]", "has no items in its split train"),
        (
            "[{'id': 'a', 'question': '', 'answer': '', 'solution': ''}] * 3",
            "has 3 items with the id 'a' in its split train",
        ),
    ],
)
def test_what_are_no_items(rows: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        check_task(Items(rows))


def test_what_are_no_messages() -> None:
    with pytest.raises(
        TaskError, match=r"^the messages of the task sums are '1 .* 1.' for the item .*; messages are a list"
    ):
        check_task(Says())


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
