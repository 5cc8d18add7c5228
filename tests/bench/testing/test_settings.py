"""From the marker's arguments to a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench import tiny
from thiefbench.errors import UserError
from thiefbench.suite.suite_yaml import load_suite
from thiefbench.testing.settings import ARGUMENTS, suite_of


def test_what_is_left_out_is_as_in_the_released_suite() -> None:
    smoke, made = load_suite("smoke"), suite_of({})
    for name in ("task", "model", "attacks", "swarm", "rounds", "evaluation", "seeds"):
        assert getattr(made, name) == getattr(smoke, name), f"{name} is smoke's"
    assert made.defenses == ("none",)
    assert made.title == "smoke-v1", "its cells are the released suite's own"
    ours = made.cells("cpu", "float32", 2)
    assert set(ours) < set(smoke.cells("cpu", "float32", 2)), "so a store of `thiefbench run smoke` serves both"


def test_arguments_change_what_they_name_and_are_told() -> None:
    made = suite_of(
        {"attack": "dos", "topology": "vertical", "rounds": 3, "seeds": 2, "swarm": {"sampling": {"top_k": 5}}}
    )
    assert (made.attacks, made.swarm.topology, made.rounds, made.seeds) == (("dos",), "vertical", 3, (0, 1))
    assert made.swarm.sampling.top_k == 5
    assert made.swarm.sampling.max_new_tokens == 96, "fields inside a field are changed one by one"
    assert made.title.startswith("smoke-v1, modified: attack dos, rounds 3, seeds 2, ")


def test_another_suite_to_start_from(tmp_path: Path) -> None:
    made = suite_of({"suite": str(tiny.suite_file(tmp_path)), "seeds": [4, 7], "placebo": True})
    assert (made.task, made.seeds, made.placebo) == (tiny.TASK, (4, 7), True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rouds": 3}, f"has no argument rouds; did you mean rounds? known: {', '.join(ARGUMENTS)}"),
        ({"attack": "txt"}, "there is no attack named 'txt'; did you mean text?"),
        (
            {"attack": ["text", "dos"]},
            "attack is one string, not ['text', 'dos']; mark one test for each, or parametrize",
        ),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"rounds": "many"}, "the marker thiefbench: rounds: Input should be a valid integer"),
        ({"seeds": 0}, "seeds is how many, as in seeds=5, or which, as in seeds=[0, 3], not 0"),
        ({"seeds": "all"}, "not 'all'"),
        ({"topology": "flat"}, "the marker thiefbench: swarm.topology: Input should be 'vertical' or 'horizontal'"),
        (
            {"swarm": {"nods": 3}},
            "swarm.nods is not a field here; did you mean nodes? allowed: churn, control_tokens, delay, group, items, ",
        ),
        ({"swarm": "large"}, "swarm is a mapping of fields as in a suite file, such as {...}, not 'large'"),
        ({"suite": "standard-v1"}, "has parts, and a test is about one attack in one swarm; run it whole with pytest "),
        ({"task": "gsm"}, "there is no task named 'gsm'"),
        (
            {"task": "code_functions"},
            "task='code_functions': the model micro-math answers gsm_micro alone; add model='micro-programs'",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        suite_of(arguments)
    assert complaint in str(error.value)
    assert isinstance(error.value, UserError), "it is told without a traceback"
    assert "\n" not in str(error.value)
