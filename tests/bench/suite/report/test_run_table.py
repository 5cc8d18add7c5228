"""The table that a run ends with: nothing is cut, and every short name is explained."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import handmade
from thiefbench.suite.analysis.run_comparisons import ReportError
from thiefbench.suite.report.run_table import print_results, results_as_data, rows_of_run, short_names
from thiefbench.suite.store.records import Store

LONG = "reputation(defense='logit(tolerance=0.25)')"


LONGEST = "neighbour_distance(factor=2)"


def test_short_names_are_the_targets_and_none_is_taken_twice() -> None:
    specs = ["logit", LONG, LONG.replace("0.25", "0.5"), "a/very/long/path/to/a/file/of/mine.py:Mine", "none", LONG]
    specs += ["similarity+length_budget+logit", "similarity+length_budget+toploc"]
    assert short_names("defense", specs) == {
        "logit": "logit",
        LONG: "reputation",
        LONG.replace("0.25", "0.5"): "reputation 2",
        "a/very/long/path/to/a/file/of/mine.py:Mine": "Mine",
        "none": "none",
        "similarity+length_budget+logit": "defense 1",
        "similarity+length_budget+toploc": "defense 2",
    }
    assert short_names("defense", [LONGEST])[LONGEST] == "neighbour_distance", "alone, a name may fill the column"
    phrase = "text(phrase='one two three four')"
    assert short_names("attack", [phrase, "text"]) == {phrase: "text 2", "text": "text"}, "a short one stays itself"


def test_many_rows_with_long_names_fit_80_columns(tmp_path: Path) -> None:
    dropping = "oracle(reject='drop')"
    of = handmade.suite(defenses=("none", dropping, "judge_hardened", "length_quantile"), seeds=tuple(range(20)))
    handmade.store(tmp_path, of, lambda cell: handmade.Numbers(asr=0.5 if cell.role == "attack" else 0.0))
    out = StringIO()
    print_results(Console(file=out, width=80, soft_wrap=True), rows_of_run(Store(tmp_path)))
    lines = out.getvalue().splitlines()
    assert any(line.startswith("100 ") for line in lines)
    assert max(map(len, lines)) <= 80
    assert f"defense oracle: {dropping}" in lines


@pytest.mark.parametrize("width", [80, 40])
def test_nothing_is_cut(tmp_path: Path, width: int) -> None:
    of = handmade.suite(defenses=("none", LONG, "logit"), seeds=(0, 1))
    handmade.store(tmp_path, of, lambda cell: handmade.Numbers(asr=123.456 if cell.role == "attack" else 0.0))
    out, store = StringIO(), Store(tmp_path)
    rows = rows_of_run(store)
    print_results(Console(file=out, width=width, soft_wrap=True), rows)
    lines = out.getvalue().splitlines()
    assert not any("\u2026" in line for line in lines)
    tables = [line for line in lines if line[:1].isdigit() or line.startswith(" ")]
    assert tables
    assert max(map(len, tables)) <= 80
    assert f"defense reputation: {LONG}" in lines
    attacked = [line.split() for line in lines if " logit " in line and "attack" not in line]
    assert [(row[1], row[2], row[3]) for row in attacked[:2]] == [("logit", "0", "123.456"), ("logit", "1", "123.456")]
    data = results_as_data(store, rows)
    assert [cell["scores"]["asr"]["value"] for cell in data["cells"] if cell["defense"] == LONG][-1] == 123.456


def test_a_store_without_a_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no run"):
        rows_of_run(Store(tmp_path))
