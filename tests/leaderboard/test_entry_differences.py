"""`leaderboard diff`: what made two rows different, each possible cause apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.bench.handmade import Numbers
from tests.leaderboard import made_entries
from thiefbench.cli import app
from thiefbench.leaderboard.entry import Entry, EntryError, read_entry
from thiefbench.leaderboard.entry_differences import difference
from thiefbench.suite.report.compare import shown_difference
from thiefbench.suite.scenario import CellSpec

ENTRIES = Path(__file__).parents[2] / "leaderboard/entries"
STANDING = (ENTRIES / "guard-on-trial", ENTRIES / "length-quantile-on-trial")


def reasons(one: Entry, other: Entry) -> str:
    return "\n".join(difference(one, other).reasons)


def half_as_harmful(cell: CellSpec) -> Numbers:
    """Shared cells whose undefended attack does half of the usual harm."""
    usual = made_entries.shared(cell)
    return replace(usual, asr=usual.asr / 2) if cell.role == "attack" and cell.defense == "none" else usual


def test_rows_measured_against_the_same_published_cells_differ_by_their_own() -> None:
    one, other = (read_entry(folder) for folder in STANDING)
    told = difference(one, other)
    said = "\n".join(told.reasons)
    shared = [cell for cell in one.cells if cell.defense != one.manifest.defense]
    assert f"measured against the same {len(shared)} shared cells" in said
    assert "The defenses differ." in said
    (pair,) = [pair for pair in told.comparison.pairs if pair.name == "attacked"]
    asr = next(each for each in pair.differences if each.column.measure == "asr")
    assert asr.change.mean > 0.5, "the phrase is learned behind length_quantile"


def test_equal_swarms_whose_checks_cost_different_shares_are_the_same_in_every_evaluation() -> None:
    said = reasons(*(read_entry(ENTRIES / name) for name in ("recomputation", "neighbour-distance")))
    assert "The same in every evaluation: 6 of 10 own cells" in said, "nobody is rejected without an attack"
    assert "The others differ: from the evaluation after round 8 on in" in said


def test_shared_cells_that_differ_are_named_with_their_share_of_the_difference(tmp_path: Path) -> None:
    one = made_entries.entry(tmp_path, "one", made_entries.prevents(0.5))
    other = made_entries.entry(tmp_path, "other", made_entries.prevents(0.5), others=half_as_harmful)
    said = reasons(one, other)
    assert "none, seed 0 (first seen to differ at the evaluation after round 40)" in said, (
        "an entry keeps their last evaluations"
    )
    assert "harm of text" in said
    before, after = 0.5, 1 - 0.4 / 0.4  # A leaves a harm of 0.4; undefended it is 0.8 on its shared cells, 0.4 on B's
    sentence = next(line for line in said.splitlines() if line.startswith("On B's shared cells"))
    numbers = [
        float(word.rstrip(":,"))
        for word in sentence.split()
        if word.rstrip(":,").replace(".", "").replace("-", "").isdigit()
    ]
    assert numbers == pytest.approx([after, before], abs=0.03)


def test_what_made_the_cells_is_said_where_it_differs_alone(tmp_path: Path) -> None:
    one = made_entries.entry(tmp_path, "one")
    newer = {"python": "3.12.3", "thiefbench": "0.1.0", "torch": "2.15.0", "numpy": "2.4.0"}
    other = made_entries.entry(tmp_path, "other", versions=newer)
    made = next(line for line in reasons(one, other).splitlines() if line.startswith("Their own cells were not"))
    assert made == "Their own cells were not made with the same: torch 2.13.0 and 2.15.0."
    assert "made with the same versions" in reasons(one, one)


def test_commits_and_kernels_are_no_difference(tmp_path: Path) -> None:
    one = made_entries.entry(tmp_path, "one")
    machine = dict(one.manifest.machine) | {"git_commit": "1" * 40}
    assert "made with the same versions" in reasons(one, made_entries.entry(tmp_path, "other", machine=machine))


def test_what_made_the_later_seeds_of_an_entry_is_said_too(tmp_path: Path) -> None:
    one = made_entries.grown(tmp_path, "one")
    (later,) = one.manifest.later
    moved = later.model_copy(update={"machine": {**later.machine, "processor": "Another CPU"}})
    archive = later.archive.model_copy(update={"name": "other.seed-1.tar"})
    other = made_entries.grown(tmp_path, "other", later=(moved.model_copy(update={"archive": archive}),))
    assert "made with the same versions" in reasons(one, one)
    said = "not made with the same: processor Example CPU and Example CPU (seed 0) / Another CPU (seed 1)."
    assert said in reasons(one, other)
    first = {**one.manifest.machine, "processor": "Another CPU"}
    reversed_order = made_entries.grown(tmp_path, "reversed", machine=first)
    assert "processor Example CPU (seed 0) / Another CPU (seed 1) and Another CPU (seed 0)" in reasons(
        other, reversed_order
    )


def test_own_cells_are_equal_or_part_at_a_round(tmp_path: Path) -> None:
    one = made_entries.entry(tmp_path, "one", made_entries.prevents(0.9))
    same = made_entries.entry(tmp_path, "same", made_entries.prevents(0.9))
    worse = made_entries.entry(tmp_path, "worse", made_entries.prevents(0.2))
    assert "The same in every evaluation: 2 of 2 own cells, text" in reasons(one, same)
    said = reasons(one, worse)
    assert "The same in every evaluation: 1 of 2 own cells, text" in said, "without an attack both learn the same"
    assert "The others differ: from the evaluation after round 10 on in text" in said


def test_another_source_under_the_same_name_is_said(tmp_path: Path) -> None:
    one, other = (made_entries.entry(tmp_path, slug) for slug in ("one", "other"))
    assert "the same defense by name, but not by its source" in reasons(one, other), "each has a hash of its own"
    assert "They are the same defense, by its source." in reasons(one, one)


def test_entries_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    trial = made_entries.entry(tmp_path, "one")
    standard = made_entries.entry(tmp_path, "standard", suite="standard-v1", seeds=(0,))
    with pytest.raises(EntryError, match=r"is on trial-v1 and .* on standard-v1; only entries on the same suite"):
        difference(trial, standard)
    later = made_entries.entry(tmp_path, "later", suite="standard-v1", seeds=(1,))
    with pytest.raises(EntryError, match="no seed in common"):
        difference(standard, later)


def test_the_command_prints_it_and_writes_a_page(tmp_path: Path) -> None:
    folders = [str(folder) for folder in STANDING]
    shown = CliRunner().invoke(app, ["leaderboard", "diff", *folders, "--out", str(tmp_path)], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert "\nwhy\n- Their own cells" in shown.output
    page = (tmp_path / "compare.html").read_text()
    assert '<h2 id="why">Why they differ</h2>' in page
    assert "The defenses differ." in page
    data = json.loads(CliRunner().invoke(app, ["leaderboard", "diff", *folders, "--json"]).stdout)
    assert data["reasons"][-1].startswith("Their own cells differ: from the evaluation after round")
    assert data["lines"][0]["differences"][0]["measure"] == "asr"


def test_what_an_entry_says_cannot_write_markup(tmp_path: Path) -> None:
    one = made_entries.entry(tmp_path, "one")
    other = made_entries.entry(
        tmp_path, "other", machine={"processor": "<script>alert(1)</script> [red] \x1b[1m\u202e"}
    )
    shown = CliRunner().invoke(
        app, ["leaderboard", "diff", str(one.folder), str(other.folder), "--out", str(tmp_path / "o")]
    )
    assert "[red]" in shown.output
    page = (tmp_path / "o/compare.html").read_text()
    assert "<script>alert" not in page
    assert not {"\x1b", "\u202e"} & set(page), "characters that turn the text around are shown by their number"


def test_a_folder_that_is_no_entry_is_one_sentence(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["leaderboard", "diff", str(STANDING[0]), str(tmp_path / "none")])
    assert "there is no entry" in f"{shown.exception}{shown.output}"
    assert shown.exit_code != 0


def test_in_a_checkout_an_entry_s_own_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ENTRIES.parent.parent)
    shown = CliRunner().invoke(app, ["leaderboard", "diff", *(each.name for each in STANDING)])
    assert (shown.exit_code, "The defenses differ." in shown.output) == (0, True), shown.output
    mistyped = CliRunner().invoke(app, ["leaderboard", "diff", "gard-on-trial", STANDING[1].name])
    assert "there is no entry gard-on-trial; did you mean guard-on-trial" in f"{mistyped.exception}"


def test_shares_differ_by_points_and_what_is_no_share_is_no_success_rate(tmp_path: Path) -> None:
    one, other = (read_entry(folder) for folder in STANDING)
    (pair,) = [pair for pair in difference(one, other).comparison.pairs if pair.name == "attacked"]
    asr = next(each for each in pair.differences if each.column.measure == "asr")
    shown = shown_difference(asr)
    assert (shown["measure"], shown["change"].value.partition("\u00a0")[2]) == ("ASR", "pp")
    longer = shown_difference(replace(asr, one=31.5, other=59.0))
    assert (longer["measure"], longer["other"]) == ("outcome", "59.0"), "tokens"
