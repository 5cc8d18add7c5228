"""A number of things stands in the singular or the plural."""

from __future__ import annotations

from thiefbench.wording import counted


def test_one_thing_is_singular_and_any_other_number_is_plural() -> None:
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [counted(number, "entry", "entries") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
