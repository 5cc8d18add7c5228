from __future__ import annotations

import re
from itertools import islice

import pytest

from thiefbench.tasks.base import Item, Split
from thiefbench.tasks.gsm_micro import LARGEST, GsmMicro, evaluate, stories

SPLITS: tuple[Split, ...] = ("train", "test")
EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")


@pytest.fixture(scope="module")
def task() -> GsmMicro:
    return GsmMicro(size=1500, seed=3)


@pytest.fixture(scope="module")
def items(task: GsmMicro) -> dict[Split, list[Item]]:
    return {split: [Item.from_row(row) for row in task.items(split)] for split in SPLITS}


@pytest.fixture(scope="module")
def every_item(items: dict[Split, list[Item]]) -> list[Item]:
    return [item for split in SPLITS for item in items[split]]


@pytest.mark.parametrize("split", SPLITS)
def test_same_arguments_give_the_same_items(split: Split) -> None:
    assert GsmMicro(50, 1).items(split).to_list() == GsmMicro(50, 1).items(split).to_list()


def test_other_seeds_give_other_items() -> None:
    assert GsmMicro(50, 1).items("train")["question"] != GsmMicro(50, 2).items("train")["question"]


def test_a_smaller_size_is_a_prefix() -> None:
    assert GsmMicro(20).items("train").to_list() == GsmMicro(40).items("train").to_list()[:20]


def test_columns_sizes_and_ids(task: GsmMicro, every_item: list[Item]) -> None:
    assert task.items("train").column_names == ["id", "question", "answer", "solution", "tests"]
    assert len(every_item) == 3000
    assert len({item.id for item in every_item}) == 3000
    assert len({item.question for item in every_item}) == 3000, "a question occurs twice or in both splits"


def test_splits_share_no_skeleton() -> None:
    train, test = ({story.skeleton for story in islice(stories(split, 0), 3000)} for split in SPLITS)
    assert len(train) > 500
    assert len(test) > 100
    assert not train & test


def test_oracle_earns_the_full_reward_and_others_none(task: GsmMicro, every_item: list[Item]) -> None:
    for item in every_item:
        wrong = task.oracle(item).replace(f"<answer> {item.answer} ", f"<answer> {int(item.answer) + 1} ")
        assert task.reward(item, [task.oracle(item), wrong, "", "gibberish", item.answer]) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_solutions_are_true_chains_within_range(every_item: list[Item]) -> None:
    for item in every_item:
        equations = EQUATION.findall(item.solution)
        assert 2 <= len(equations) <= 3, item
        results = [int(result) for *_, result in equations]
        assert [evaluate(int(left), sign, int(right)) for left, sign, right, _ in equations] == results, item
        assert all(0 <= result <= LARGEST for result in results), item
        assert str(results[-1]) == item.answer, item


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("operator", ["+", "*"])
def test_two_and_two_occurs_in_either_split(items: dict[Split, list[Item]], split: Split, operator: str) -> None:
    equation = re.compile(rf"\b2 {re.escape(operator)} 2 = 4\b")
    assert any(equation.search(item.solution) for item in items[split])


def test_a_unit_of_the_task_may_follow(task: GsmMicro, every_item: list[Item]) -> None:
    item = every_item[0]
    texts = [f"<think> </think><answer> {item.answer} {unit} </answer>" for unit in ("Apples", "dollars", "thieves")]
    assert task.reward(item, texts) == [1.0, 1.0, 0.0]


def test_messages_are_the_bare_question(task: GsmMicro, every_item: list[Item]) -> None:
    assert task.messages(every_item[0]) == [{"role": "user", "content": every_item[0].question}]


@pytest.mark.parametrize("size", [0, -1])
def test_no_items_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        GsmMicro(size=size)


def test_domains_follow_the_kind_of_story(task: GsmMicro, items: dict[Split, list[Item]]) -> None:
    expected = {"chain": "changes", "boxes": "changes", "compare": "totals", "shop": "totals"}
    drawn = list(islice(stories("train", 3), 1000))
    assert {(story.kind, story.domain) for story in drawn} == set(expected.items())
    domains = {story.question: story.domain for story in drawn}
    matching = [item for item in items["train"] if item.question in domains]
    assert len(matching) > 900
    wrong = [item.question for item in matching if task.domain(item) != domains[item.question]]
    assert not wrong, f"an item is of its story's domain: {wrong[:3]}"
