"""`code_functions`: its stories, what earns a reward, and what earns none."""

from __future__ import annotations

import ast
import json
from itertools import islice

import pytest

from thiefbench.tasks.base import Item
from thiefbench.tasks.code_functions import CodeFunctions, answers
from thiefbench.tasks.function_stories import CASES, LEVELS, cases, function_stories, level_of
from thiefbench.tasks.programs import format_program

TASK = CodeFunctions(size=120)
ITEMS = [Item.from_row(row) for row in TASK.items("test")]


def test_reference_programs_earn_the_full_reward_on_every_level() -> None:
    for level in LEVELS:
        task = CodeFunctions(levels=[float(other == level) for other in LEVELS], size=40)
        items = [Item.from_row(row) for row in task.items("train")]
        assert task.rewards(items, [task.oracle(item) for item in items]) == [1.0] * 40, f"level {level}"


def test_a_constant_or_an_echo_earns_nothing() -> None:
    """Every item's own right answers as constants, and each of its parameters as it came."""
    constants = [
        (item, format_program(f"def {item.answer}(*given):\n    return {answer}"))
        for item in ITEMS
        for answer in answers(item)
    ]
    echoes = [
        (item, format_program(f"def {item.answer}(*given):\n    return given[{place}]"))
        for item in ITEMS
        for place in range(len(json.loads(item.tests.splitlines()[0])[0]))
    ]
    rewards = TASK.rewards([item for item, _ in constants + echoes], [text for _, text in constants + echoes])
    assert sum(rewards) == 0


def test_every_event_shows_in_some_hidden_input() -> None:
    for story in islice(function_stories("train", 1), 200):
        inputs = cases(story)
        assert inputs is not None
        given = [dict(zip(story.parameters, arguments, strict=True)) for arguments in inputs]
        assert len({story.value(arguments) for arguments in given}) == CASES
        for number in range(len(story.events)):
            assert any(story.value(arguments, without=number) != story.value(arguments) for arguments in given)


def test_levels_bring_in_their_kinds() -> None:
    for place, level in enumerate(LEVELS):
        weights = [float(other == place) for other in range(len(LEVELS))]
        kinds = [[level_of(event) for event in s.events] for s in islice(function_stories("train", 2, weights), 100)]
        assert max(map(max, kinds)) == min(level, 3)
        assert all(1 in story_kinds for story_kinds in kinds), "an event adds, subtracts or multiplies"
        if level == 4:
            assert all(story_kinds.count(3) == 2 for story_kinds in kinds)


def test_the_splits_share_no_skeleton() -> None:
    train = {story.skeleton for story in islice(function_stories("train", 3), 500)}
    assert train.isdisjoint(story.skeleton for story in islice(function_stories("test", 3), 500))


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys\nprint({right})\nsys.exit()",
        "print({right})",
        "def {name}(*given):\n    print({right})",
        "import builtins\nbuiltins.print = lambda *given: None\ndef {name}(*given):\n    return 1",
        "class Equal:\n    def __eq__(self, other):\n        return True\ndef {name}(*given):\n    return Equal()",
        "import os\ndef {name}(*given):\n    os._exit(0)",
        "def {name}(*given):\n    return True",
    ],
)
def test_cheats_earn_nothing(cheat: str) -> None:
    item = ITEMS[0]
    right = answers(item)[0]
    text = format_program(cheat.replace("{name}", item.answer).replace("{right}", right))
    assert TASK.reward(item, [text]) == [0.0]


def test_what_else_a_right_program_prints_does_no_harm() -> None:
    item = ITEMS[0]
    text = format_program(f"print('ready')\n{item.solution}")
    assert TASK.reward(item, [text, TASK.oracle(item), ""]) == [1.0, 1.0, 0.0]


def test_a_float_is_no_whole_number() -> None:
    item = ITEMS[0]
    program = item.solution.replace(f"def {item.answer}(", "def whole(")
    program += f"\ndef {item.answer}(*given):\n    return float(whole(*given))"
    assert TASK.reward(item, [format_program(program)]) == [0.0]


def test_reference_programs_import_nothing_and_differ_in_layout() -> None:
    programs = [item.solution for item in ITEMS]
    assert not any("import" in program for program in programs)
    lengths = {len(ast.parse(program).body[0].body) for program in programs}  # type: ignore[attr-defined]
    assert {1, 2, 3} <= lengths, "some are one expression, some go step by step"


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        CodeFunctions(size=0)
    for levels in ((1, 1), (0, 0, 0, 0), (1, 1, 1, -1)):
        with pytest.raises(ValueError, match="levels are 4 weights"):
            CodeFunctions(levels=levels)
