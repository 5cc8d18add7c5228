"""The table that a run ends with: nothing is cut, and every short name is explained."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import handmade
from thiefbench.suite.analysis.run_comparisons import ReportError
from thiefbench.suite.report.reading_notes import CLUSTERED
from thiefbench.suite.report.run_table import print_results, results_as_data, rows_of_run, short_names
from thiefbench.suite.store.records import Store

LONG = "reputation(defense='logit(tolerance=0.25)')"


def printed(kept: Store, width: int = 80) -> list[str]:
    """The lines that a run ends with."""
    out = StringIO()
    print_results(Console(file=out, width=width, soft_wrap=True), kept, rows_of_run(kept))
    return out.getvalue().splitlines()


def tables(lines: list[str]) -> list[str]:
    """The lines of tables, without sentences, which a terminal wraps."""
    return [line for line in lines if line[:1].isdigit() or line.startswith(" ")]


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
    kept = handmade.store(tmp_path, of, lambda cell: handmade.Numbers(asr=0.5 if cell.role == "attack" else 0.0))
    lines = printed(kept)
    assert any(line.startswith("100 ") for line in lines)
    assert max(map(len, tables(lines))) <= 80
    assert f"defense oracle: {dropping}" in lines


def test_a_numbered_name_does_not_say_its_kind_twice(tmp_path: Path) -> None:
    joined = "similarity+length_budget+logit"
    handmade.store(tmp_path, handmade.suite(defenses=("none", joined)), lambda cell: handmade.Numbers())
    out = StringIO()
    print_results(Console(file=out, width=80, soft_wrap=True), Store(tmp_path), rows_of_run(Store(tmp_path)))
    assert f"defense 1: {joined}" in out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 40])
def test_nothing_is_cut(tmp_path: Path, width: int) -> None:
    of = handmade.suite(defenses=("none", LONG, "logit"), seeds=(0, 1))
    handmade.store(tmp_path, of, lambda cell: handmade.Numbers(asr=123.456 if cell.role == "attack" else 0.0))
    store = Store(tmp_path)
    rows, lines = rows_of_run(store), printed(store, width)
    assert not any("\u2026" in line for line in lines)
    assert tables(lines)
    assert max(map(len, tables(lines))) <= 80
    assert f"defense reputation: {LONG}" in lines
    attacked = [line.split()[1:5] for line in lines if " attacked, logit " in line]
    assert attacked[:2] == [["attacked,", "logit", "0", "123.456"], ["attacked,", "logit", "1", "123.456"]]
    data = results_as_data(store, rows)
    assert [cell["scores"]["asr"]["value"] for cell in data["cells"] if cell["defense"] == LONG][-1] == 123.456


def test_the_undefended_swarm_has_the_readmes_words(tmp_path: Path) -> None:
    kept = handmade.store(tmp_path, handmade.suite(defenses=("none", "logit"), seeds=(0,), attacks=(handmade.TEXT,)))
    swarms = [line.split("  ")[1] for line in tables(printed(kept)) if line[:1].isdigit() and "0 " in line]
    assert swarms[:5] == ["no attack", "placebo", "attacked, no defense", "attacked, logit", "no attack, logit"]


@pytest.mark.parametrize("harm", [0.0, 0.05, 0.8])
def test_an_attack_that_does_not_work_is_inconclusive_as_on_the_page(tmp_path: Path, harm: float) -> None:
    kept = handmade.store(
        tmp_path,
        handmade.suite(defenses=("none", "logit"), attacks=("tone",)),
        lambda cell: handmade.Numbers(asr=harm if cell.role == "attack" else 0.0),
    )
    said = [line for line in printed(kept) if line.startswith("Inconclusive: ")]
    (comparison,) = handmade.comparisons(kept)
    why = comparison.why_inconclusive
    ends = "So these results do not show how well any defense works against this attack."
    assert said == ([f"Inconclusive: {why}. {ends}"] if harm < 0.1 else [])


@pytest.mark.parametrize(("seeds", "said"), [((0,), "own answers"), ((0, 1), "next seed's swarm")])
def test_a_controls_drift_is_marked_and_explained_once(tmp_path: Path, seeds: tuple[int, ...], said: str) -> None:
    kept = handmade.store(
        tmp_path,
        handmade.suite(defenses=("none", "logit"), seeds=seeds),
        lambda cell: replace(handmade.usual(cell), answers=("one two", "three")),
    )
    lines = printed(kept)
    marked = [line for line in tables(lines) if "*" in line]
    assert len(marked) == 2 * len(seeds), "one for each attack and seed"
    assert all(" no attack " in line for line in marked)
    assert [said in line for line in lines if line.startswith("* ")] == [True]


def test_the_intervals_of_rejections_are_explained(tmp_path: Path) -> None:
    kept = handmade.store(tmp_path, handmade.suite())
    assert printed(kept).count(CLUSTERED) == 1


def test_a_store_without_a_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no run"):
        rows_of_run(Store(tmp_path))
