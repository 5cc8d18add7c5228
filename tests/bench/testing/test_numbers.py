"""Measured numbers."""

from __future__ import annotations

import pickle

import pytest

from thiefbench.suite.analysis.statistics import StatisticsError
from thiefbench.suite.store.records import Score
from thiefbench.testing.numbers import over_seeds


def score(value: float | None, around: float | None = 0.1) -> Score:
    limits = (None, None) if value is None or around is None else (value - around, value + around)
    return Score(value=value, low=limits[0], high=limits[1], count=0 if around is None else 100)


def test_one_seed_has_the_interval_over_its_completions() -> None:
    number = over_seeds({3: score(0.5)})
    assert 0.4 < number < 0.6, "it compares as the float it is"
    assert (number.low, number.high, number.count, number.over) == (0.4, 0.6, 100, "completions")
    assert repr(number) == "0.500 [0.400, 0.600] (95 %, 100 completions)"


def test_a_comparison_of_cells_has_no_interval_at_one_seed() -> None:
    number = over_seeds({0: score(0.97, None)})
    assert (number.low, number.high, number.count) == (0.97, 0.97, 0)
    assert repr(number) == "0.970 (1 seed)"


def test_few_seeds_have_points_and_their_range() -> None:
    number = over_seeds({0: score(0.2), 1: score(0.6), 2: score(0.4)})
    assert (float(number), number.low, number.high, number.over) == (pytest.approx(0.4), 0.2, 0.6, "range")
    assert repr(number) == "0.200 0.400 0.600 (3 seeds)", "nothing is called an interval below five seeds"


def test_five_seeds_have_an_interval_over_seeds() -> None:
    number = over_seeds({seed: score(0.5 + 0.01 * seed) for seed in range(5)})
    assert number.over == "seeds"
    assert number.low < 0.52 - 0.015 < 0.52 + 0.015 < number.high, "it is Student's, wider than the normal one"
    assert repr(number).endswith("(95 %, 5 seeds)")


def test_a_seed_without_a_value_is_no_number() -> None:
    with pytest.raises(StatisticsError, match="the value at seed 1"):
        over_seeds({0: score(0.5), 1: score(None)})


def test_a_number_travels_between_processes() -> None:
    number = over_seeds({0: score(0.5)})
    again = pickle.loads(pickle.dumps(number))
    assert (again, repr(again)) == (number, repr(number))
