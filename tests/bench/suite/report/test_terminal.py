"""Tables of the terminal, at its width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from thiefbench.suite.report.plain_table import plain_table
from thiefbench.suite.report.terminal import print_table

CELLS = ("length_budget", "0.125 [0.033, 0.297]", "1.000 [0.981, 1.000]", "0.031 [0.000, 0.282]", "0.081", "0.523")
HEADINGS = ("defense", "stop rate", "false rejection", "all completions", "all reward", "ms per completion")


def table_of(*cells: str) -> Table:
    table = plain_table(*HEADINGS[: len(cells)])
    table.add_row(*cells)
    return table


def printed(table: Table, width: int, terminal: bool = True) -> list[str]:
    out = StringIO()
    print_table(Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False), table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "terminal"), [(120, True), (20, False)])
def test_a_table_that_fits_or_goes_to_a_file_has_a_line_per_row(width: int, terminal: bool) -> None:
    headings, row = printed(table_of(*CELLS), width, terminal)
    assert headings.split("  ")[0] == "defense"
    assert [each.strip() for each in row.split("  ") if each] == list(CELLS)


def test_in_80_columns_intervals_stand_below_their_numbers() -> None:
    *headings, numbers, limits = printed(table_of(*CELLS), 80)
    assert headings[-1].split() == ["defense", "rate", "rejection", "completions", "reward", "completion"]
    assert numbers.split() == ["length_budget", "0.125", "1.000", "0.031", "0.081", "0.523"]
    assert limits.strip() == "[0.033, 0.297] [0.981, 1.000] [0.000, 0.282]"
    assert max(map(len, [*headings, numbers, limits])) <= 80


def test_a_long_name_is_wrapped_and_nothing_is_cut() -> None:
    lines = printed(table_of("similarity(" + "a" * 60 + ")", *CELLS[1:]), 80)
    assert max(map(len, lines)) <= 80
    assert sum(line.count("a" * 5) for line in lines) > 5, "the name goes on in further lines"
    assert "\u2026" not in "".join(lines)


def test_what_does_not_fit_at_all_is_wider_than_the_terminal() -> None:
    lines = printed(table_of(*CELLS), 40)
    assert max(map(len, lines)) > 40
    assert "[0.000, 0.282]" in lines[-1], "a line that the terminal breaks can still be read"
