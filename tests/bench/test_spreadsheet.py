"""Texts of strangers in CSV files: no spreadsheet computes them, no terminal obeys them, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bench import handmade
from tests.bench.pools import lines
from thiefbench.pools.judging import judge_file
from thiefbench.pools.rounds import read_rounds
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run
from thiefbench.suite.report.compare import compared, comparison_csv
from thiefbench.suite.report.overview import suite_table
from thiefbench.suite.report.suite_files import suite_csv
from thiefbench.suite.report.tables import csv_text
from thiefbench.suite.store.records import Store

FORMULA = '=HYPERLINK("http://localhost/?"&A1)'


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\uff1d", "\uff20"])
def test_no_text_begins_like_a_formula(first: str) -> None:
    assert read(csv_of([[f"{first}1+1", "a=1"]])) == [[f"'{first}1+1", "a=1"]]


def test_characters_that_cannot_be_seen_are_written_by_their_number() -> None:
    assert read(csv_of([["a\x1b[31mb\rc", "two\nlines"]])) == [["a<U+001B>[31mb<U+000D>c", "two\nlines"]]
    assert read(csv_of([["\r=1", "\n=1"]])) == [["<U+000D>=1", "'\n=1"]]


def test_numbers_stay_numbers() -> None:
    assert csv_of([[-0.1, -3, 1e-20, True, False, None, 0.1 + 0.2]]) == "-0.1,-3,1e-20,1,0,,0.30000000000000004\n"


def of_the_report(store: Store, run: Mapping[str, Any]) -> str:
    return csv_text(run, comparisons_of_run(store, run))


def of_the_suite(store: Store, run: Mapping[str, Any]) -> str:
    return suite_csv(run, suite_table(run, comparisons_of_run(store, run)))


def of_a_comparison(store: Store, run: Mapping[str, Any]) -> str:
    return comparison_csv(compared([store.root], ["logit", "similarity"]))


@pytest.mark.parametrize("written", [of_the_report, of_the_suite, of_a_comparison])
def test_a_run_of_a_stranger_puts_no_formula_into_a_report(
    tmp_path: Path, written: Callable[[Store, Mapping[str, Any]], str]
) -> None:
    suite = handmade.suite(
        name=FORMULA, parts=handmade.parts(f"{FORMULA}\x1b[2J", "plain"), defenses=("none", "logit", "similarity")
    )
    store = handmade.store(tmp_path, suite)
    run = store.read_run()
    assert run is not None
    text = written(store, run)
    assert FORMULA in text.replace('""', '"'), "the stranger's text is in there"
    check(text)


def test_a_pool_of_a_stranger_puts_no_formula_into_rates(tmp_path: Path) -> None:
    content = [lines.line(sender=sender) for sender in (FORMULA, "\x1b[2J", "-1")]
    text = judge_file(read_rounds(lines.written(tmp_path / "pool.jsonl", content)), ["similarity"]).csv()
    assert f"'{FORMULA}" in {row[2] for row in read(text)}
    check(text)


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def check(text: str) -> None:
    """Every cell is a number or a text that is none of a formula."""
    assert "\x1b" not in text
    assert not [cell for cell in texts(text) if cell.startswith(("=", "+", "-", "@"))]


def texts(text: str) -> Iterator[str]:
    for row in read(text):
        for cell in row:
            try:
                float(cell)
            except ValueError:
                yield cell
