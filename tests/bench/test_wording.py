"""A number of things stands in the singular or the plural."""

from __future__ import annotations

from thiefbench.wording import by_reason, counted


def test_one_thing_is_singular_and_any_other_number_is_plural() -> None:
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [counted(number, "entry", "entries") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]


def test_each_reason_is_told_once_with_its_seeds() -> None:
    assert by_reason({}) == ""
    assert by_reason({3: "it failed"}) == "seed 3: it failed"
    found = by_reason({4: "no score", 0: "no score", 1: "no score", 2: "it failed"})
    assert found == "seeds 0-1, 4: no score; seed 2: it failed"
