"""A task that answers what it may not is told so in one sentence, wherever it is used."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import tiny
from tests.bench.plugins import Sums
from thiefbench import registry
from thiefbench.task_answers import checked
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
        ("[7.0] * n", "gave the reward 7.0 to a completion of the item a; a reward is a number from 0 to 1"),
        ("[-1] * n", "gave the reward -1 to a completion of the item a"),
        ("[nan] * n", "gave the reward nan to a completion"),
        ("['1'] * n", "gave the reward '1' to a completion"),
        ("[None] * n", "gave the reward None to a completion"),
        ("[1.0] * (n - 1)", "gave 1 reward for 2 completions of the item a"),
        ("0.5", "gave 0.5 instead of a list of rewards for 2 completions"),
        ("None", "gave None instead of a list of rewards"),
    ],
)
def test_what_is_no_reward(rewards: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        checked(Rewards(rewards)).rewards([ITEM, ITEM], ["", ""])


@pytest.mark.parametrize("rewards", ["[0, 1.0]", "[True, False]", "np.array([0.5, 1], dtype='float32')", "(1, 0)"])
def test_what_is_a_reward(rewards: str) -> None:
    assert len(checked(Rewards(rewards)).rewards([ITEM, ITEM], ["", ""])) == 2


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("[]", "has no items in its split test"),
        ("[{'id': 'a', 'question': '', 'answer': '', 'solution': ''}] * 3", "has 3 items with the id 'a'"),
        ("[{'id': 'a', 'answer': ''}]", "lacks the columns question, solution"),
        ("[{'id': 'a', 'question': '', 'answer': ''}]", "lacks the column solution"),
        ("None", "has NoneType instead of a datasets.Dataset"),
        ("[1, 2]", "has list instead of a datasets.Dataset"),
    ],
)
def test_what_are_no_items(rows: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=f"^the task sums {complaint}"):
        checked(Items(rows)).items("test")


def test_what_are_no_messages() -> None:
    with pytest.raises(
        TaskError, match=r"^the messages of the task sums are '1 .* 1.' for the item a; messages are a list"
    ):
        checked(Says()).messages(ITEM)


def test_our_own_tasks_are_left_as_they_are() -> None:
    task = registry.make("task", "gsm_micro(size=64)")
    assert checked(task) is task
    assert "reward" not in vars(task)


@dataclass(frozen=True)
class Frozen(Sums):
    """What `with_libraries` makes is another task."""

    published: tuple[str, ...] = ()

    def with_libraries(self, libraries: Mapping[str, str]) -> Frozen:
        return replace(self, published=tuple(libraries))

    def reward(self, item: Item, completions: Sequence[str]) -> list[float]:
        return [0.5 if self.published else 1.0 for _ in completions]


def test_a_copy_answers_for_itself() -> None:
    task = checked(Frozen())
    assert checked(task).rewards([ITEM], [""]) == [1.0]
    assert task.with_libraries({"sums": ""}).rewards([ITEM], [""]) == [0.5]
    assert copy.copy(checked(Rewards("[2.0]"))).name == "sums"
    with pytest.raises(TaskError, match=r"gave the reward 2\.0"):
        copy.deepcopy(checked(Rewards("[2.0]"))).rewards([ITEM], [""])
    assert isinstance(task, Frozen)
    assert type(task).__qualname__ == "Frozen"


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ("Rewards(rewards='[7.0] * n')", "gave the reward 7.0"),
        ("Rewards(rewards='[1.0] * (n - 1)')", "gave 0 rewards for 1 completion of the item"),
        ("Items(rows='[]')", "has no items in its split"),
    ],
)
def test_a_swarm_says_it(task: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=complaint):
        tiny.run(tiny.suite(task=f"{HERE}:{task}", kind=tiny.Attacked), tmp_path)
