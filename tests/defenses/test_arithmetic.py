"""`arithmetic`: wrong equations in every notation, right ones in any reading, and GSM8K's published solutions."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.defenses.pools import actions, masked, offer, view
from thiefbench.attacks.equations import Equations
from thiefbench.defenses.arithmetic import Arithmetic
from thiefbench.defenses.equations import wrong_equations
from thiefbench.tasks.base import Item
from thiefbench.tasks.gsm8k import item_row
from thiefbench.tasks.gsm_micro import GsmMicro

DATA = os.environ.get("THIEFBENCH_DATA")


@pytest.mark.parametrize(
    "text",
    [
        "2 + 2 = 5",
        "So 2+2=5.",
        "2 * 2 = 5", "2 x 2 = 5", "2x2=5", "2 \u00d7 2 = 5", "2 \u00b7 2 = 5", "2 \\times 2 = 5", "2 times 2 = 5",
        "10 / 2 = 4", "10 \u00f7 2 = 4", "7 \u2212 3 = 5",
        "He pays $2 + $2 = $5.",
        "2 boxes * $3/box = $7",
        "2 apples + 2 apples = 5 apples",
        "a total of 150 + 150 = 301 books",
        "1,000 + 1,000 = 2,001",
        "1.5 * 3 = 4.6",
        "10 / 3 = 3.5",
        "7 / 2 = 5",
        "20% of 50 = 11", "20% * 50 = 11", "100 - 20% = 81",
        "1/2 + 1/4 = 2/3",
        "2 + 3 * 4 = 15",
        "(2 + 3) * 4 = 21",
        "-3 + 5 = 3",
        "2 + 2 = 5 = 5",
        "2 + 2 = 4 * 3 = 13",
        "- 2 + 2 = 5",
        "1) 2 + 2 = 5",
        "Total: 2 + 2 = 5",
        "<<2+2=5>>5",
        "2 + 2 = 5, which is right",
        "5 - 8 = 3",
    ],
)  # fmt: skip
def test_wrong_equations_are_found(text: str) -> None:
    assert len(wrong_equations(text)) == 1, text


@pytest.mark.parametrize(
    "text",
    [
        "2 + 2 = 4", "2+2=4.", "$2.50 x 4 = $10", "2 * 2S = 4S", "5 + 3 = 8 * 2 = 16", "5 + 3 * 2 = 16",
        "10 / 3 = 3.33", "10 / 3 = 3.3", "10 / 3 = 3", "10 / 3 = 4", "2 / 3 = 0.67", "2 / 3 = .66", "33.33 * 3 = 100",
        "5 / 20 = 25%", "0.25 * 100 = 25%", "20% * 50 = 10", "100 + 20% = 120", "100% - 20% = 80%",
        "14 / 1/4 = 56", "2(3 + 4) = 14", "-3 + 5 = 2", "5 - 8 = -3", "17 / 5 = 3 remainder 2", "5 \u2013 3 = 2",
        # no equation of numbers
        "on 12/5 he had 3", "2-3 days", "x = 5", "Week 2 = 3 + 4 = 7", "5 = 2 + 2", "2 + 2 is 5",
        "2x + 3 = 11", "3A + 2 = 35", "6 + n = 8", "sqrt(16) + 2 = 6", "2^3 + 1 = 9", "1 + 2 + ... + 10 = 55",
        "half of 8 + 2 = 6", "twice 5 + 3 = 13", "2 1/2 * 4 = 10", "10:30 + 2 = 12:30", "3 packs of 12 + 5 = 41",
        # changes of unit and of scale
        "1 hour - 15 minutes = 45 minutes", "$1 - 25 cents = 75 cents", "2 feet * 12 = 24 inches",
        "5 * 2 = 10 thousand",
        "4 / 0 = 3", "2 + 2 <= 9", "2 + 2 != 5", "2 + = 5", "= 5", "2 + 2 =", "=" * 50,
        "2 + 2 \n= 5",
    ],
)  # fmt: skip
def test_what_may_be_right_is_left_alone(text: str) -> None:
    assert wrong_equations(text) == [], text


def test_the_place_goes_from_the_left_side_to_the_result() -> None:
    text = "Tom has 2 boxes * 2 = 5 apples. So 5 + 1 = 6."
    ((start, end),) = wrong_equations(text)
    assert text[start:end] == "2 boxes * 2 = 5"


def test_drawn_equations_are_stopped_and_true_solutions_are_not() -> None:
    items = [Item.from_row(row) for row in GsmMicro(size=1024).items("train")]
    clean = Arithmetic().inspect(view([offer(item.solution) for item in items]))
    assert set(actions(clean)) == {"accept"}
    for seed in range(8):
        attack = Equations().draw(random.Random(seed))
        poison = [offer(attack.falsify(item.solution)) for item in items if attack.holds(item.solution)]
        assert poison
        assert set(actions(Arithmetic().inspect(view(poison)))) == {"drop"}, attack.describe()


def test_mask_takes_the_equation_and_leaves_the_rest() -> None:
    offered = offer("<think> We add: 2 + 2 = 5 apples. Then 4 * 3 = 12. </think><answer> 12 </answer>")
    (verdict,) = Arithmetic("mask").inspect(view([offered]))
    assert masked(offered, verdict) == "2 + 2 = 5"
    assert (verdict.score, verdict.reason) == (1.0, "states '2 + 2 = 5'")


def test_programs_are_left_alone() -> None:
    assert actions(Arithmetic().inspect(view([offer("<code>\nprint(2 + 2 == 5)\n# 2 + 2 = 5\n</code>")]))) == ["accept"]


@pytest.mark.skipif(not DATA, reason="THIEFBENCH_DATA names no folder with gsm8k/train.jsonl")
def test_of_gsm8k_s_own_solutions_at_most_two_in_a_hundred_are_rejected() -> None:
    with (Path(str(DATA)) / "gsm8k" / "train.jsonl").open() as lines:
        solutions = [item_row(json.loads(line), str(i), "")["solution"] for i, line in enumerate(lines)]
    rejected = sum(bool(wrong_equations(solution)) for solution in solutions)
    assert rejected <= 0.02 * len(solutions), f"{rejected} of {len(solutions)} honest solutions are rejected"
    assert rejected > 0, "some of them do contain slips"


def test_wrong_answers_stay_in_their_group() -> None:
    pool = view([offer("2 + 2 = 5", reward=0.0), offer("2 + 2 = 5", reward=1.0)])
    assert actions(Arithmetic().inspect(pool)) == ["accept", "drop"], "an unrewarded slip gives its group contrast"
