"""Two runs, or two defenses of a run, side by side."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.cli.test_cli import Cli, cli, sentence  # noqa: F401  # the fixture
from tests.bench.handmade import TEXT, TONE, Numbers, Says, parts, store, suite, usual
from tests.bench.suite.report import sampled
from tests.bench.suite.report.test_report import Page
from thiefbench.suite.analysis.differences import MEASURES, Difference, LinePair, StoreComparison, settings_of
from thiefbench.suite.analysis.run_comparisons import ReportError
from thiefbench.suite.analysis.statistics import summarize
from thiefbench.suite.report.compare import compared, identical, remarks, settings, write_comparison
from thiefbench.suite.report.verdicts import headline, verdict
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Record

FIVE = (0, 1, 2, 3, 4)
SHIFTS = (0.1, 0.1, 0.1, 0.1, 0.2)
SMALL = {"attacks": (TEXT,), "defenses": ("none", "logit")}


def small(**changes: Any) -> Suite:
    return suite(**(SMALL | changes))


def shifted(cell: CellSpec) -> Numbers:
    """As `usual`, and the defended models say the payload more often, by seed."""
    made = usual(cell)
    return replace(made, asr=made.asr + SHIFTS[cell.seed]) if cell.defense == "logit" and made.asr else made


def failing(of: Says, *seeds: int) -> Says:
    """What `of` says; attacked cells of logit fail at some seeds."""
    hit = lambda c: c.role == "attack" and c.defense == "logit" and c.seed in seeds  # noqa: E731
    return lambda cell: replace(of(cell), error="out of memory") if hit(cell) else of(cell)


def two(folder: Path, one: tuple[Suite, Says], other: tuple[Suite, Says]) -> StoreComparison:
    sides = [store(folder / name, *made).root for name, made in (("a", one), ("b", other))]
    return compared(sides, [])


def pair(found: StoreComparison, name: str, title: str = TEXT) -> LinePair:
    (only,) = [each for each in found.of(title) if each.name == name]
    return only


def measured(of: LinePair, measure: str) -> Difference:
    (found,) = [each for each in of.differences if each.column.measure == measure]
    return found


class TestDifferences:
    def test_five_seeds_have_an_interval(self, tmp_path: Path) -> None:
        """Other rounds make other cells."""
        found = two(tmp_path, (small(seeds=FIVE), usual), (small(seeds=FIVE, rounds=20), shifted))
        asr = measured(pair(found, "logit"), "asr")
        assert (asr.one, asr.other) == (pytest.approx(0.08), pytest.approx(0.2))
        # differences 0.1 (4 times) and 0.2: mean 0.12, standard error 0.02, t(4) = 2.7764
        assert (asr.change.kind, asr.change.mean) == ("interval", pytest.approx(0.12))
        assert asr.change.low == pytest.approx(0.12 - 2.7764 * 0.02, abs=1e-5)
        prevented = measured(pair(found, "logit"), "harm_prevented")
        assert prevented.change.mean == pytest.approx(-0.12 / 0.8)

    def test_fewer_have_their_points(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(), usual), (small(rounds=20), shifted))
        change = measured(pair(found, "logit"), "asr").change
        assert change.kind == "range"
        assert [value for _, value in change.points] == pytest.approx([0.1, 0.1, 0.1])

    def test_only_seeds_with_a_score_on_both_sides_count(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(seeds=FIVE), failing(usual, 0)), (small(rounds=20), failing(shifted, 2)))
        lost = pair(found, "logit")
        assert [seed for seed, _ in measured(lost, "asr").change.points] == [1]
        assert measured(lost, "asr").one == pytest.approx(0.08), "and the means are over them as well"
        assert lost.missing == ("A, seed 0: failed: out of memory", "B, seed 2: failed: out of memory")
        assert "only A has: seed 3; seed 4" in found.alone

    def test_nothing_on_both_sides_is_no_number(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(seeds=(0,)), failing(usual, 0)), (small(seeds=(0,), rounds=20), usual))
        assert pair(found, "logit").differences == ()

    def test_the_very_same_is_identical(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(), usual), (small(), usual))
        assert {each.state for each in found.pairs} == {"identical"}
        assert set(identical(found, TEXT)) == {each.name for each in found.pairs}
        assert (found.alone, found.contradictions, remarks(found)) == ((), [], [])

    def test_the_same_cell_with_other_numbers_is_said_loudly(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(seeds=(0,)), usual), (small(seeds=(0,)), shifted))
        assert pair(found, "logit").state == "contradictory"
        (text,) = found.contradictions
        assert text.startswith(f"{TEXT}, logit, seed 0, cell ")
        assert "asr 0.08 and 0.18" in text
        assert pair(found, "none").state == "identical"

    def test_one_cell_that_is_not_the_same_is_not_identical(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(), failing(usual, 0)), (small(), usual))
        assert pair(found, "logit").state == "identical", "where both have a score"
        assert "logit" not in identical(found, TEXT), "but one seed has none"

    def test_what_only_one_side_has(self, tmp_path: Path) -> None:
        ours = small(parts=parts("x", "y"), attacks=())
        theirs = small(parts=parts("x", attacks=(TEXT,)), attacks=(), defenses=("none", "similarity"))
        found = two(tmp_path, (ours, usual), (theirs, usual))
        assert found.titles == [f"x: {TEXT}"]
        assert found.alone == (
            f"only A has: x: {TONE}; y: {TEXT}; y: {TONE}",
            f"x: {TEXT}: only A has: logit; no attack, logit",
            f"x: {TEXT}: only B has: similarity; no attack, similarity",
        )

    def test_parts_of_one_name_meet(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(parts=parts("x", "y")), usual), (small(parts=parts("y", "x")), usual))
        assert sorted(found.titles) == sorted(f"{part}: {attack}" for part in "xy" for attack in (TEXT, TONE))
        assert settings(found, f"x: {TEXT}") == ["swarm.prompts 4 and 8"]

    def test_the_order_of_cells_changes_nothing(self, tmp_path: Path) -> None:
        def mixed(cells: list[CellSpec]) -> list[CellSpec]:
            return random.Random(0).sample(cells, len(cells))

        made, other = small(seeds=FIVE), small(seeds=FIVE, rounds=20)
        plain = two(tmp_path / "plain", (made, usual), (other, shifted))
        roots = [
            store(tmp_path / "mixed" / name, each, says, mixed).root
            for name, each, says in (("a", made, usual), ("b", other, shifted))
        ]
        again = compared(roots, [])
        assert {(p.title, p.name): p for p in again.pairs} == {(p.title, p.name): p for p in plain.pairs}


class TestSettings:
    def test_what_else_differs_is_named(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(), usual), (small(rounds=20, model="micro-code"), usual))
        assert settings(found, TEXT) == ["model micro-math and micro-code", "rounds 10 and 20"]
        assert "different fingerprints" in remarks(found)[0]

    def test_hashes_are_named_and_not_shown(self) -> None:
        def record(**identity: Any) -> Record:
            cell = {"seed": 0, "defense": "x"}
            return Record(cell_id="", cell=cell, identity={"cell": cell, **identity}, status="ok")

        one = record(engine_revision=1, sources={"task": "ab", "defense": "cd"}, judge={"weights": "ef"})
        other = record(engine_revision=2, sources={"task": "00", "defense": "00"})
        assert settings_of(one, other) == [
            "engine_revision 1 and 2",
            "sources.task",
            "sources.defense",
            "judge.weights",
        ]
        assert settings_of(one, other, ("defense",)) == ["engine_revision 1 and 2", "sources.task"]

    def test_a_modified_suite_is_named(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(modified=("20 rounds",)), usual), (small(), usual))
        assert remarks(found)[0] == "A is modified: 20 rounds."


class TestDefenses:
    def test_two_defenses_of_one_run(self, tmp_path: Path) -> None:
        root = store(tmp_path, suite(seeds=FIVE)).root
        found = compared([root], ["logit", "similarity()"])
        attacked = pair(found, "attacked", TONE)
        assert measured(attacked, "asr").change.mean == pytest.approx(0.32 - 0.08)
        assert measured(attacked, "harm_prevented").change.mean == pytest.approx(0.6 - 0.9)
        assert measured(pair(found, "no attack"), "utility").change.mean == 0
        assert attacked.settings == (), "that the defense differs is what was asked"
        assert (found.one.defense, found.other.defense, remarks(found)) == ("logit", "similarity", [])

    def test_the_short_name_of_a_table_will_do(self, tmp_path: Path) -> None:
        named = "logit(reject='drop')"
        root = store(tmp_path, suite(defenses=("none", named, "oracle"))).root
        assert compared([root], ["none", "logit"]).other.defense == named

    @pytest.mark.parametrize(
        ("count", "defenses", "complaint"),
        [
            (1, [], "compare takes two stores, or one store and two --defense; this is 1 store and 0 --defense"),
            (3, [], "this is 3 stores"),
            (1, ["logit"], "and 1 --defense"),
            (2, ["logit", "none"], "this is 2 stores and 2 --defense"),
            (1, ["logit", "logit()"], "both --defense name logit; name two different ones"),
            (1, ["logit", "arithmetic"], "has no cell with the defense arithmetic; it has none, logit"),
            (1, ["logit", "mine.py:Mine"], "has no cell with the defense mine.py:Mine; it has none, logit"),
            (1, ["logit", "logits"], "has no cell with the defense logits; it has none, logit"),
        ],
    )
    def test_a_mistake_is_one_sentence(
        self, tmp_path: Path, count: int, defenses: Sequence[str], complaint: str
    ) -> None:
        root = store(tmp_path, small(seeds=(0,))).root
        with pytest.raises(ReportError) as raised:
            compared([root] * count, defenses)
        assert complaint in str(raised.value)

    def test_runs_that_share_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ReportError, match=r"share no attack in the same part.* A has text.*; B has tone"):
            two(tmp_path, (small(), usual), (small(attacks=(TONE,)), usual))


class TestOutputs:
    def written(self, folder: Path, found: StoreComparison) -> tuple[str, Page, list[dict[str, str]]]:
        page = write_comparison(found, folder / "out")
        html = page.read_text(encoding="utf-8")
        with (folder / "out" / "compare.csv").open(newline="") as file:
            return html, Page(html), list(csv.DictReader(file))

    def test_page_and_csv(self, tmp_path: Path) -> None:
        found = two(tmp_path, (small(seeds=FIVE), usual), (small(seeds=FIVE, rounds=20), shifted))
        html, page, lines = self.written(tmp_path, found)
        change = "+12.0 pp [+6.4, +17.6] 5 of 5 seeds, \u2265 0.55"
        assert ["ASR", "8.0 %", "20.0 %", change, "\u2717 worse", "5"] in page.rows
        unchanged = [cells[0] for cells in page.rows if cells[0].startswith("The same at every seed: ")]
        assert any(text.endswith("Stop rate, False rejection, Utility, Mean length") for text in unchanged)
        assert "B is worse than A in harm prevented; false rejection and utility cannot be told apart." in page.text
        (asr_plot,) = [str(a["aria-label"]) for _, a in page.tags if str(a.get("aria-label")).startswith("ASR, B")]
        assert asr_plot == "ASR, B \u2212 A by line: logit +12.0\u00a0pp, worse."
        assert "Not the same on both sides: rounds 10 and 20." in page.text
        assert not {tag for tag, _ in page.tags} & {"link", "script", "iframe", "object", "embed", "img", "base"}
        assert "http" not in html.replace("http-equiv", "")
        (line,) = [each for each in lines if (each["line"], each["measure"]) == ("logit", "asr")]
        asr = measured(pair(found, "logit"), "asr")
        assert [float(line[name]) for name in ("mean_a", "mean_b", "difference", "low", "high")] == [
            asr.one, asr.other, asr.change.mean, asr.change.low, asr.change.high,
        ]  # fmt: skip
        assert (line["limits"], line["seeds"], line["state"]) == ("interval", "5", "other cells")

    def test_contradictions_and_identical_lines_on_the_page(self, tmp_path: Path) -> None:
        _, page, lines = self.written(tmp_path, two(tmp_path, (small(), usual), (small(), shifted)))
        assert "Same cell, different scores." in page.text
        assert ["logit same cell, different scores"] in page.rows
        assert (
            "Identical: no attack; placebo; none; no attack, logit: the very same cells, the same scores." in page.text
        )
        assert {each["state"] for each in lines if each["line"] == "logit"} == {"contradictory"}

    def test_errors_are_escaped(self, tmp_path: Path) -> None:
        broken: Callable[[CellSpec], Numbers] = lambda c: (  # noqa: E731
            replace(usual(c), error="<script>alert(1)</script>") if c.defense == "logit" else usual(c)
        )
        html, page, lines = self.written(tmp_path, two(tmp_path, (small(), usual), (small(), broken)))
        assert "<script" not in html
        assert "B, seed 0: failed: <script>alert(1)</script>" in page.text
        (line,) = [each for each in lines if each["line"] == "logit"]
        assert (line["difference"], line["seeds"]) == ("", ""), "a failed cell is no number"
        assert line["problem"].startswith("B, seed 0: failed: ")


def change(*values: float, measure: str = "asr") -> Difference:
    column = next(column for column in MEASURES if column.measure == measure)
    summary = summarize(dict(enumerate(values)))
    return Difference(column, 0.1, 0.1 + summary.mean, summary)


class TestVerdicts:
    @pytest.mark.parametrize(
        ("values", "measure", "kind"),
        [
            ((-0.1, -0.1, -0.1, -0.1, -0.2), "asr", "better"),
            ((-0.1, -0.1, -0.1, -0.1, -0.2), "utility", "worse"),
            ((0.1, 0.1, 0.1, 0.1, 0.2), "false_rejection_rate", "worse"),
            ((0.1, 0.1, 0.1, 0.1, 0.2), "stop_rate", "better"),
            ((0.1, 0.1, 0.1, 0.1, 0.2), "mean_length", "neutral"),
            ((0.1, -0.2, 0.1, 0.1, 0.2), "asr", "unclear"),
            ((0.1, 0.1, 0.1, 0.1, 0.1), "asr", "worse"),
            ((0.0, 0.0, 0.0, 0.0, 0.0), "asr", "same"),
            ((-0.1, -0.2), "asr", "better"),
            ((-0.1, 0.0), "asr", "unclear"),
            ((-0.1, 0.2), "asr", "unclear"),
            ((0.0,), "asr", "same"),
            ((0.002,), "utility", "unclear"),
            ((-0.002, -0.003), "utility", "unclear"),
            ((0.006,), "utility", "better"),
            ((0.0004,), "asr", "unclear"),
            ((0.0006,), "asr", "worse"),
            ((0.002, 0.002, 0.003, 0.002, 0.002), "utility", "better"),
        ],
    )
    def test_what_a_difference_says(self, values: Sequence[float], measure: str, kind: str) -> None:
        assert verdict(change(*values, measure=measure)) == kind

    def test_few_seeds_are_no_test(self, tmp_path: Path) -> None:
        three = headline(two(tmp_path / "3", (small(), usual), (small(rounds=20), shifted)))
        assert three.sentences.startswith("worse than A in harm prevented")
        assert three.caveat.startswith("With fewer than 5 seeds there is no interval")
        one = headline(two(tmp_path / "1", (small(seeds=(0,)), usual), (small(seeds=(0,), rounds=20), shifted)))
        assert one.caveat.startswith("One seed: ")
        five = headline(two(tmp_path / "5", (small(seeds=FIVE), usual), (small(seeds=FIVE, rounds=20), shifted)))
        assert five.caveat == ""

    def test_several_pairs_are_counted(self, tmp_path: Path) -> None:
        wide = {"attacks": (TEXT, TONE), "seeds": FIVE}
        found = headline(two(tmp_path, (small(**wide), usual), (small(**wide, rounds=20), shifted)))
        assert found.sentences == (
            "worse than A in 2 of 6 paired differences of harm prevented, false rejection and utility, and better in 0"
        )

    def test_the_very_same_runs_have_no_headline(self, tmp_path: Path) -> None:
        found = headline(two(tmp_path, (small(), usual), (small(), usual)))
        assert (found.sentences, found.by_measure) == ("", ())

    def test_the_undefended_swarm_is_no_choice(self, tmp_path: Path) -> None:
        """That the attack itself got further says nothing of a defense."""
        further: Says = lambda c: replace(usual(c), asr=0.9) if c.defense == "none" and usual(c).asr else usual(c)  # noqa: E731
        found = two(tmp_path, (small(seeds=FIVE), usual), (small(seeds=FIVE, rounds=20), further))
        assert verdict(measured(pair(found, "none"), "asr")) == "worse"
        assert "worse" not in headline(found).sentences


class TestCommand:
    def test_it_prints_a_table_and_writes_when_asked(self, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
        one, other = (
            store(tmp_path / n, small(rounds=r), s).root for n, r, s in (("a", 10, usual), ("b", 20, shifted))
        )
        ended = cli("compare", one, other)
        assert ended.code == 0
        line = next(line for line in ended.out.splitlines() if line.startswith("logit") and "ASR" in line)
        assert "+10.0\u00a0pp (+10.0, +10.0, +10.0)" in line
        assert not (tmp_path / "out").exists()
        assert cli("compare", one, other, "--out", tmp_path / "out").code == 0
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.html", "compare.csv"}

    def test_contradictions_do_not_change_the_exit_code(self, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
        one, other = (store(tmp_path / name, small(), says).root for name, says in (("a", usual), ("b", shifted)))
        ended = cli("compare", one, other)
        assert (ended.code, "same cell, different scores: text(" in ended.out) == (0, True)
        assert "identical (the very same cells, the same scores): no attack; placebo; none" in ended.out

    def test_mistakes_are_one_sentence(self, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
        root = store(tmp_path / "a", small()).root
        assert "compare takes two stores" in sentence(cli("compare", root))
        assert "holds no run" in sentence(cli("compare", root, tmp_path / "nothing"))
        assert "logit" in sentence(cli("compare", root, "--defense", "logit", "--defense", "logits"))

    def test_a_damaged_cell_is_said(self, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
        roots = [store(tmp_path / name, small()).root for name in "ab"]
        ids = [
            c["cell_id"] for c in json.loads((roots[0] / "run.json").read_text())["cells"] if c["defense"] == "logit"
        ]
        (roots[0] / "cells" / ids[0] / "completions.parquet").write_bytes(b"gone")
        assert "A, seed 0: damaged" in cli("compare", *roots).out


def test_the_undefended_controls_drift_is_compared_with_no_defended_one(tmp_path: Path) -> None:
    """That of all other cells is measured against this control, and its own against other answers."""
    kept = sampled.store(tmp_path, 40, of=sampled.suite(utility=True))

    def measures(*defenses: str) -> dict[str, set[str]]:
        pairs = compared([kept.root], defenses).pairs
        return {pair.name: {each.column.measure for each in pair.differences} for pair in pairs}

    undefended = measures("none", "logit(reject='drop')")
    assert {"drift", "divergence"} <= undefended["attacked"]
    assert undefended["no attack"] and not {"drift", "divergence"} & undefended["no attack"]
    assert {"drift", "divergence"} <= measures(sampled.MASKING, "logit(reject='drop')")["no attack"]
