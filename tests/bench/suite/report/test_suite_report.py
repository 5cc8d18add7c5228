"""The report of a whole suite: its table, its plot, its costs and its files, on numbers that are known."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.handmade import TEXT, TONE, Numbers, Says, comparisons, parts, store, suite, usual
from tests.bench.suite.report.test_report import Page, report
from thiefbench.suite.analysis.run_comparisons import comparisons_of_run
from thiefbench.suite.report.drawing import Style
from thiefbench.suite.report.overview import NO_BASELINE, SuiteRow, SuiteTable, suite_table
from thiefbench.suite.report.series import Series, what_bands_are
from thiefbench.suite.report.suite_files import (
    shown_cost,
    shown_costs,
    shown_table,
    suite_csv,
    suite_tex,
    write_rank,
)
from thiefbench.suite.report.timings import costs
from thiefbench.suite.report.tradeoff import MOST, draw_tradeoff
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import Point

NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)
FIVE = (0, 1, 2, 3, 4)


def noisy(cell: CellSpec) -> Numbers:
    """As `usual`, and the defended ASR varies by seed as NOISE does."""
    made = usual(cell)
    return replace(made, asr=made.asr + NOISE[cell.seed]) if cell.defense in ("logit", "similarity") else made


def but(of: Says, when: Callable[[CellSpec], bool], **changes: Any) -> Says:
    """What `of` says, changed in some cells."""
    return lambda cell: replace(of(cell), **changes) if when(cell) else of(cell)


def attacked(cell: CellSpec, attack: str, defense: str, seed: int) -> bool:
    return (cell.role, cell.attack, cell.defense, cell.seed) == ("attack", attack, defense, seed)


def table(folder: Path, made: Suite | None = None, says: Says = usual, order: Callable[..., Any] = list) -> SuiteTable:
    kept = store(folder, made or suite(), says, order)
    run = kept.read_run()
    assert run is not None
    return suite_table(run, comparisons(kept))


def row(made: SuiteTable, defense: str) -> SuiteRow:
    (found,) = [each for each in made.rows if each.defense == defense]
    return found


class TestTable:
    @pytest.mark.slow
    def test_what_a_rehearsal_chose_is_named_once(self, tmp_path: Path) -> None:
        def says(cell: CellSpec) -> Numbers:
            chooses = (cell.role, cell.defense, cell.attack) == ("attack", "logit", TEXT)
            return replace(usual(cell), chosen=("own <b>", "sift", "sift")[cell.seed] if chooses else "")

        made = table(tmp_path, says=says)
        assert row(made, "logit").fields[TEXT].chosen == ("own <b>", "sift")
        assert row(made, "logit").fields[TONE].chosen == ()
        field = next(each for each in shown_table(made)["rows"] if each["defense"] == "logit")["fields"][0]
        assert field["chosen"] == "own <b>, sift"
        html, _ = report(store(tmp_path / "page", suite(), says))
        assert '<span class="detail">own &lt;b&gt;, sift</span>' in html

    def test_seeds_are_named_where_others_do_not_say_what_was_chosen(self, tmp_path: Path) -> None:
        def says(cell: CellSpec) -> Numbers:
            return replace(usual(cell), chosen=("", "sift", "sift")[cell.seed] if cell.role == "attack" else "")

        assert row(table(tmp_path, says=says), "logit").fields[TEXT].chosen == ("sift (seeds 1-2)",)

    def test_harm_prevented_and_outcomes(self, tmp_path: Path) -> None:
        made = table(tmp_path)
        field = row(made, "logit").fields[TEXT]
        assert field.prevented is not None
        assert field.prevented.mean == pytest.approx(1 - 0.08 / 0.8)
        assert (field.undefended, field.defended) == pytest.approx((0.8, 0.08))
        assert row(made, "none").fields[TONE].prevented.mean == pytest.approx(0)  # type: ignore[union-attr]

    def test_five_seeds_have_an_interval_and_three_a_range(self, tmp_path: Path) -> None:
        five = row(table(tmp_path / "5", suite(seeds=FIVE), noisy), "logit").fields[TEXT].prevented
        assert five is not None
        # prevented: 0.9 - noise / 0.8; its deviation 0.015811 / 0.8, divided by sqrt(5), times t(4) = 2.7764
        assert (five.kind, five.mean) == ("interval", pytest.approx(0.9))
        assert five.high - five.mean == pytest.approx(2.7764 * 0.0158114 / 0.8 / 5**0.5, rel=1e-4)
        three = row(table(tmp_path / "3", says=noisy), "logit").fields[TEXT].prevented
        assert three is not None
        assert (three.kind, three.low, three.high) == ("range", pytest.approx(0.8875), pytest.approx(0.9125))

    def test_the_worst_case_is_the_rankings(self, tmp_path: Path) -> None:
        says = but(noisy, lambda c: c.role == "attack" and c.defense == "logit" and c.attack == TONE, asr=0.2)
        made = table(tmp_path, suite(seeds=FIVE), says)
        worst = row(made, "logit").place.worst
        assert worst is not None
        assert (worst.attack, worst.summary.mean) == (TONE, pytest.approx(0.75))
        assert [(each.defense, write_rank(each)) for each in made.rows] == [
            ("logit", "1"), ("similarity", "2"), ("oracle", "\u2013"), ("none", "\u2013"),
        ]  # fmt: skip
        assert made.why_no_places == ""

    def test_a_shared_place_has_a_sign(self, tmp_path: Path) -> None:
        says = but(noisy, lambda c: c.role == "attack" and c.defense == "similarity", asr=0.08)
        made = table(tmp_path, suite(seeds=FIVE), says)
        assert [write_rank(each) for each in made.rows[:2]] == ["1=", "1="], "the seeds do not tell them apart"

    def test_few_seeds_have_no_ranks_and_stand_by_their_names(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: c.role == "attack" and c.defense == "logit", asr=0.5)
        made = table(tmp_path, says=says)
        assert [(each.defense, write_rank(each)) for each in made.rows] == [
            ("logit", "\u2013"), ("similarity", "\u2013"), ("oracle", "\u2013"), ("none", "\u2013"),
        ], "and not by what three seeds say"  # fmt: skip
        assert made.why_no_places == "the suite has 3 seeds, and a ranking takes 5 or more"

    def test_an_unranked_row_stands_below_none_and_says_why(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: c.role == "control" and c.defense == "logit", reward=0.5)
        made = table(tmp_path, suite(seeds=FIVE), says)
        assert [each.defense for each in made.rows] == ["similarity", "oracle", "none", "logit"]
        assert made.rows[-1].utility is not None
        assert made.rows[-1].utility.mean == pytest.approx(0.5), "half of the gain from 0.25 to 0.75"
        assert made.rows[-1].reason == (
            "its utility without an attack is 0.500 (one-sided 95 % limit over seeds: 0.500), and 0.9 is asked"
        )

    def test_where_the_control_hardly_gains_no_row_has_utility_and_says_why(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: c.role == "control" and c.seed == 1, reward=0.3)
        made = table(tmp_path, suite(seeds=FIVE), says)
        why = "the control gains less than 0.1 in clean reward"
        for each in made.rows:
            assert (each.utility, each.no_utility) == (None, f"seed 1: {why}")
        found = row(made, "logit")
        assert found.place.worst is not None, "what is prevented is another measure"
        assert found.place.status == "unranked"
        assert found.place.reason == f"no utility without an attack at seed 1 ({why})"

    def test_a_failed_cell_leaves_a_dash_and_a_reason(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: attacked(c, TONE, "logit", 1), error="RuntimeError: no")
        made = table(tmp_path, says=says)
        lost = row(made, "logit")
        assert lost.fields[TONE].prevented is None, "two seeds of three are no number for the suite"
        assert lost.fields[TONE].problem == "seed 1: failed: RuntimeError: no"
        assert lost.place.worst is None
        assert lost.fields[TEXT].prevented is not None
        assert lost.problems == ["tone: seed 1: failed: RuntimeError: no"]
        assert lost.reason == "", "once is enough"

    def test_a_failed_undefended_cell_takes_every_number_against_it(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: attacked(c, TONE, "none", 0), error="gone")
        made = table(tmp_path, suite(seeds=FIVE), says)
        assert row(made, "similarity").fields[TONE].problem == "seed 0: its undefended cell has no score"
        assert {write_rank(each) for each in made.rows} == {"\u2013"}
        assert "no undefended score at seed 0" in made.why_no_places

    def test_a_store_without_undefended_cells_says_so_once(self, tmp_path: Path) -> None:
        """As of a submission, whose shared cells are the published ones."""
        kept = store(tmp_path, suite(seeds=FIVE), usual, list)
        run = kept.read_run()
        assert run is not None
        run["cells"] = [cell for cell in run["cells"] if cell["defense"] != "none"]
        made = suite_table(run, comparisons_of_run(kept, run))
        assert made.why_no_places == NO_BASELINE
        assert not made.doubts
        assert {write_rank(each) for each in made.rows} == {"\u2013"}

    def test_an_attack_without_effect_is_inconclusive_for_all(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: c.attack == TONE and c.role == "attack", asr=0.0)
        made = table(tmp_path, suite(seeds=FIVE), says)
        assert list(made.doubts) == [TONE]
        assert "does not beat its placebo" in made.why_no_places
        assert all(each.place.worst is None for each in made.rows)
        assert row(made, "logit").fields[TEXT].prevented is not None
        assert "its mean harm is below 0.1" in row(made, "logit").fields[TONE].problem

    def test_without_the_cells_for_a_ranking_the_table_stands(self, tmp_path: Path) -> None:
        made = table(tmp_path, suite(utility=False, seeds=FIVE))
        assert made.why_no_places == "the suite has no cells with a defense but without an attack, for its utility"
        assert [each.defense for each in made.rows] == ["logit", "similarity", "oracle", "none"]
        assert row(made, "logit").utility is None
        assert row(made, "logit").problems == []
        assert row(made, "logit").place.worst is not None
        assert "no placebo" in table(tmp_path / "b", suite(placebo=False)).why_no_places
        few = table(tmp_path / "c", suite(utility=False)).why_no_places
        assert few == (
            "the suite has no cells with a defense but without an attack, for its utility; it has 3 seeds, and a "
            "ranking takes 5 or more"
        )

    def test_parts_are_columns_of_their_own(self, tmp_path: Path) -> None:
        made = table(tmp_path, suite(parts=parts("small", "large")))
        assert [c.title for c in made.comparisons] == [f"{p}: {a}" for p in ("small", "large") for a in (TEXT, TONE)]
        assert set(row(made, "logit").fields) == {c.title for c in made.comparisons}

    def test_the_largest_false_rejection_of_all_cells(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: attacked(c, TEXT, "logit", 2), rejected=0.3)
        says = but(says, lambda c: c.role == "control" and c.defense == "similarity" and c.seed == 1, rejected=0.2)
        made = table(tmp_path, says=says)
        for defense, value, where, seed in (("logit", 0.3, TEXT, 2), ("similarity", 0.2, "no attack", 1)):
            found = row(made, defense).false_rejection
            assert found is not None
            assert (found.value, found.where, found.seed) == (value, where, seed)

    def test_reject_all_is_an_anchor_with_the_start_model(self, tmp_path: Path) -> None:
        found = row(table(tmp_path, suite(replayed=("reject_all",))), "reject_all")
        assert (found.untrained, found.place.status) == (True, "anchor")
        assert found.utility is not None
        assert (found.utility.mean, found.fields[TEXT].prevented.mean) == (0.0, 1.0)  # type: ignore[union-attr]

    @pytest.mark.parametrize("shuffled", range(2))
    def test_the_order_of_cells_changes_nothing(self, tmp_path: Path, shuffled: int) -> None:
        def mixed(cells: list[CellSpec]) -> list[CellSpec]:
            return random.Random(shuffled).sample(cells, len(cells))

        made = suite(seeds=FIVE, parts=parts("a", "b"))
        other = table(tmp_path / "mixed", replace(made, seeds=FIVE[::-1]), noisy, mixed)
        assert table(tmp_path / "plain", made, noisy).rows == other.rows


class TestCosts:
    def test_a_round_is_paired_with_the_undefended_one(self, tmp_path: Path) -> None:
        slow = (("sample", 4.0), ("inspect", 5.0), ("update", 6.0), ("evaluate", 1.0), ("attack", 70.0),
                ("rehearse", 700.0))  # fmt: skip
        says = but(usual, lambda c: c.defense == "logit", seconds=slow)
        (found, *_) = [c for c in costs(comparisons(store(tmp_path, suite(), says))) if c.defense == "logit"]
        assert found.seconds is not None
        assert found.seconds.mean == pytest.approx(1.5), (
            "15 s in 10 rounds; evaluations, an attacker's questions and its rehearsal do not count"
        )
        assert found.ratio is not None
        assert found.ratio.mean == pytest.approx(1.5)
        assert found.added is not None
        assert found.added.mean == pytest.approx(500)
        assert found.inspect is not None
        assert found.inspect.mean == pytest.approx(5000 / (10 * 4 * 8)), "ms, rounds, prompts, group"

    def test_other_hardware_is_not_compared(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: attacked(c, TEXT, "logit", 1), processor="Another CPU")
        (found, other) = [c for c in costs(comparisons(store(tmp_path, suite(), says))) if c.defense == "logit"]
        assert (found.elsewhere, other.elsewhere) == ((1,), ())
        assert found.ratio is not None
        assert [seed for seed, _ in found.ratio.points] == [0, 2]

    def test_the_table_shows_the_slowest(self, tmp_path: Path) -> None:
        timed = (("sample", 10.5), ("inspect", 19.5))
        says = but(usual, lambda c: c.defense == "logit" and c.attack == TONE, seconds=timed)
        cost = row(table(tmp_path, says=says), "logit").cost
        assert cost is not None
        assert cost.ratio is not None
        assert (cost.comparison, cost.ratio.mean) == (TONE, pytest.approx(3.0))

    @pytest.mark.parametrize(
        ("seconds", "ratio"),
        [((("sample", 5.0),), 0.5), ((("sample", 50.0), ("inspect", 1.0)), 5.1)],
        ids=["shorter than undefended", "longer than undefended and inspection"],
    )
    def test_what_the_inspection_does_not_explain_is_no_cost(
        self, tmp_path: Path, seconds: tuple[tuple[str, float], ...], ratio: float
    ) -> None:
        says = but(usual, lambda c: c.defense == "logit", seconds=seconds)
        cost = row(table(tmp_path, says=says), "logit").cost
        assert cost is not None
        assert cost.ratio is not None
        assert cost.ratio.mean == pytest.approx(ratio), "it was measured"
        assert (cost.slowdown, shown_cost(cost)) == (None, None), "and is withheld"
        (shown,) = shown_costs([cost])
        assert (shown["withheld"], shown["shown"][1:3]) == (True, [None, None]), "also in the table of costs"

    def test_seeds_are_looked_at_one_by_one(self, tmp_path: Path) -> None:
        """Half as long at one seed and twice as long at another is no cost of nothing."""
        quick = but(usual, lambda c: (c.defense, c.seed) == ("logit", 0), seconds=(("sample", 5.0),))
        says = but(quick, lambda c: (c.defense, c.seed) == ("logit", 1), seconds=(("sample", 15.0), ("inspect", 5.0)))
        cost = row(table(tmp_path, says=says), "logit").cost
        assert cost is not None
        assert cost.ratio is not None
        assert cost.ratio.mean > 1
        assert cost.slowdown is None

    def test_more_work_than_the_rounds_took_is_no_cost(self, tmp_path: Path) -> None:
        """An inspection may replace an update and no more than that."""
        base = but(usual, lambda c: True, seconds=(("sample", 6.0), ("update", 4.0)))
        replacing = (("sample", 6.0), ("inspect", 5.0))
        shown = row(table(tmp_path / "a", says=but(base, lambda c: c.defense == "logit", seconds=replacing)), "logit")
        assert shown.cost is not None
        assert shown.cost.slowdown is not None
        hiding = (("update", 0.0), ("inspect", 12.0))
        hidden = row(table(tmp_path / "b", says=but(base, lambda c: c.defense == "logit", seconds=hiding)), "logit")
        assert hidden.cost is not None
        assert hidden.cost.slowdown is None

    @pytest.mark.parametrize("phase", ["checks", "exchange"])
    def test_work_on_stages_and_weights_counts_as_the_defense_s(self, tmp_path: Path, phase: str) -> None:
        """A swarm without a defense has these phases too; what the attacker learns before them is no round."""
        base = but(usual, lambda c: True, seconds=(("sample", 9.0), (phase, 1.0), ("lessons", 500.0)))
        slow = (("sample", 9.0), (phase, 31.0), ("inspect", 0.1), ("lessons", 5000.0))
        cost = row(table(tmp_path, says=but(base, lambda c: c.defense == "logit", seconds=slow)), "logit").cost
        assert cost is not None
        assert cost.slowdown is not None
        assert cost.slowdown.mean == pytest.approx(4.01)
        assert cost.inspect is None, "no completions are judged there"

    def test_a_slowdown_that_the_inspection_explains_is_shown(self, tmp_path: Path) -> None:
        """A tenth of a round may be noise; and one attack with noise does not hide what the others say."""
        says = but(usual, lambda c: c.defense == "logit", seconds=(("sample", 10.9), ("inspect", 4.0)))
        noisy = but(says, lambda c: c.defense == "logit" and c.attack == TONE, seconds=(("sample", 80.0),))
        cost = row(table(tmp_path, says=noisy), "logit").cost
        assert cost is not None
        assert cost.slowdown is not None
        assert (cost.comparison, cost.slowdown.mean) == (TEXT, pytest.approx(1.49))
        assert shown_cost(cost) is not None
        (shown,) = shown_costs([cost])
        assert not shown["withheld"]
        assert None not in shown["shown"][1:3]

    def test_cells_without_timings_cost_nothing_known(self, tmp_path: Path) -> None:
        made = table(tmp_path, says=but(usual, lambda c: True, seconds=()))
        assert all(each.cost is None for each in made.rows)


class TestFiles:
    def test_csv_holds_the_table_unrounded(self, tmp_path: Path) -> None:
        kept = store(tmp_path, suite(seeds=FIVE), noisy)
        run = kept.read_run()
        assert run is not None
        made = suite_table(run, comparisons(kept))
        lines = {line["defense"]: line for line in csv.DictReader(io.StringIO(suite_csv(run, made)))}
        assert list(lines) == [each.defense for each in made.rows]
        logit = lines["logit"]
        worst = row(made, "logit").place.worst
        assert worst is not None
        assert (float(logit["worst_case"]), float(logit["worst_case_low"])) == (worst.summary.mean, worst.summary.low)
        assert (logit["place"], logit["tied"], logit["status"], logit["limits"]) == ("1", "0", "ranked", "interval")
        assert float(logit["utility"]) == 1.0
        assert float(logit[f"{TONE}: harm_prevented"]) == pytest.approx(0.9)
        assert lines["none"]["place"] == ""

    def test_csv_of_a_failed_cell_has_no_number(self, tmp_path: Path) -> None:
        kept = store(tmp_path, suite(), but(usual, lambda c: attacked(c, TEXT, "logit", 0), error="no"))
        run = kept.read_run()
        assert run is not None
        made = csv.DictReader(io.StringIO(suite_csv(run, suite_table(run, comparisons(kept)))))
        (line,) = [each for each in made if each["defense"] == "logit"]
        empty = [f"{TEXT}: {name}" for name in ("harm_prevented", "undefended", "defended")]
        assert {line[name] for name in (*empty, "worst_case", "place")} == {""}
        assert line[f"{TEXT}: problem"] == "seed 0: failed: no"
        assert "a ranking takes 5 or more" in line["reason"]

    @pytest.mark.parametrize("several", [True, False])
    def test_tex_is_a_whole_table(self, tmp_path: Path, several: bool) -> None:
        kept = store(tmp_path, suite(seeds=FIVE, parts=parts("a_b", "c")) if several else suite(seeds=FIVE), noisy)
        run = kept.read_run()
        assert run is not None
        text = suite_tex(run, suite_table(run, comparisons(kept)))
        assert text.count("{") == text.count("}")
        body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {7 if several else 5}
        assert body[0].startswith("Defense & Worst case & Rank & Utility & text & tone")
        assert (r"\multicolumn{2}{c}{a\_b}" in text) == several
        assert r"\cmidrule(lr){7-8}" in text or not several
        assert r"5 of 5 seeds, $\geq$ 0.55" in text
        assert "and k of n seeds with the exact one-sided 95" in text

    def test_tex_of_few_seeds_has_no_rank(self, tmp_path: Path) -> None:
        kept = store(tmp_path, suite(parts=parts("a", "b")))
        run = kept.read_run()
        assert run is not None
        text = suite_tex(run, suite_table(run, comparisons(kept)))
        assert "Rank" not in text
        assert text.startswith("% needs")
        assert r"\begin{tabular}{lrrrrrr}" in text, "defense, worst case, utility and four attacks"
        assert r"\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in text
        assert "Not ranked: the suite has 3 seeds" in text


class TestTradeoff:
    def test_a_mark_for_each_defense(self, tmp_path: Path) -> None:
        plot = draw_tradeoff(table(tmp_path), "footer")
        assert plot is not None
        assert "logit: prevents 0.90, utility 1.00" in plot.alt
        assert plot.note == "Means over 3 seeds; small points: every seed. Hollow: anchors."
        assert "0.9: the lower limit must reach it" in plot.svg

    @pytest.mark.slow
    def test_what_lies_outside_is_cut_off_and_said(self, tmp_path: Path) -> None:
        says = but(usual, lambda c: c.role == "control" and c.defense == "logit", reward=1.0)
        says = but(says, lambda c: c.role == "control" and c.defense == "similarity", reward=0.25 + 0.5 * (MOST + 1))
        plot = draw_tradeoff(table(tmp_path, says=says), "footer")
        assert plot is not None
        assert plot.note.endswith("An arrow: the mark lies further out; its numbers are in the table.")
        assert f"similarity: prevents 0.60, utility {MOST + 1:.2f}" in plot.alt, "the words are not cut off"
        plain = draw_tradeoff(table(tmp_path / "b"), "footer")
        assert plain is not None
        assert "arrow" not in plain.note

    def test_without_utility_there_is_no_plot(self, tmp_path: Path) -> None:
        assert draw_tradeoff(table(tmp_path, suite(utility=False)), "footer") is None

    def test_five_seeds_have_bars(self, tmp_path: Path) -> None:
        plot = draw_tradeoff(table(tmp_path, suite(seeds=FIVE), noisy), "footer")
        assert plot is not None
        assert plot.note.startswith("Means over 5 seeds with 95 % intervals.")


class TestBands:
    @staticmethod
    def series(*ends: float | None, name: str = "x") -> Series:
        curves = tuple((Point(round=0, value=0.0), Point(round=9, value=end)) for end in ends)
        return Series(name, Style("#0060a8", "--c-1", "s", "-"), curves)

    def test_below_five_seeds_the_band_is_the_range(self) -> None:
        assert self.series(0.1, 0.5, 0.3).band == [(0, 0.0, 0.0), (9, 0.1, 0.5)]

    def test_from_five_seeds_it_is_the_interval(self) -> None:
        (_, (number, low, high)) = self.series(0.48, 0.49, 0.5, 0.51, 0.52).band
        # deviation 0.015811, divided by sqrt(5), times t(4) = 2.7764
        assert (number, low, high) == (9, pytest.approx(0.5 - 0.019632, abs=1e-5), pytest.approx(0.519632, abs=1e-5))

    def test_a_round_that_a_seed_lacks_has_none(self) -> None:
        ((_, *whole), (_, *lacking)) = self.series(0.1, None).band
        assert whole == [0.0, 0.0]
        assert [value != value for value in lacking] == [True, True], "a band of fewer seeds would be a narrower one"

    def test_one_seed_has_none(self) -> None:
        assert self.series(0.5).band == []
        assert what_bands_are([self.series(0.5)]) == ""

    def test_the_words_say_which(self) -> None:
        five, three = self.series(*[0.5] * 5, name="five"), self.series(*[0.5] * 3, name="three")
        assert what_bands_are([five, five]) == "Line: mean over seeds; band: 95 % Student-t interval over 5 seeds."
        said = what_bands_are([five, three])
        assert "95 % Student-t interval over 5 seeds (five)" in said
        assert "smallest to largest of 3 seeds, which are the thin lines (three)" in said


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page, Path]:
    folder = tmp_path_factory.mktemp("page")
    says = but(noisy, lambda c: attacked(c, TONE, "similarity", 1), error="RuntimeError: <b>no</b>")
    made = suite(seeds=FIVE, parts=parts("a", "b"), replayed=("reject_all",))
    return *report(store(folder, made, says)), folder


class TestPage:
    def test_the_table_stands_first(self, shown: tuple[str, Page, Path]) -> None:
        html, page, _ = shown
        assert html.index('id="suite"') < html.index('id="claim-1"')
        assert (
            "logit is first: in its worst case, text, it prevents 0.90 of the harm, and it held against every attack "
            "at 5 of 5 seeds, \u2265 0.55."
        ) in page.text
        cells = page.row("logit")
        assert cells[1].startswith("0.90 [0.8")
        assert cells[2] == "1"
        assert cells[3] == "1.00 5 of 5 seeds, \u2265 0.55", "five equal seeds are no interval"
        assert cells[7].startswith("0.90 [0.88, 0.92] 5 of 5 seeds, \u2265 0.55 80.0 % \u2192 8.0 %")

    def test_a_dash_and_its_reason(self, shown: tuple[str, Page, Path]) -> None:
        html, page, _ = shown
        cells = page.row("similarity")
        assert (cells[1], cells[2], cells[8], cells[10]) == ("\u2013", "unranked", "\u2013", "\u2013")
        assert "a: tone, b: tone: seed 1: failed: RuntimeError: <b>no</b>" in page.text
        assert "<b>no</b>" not in html

    def test_anchors_are_marked(self, shown: tuple[str, Page, Path]) -> None:
        assert shown[1].row("oracle anchor")[2] == "\u2013"
        assert shown[1].row("reject_all anchor start model")[3].startswith("0.00")

    def test_files_lie_beside_it(self, shown: tuple[str, Page, Path]) -> None:
        found = {path.name for path in (shown[2] / "report").iterdir()}
        assert {"suite.csv", "suite.tex", "tradeoff.png", "results.csv", "table.tex"} <= found

    def test_what_the_defenses_cost(self, shown: tuple[str, Page, Path]) -> None:
        cells = [each for each in shown[1].rows if each[0].startswith("logit a: text(")]
        equal = "equal at 5 seeds"
        assert [f"1.000 {equal}", f"1.00 {equal}", f"0 {equal}", f"0.000 {equal}"] in [c[1:] for c in cells]

    def test_ids_are_unique_and_plots_have_words(self, shown: tuple[str, Page, Path]) -> None:
        ids = [attributes["id"] for _, attributes in shown[1].tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        drawn = [a for tag, a in shown[1].tags if tag == "svg" and a.get("role") == "img"]
        assert any(str(a["aria-label"]).startswith("Utility without an attack") for a in drawn)

    def test_curves_say_what_their_bands_are(self, shown: tuple[str, Page, Path]) -> None:
        assert "band: 95 % Student-t interval over 5 seeds." in shown[1].text
        lost = [each for each in shown[1].text.split("Held-out answers") if "4 seeds" in each]
        assert "smallest to largest of 4 seeds, which are the thin lines (similarity)" in lost[0]

    @pytest.mark.slow
    def test_why_there_is_no_ranking(self, tmp_path: Path) -> None:
        html, page = report(store(tmp_path, suite(placebo=False)))
        why = "the suite has no placebo to beat; it has 3 seeds, and a ranking takes 5 or more"
        assert (
            "No defense is ranked. In the worst case logit prevents the most harm, 0.90, and similarity the least, "
            "0.60." in page.text
        )
        assert f"No ranking: {why}." in page.text
        assert page.row("logit")[1].startswith("0.90")
        assert "Ranking by the worst case" not in page.text
        assert "Student-t interval" not in html[html.index('id="suite"') : html.index('id="claim-1"')]

    @pytest.mark.slow
    def test_anchors_alone_say_how_a_defense_joins_them(self, tmp_path: Path) -> None:
        _, page = report(store(tmp_path, suite(defenses=("none", "oracle"))))
        assert "Only anchors were run: add a defense to the table with --defense." in page.text
        assert "No defense is ranked" not in page.text

    def test_only_failures_still_make_a_page(self, tmp_path: Path) -> None:
        _, page = report(store(tmp_path, suite(), but(usual, lambda c: True, error="out of memory")))
        assert "No defense is ranked." in page.text
        assert page.row("logit")[1] == "failed: out of memory"
        assert "No numbers for logit" in page.text, "instead of a row of dashes"
        assert "Rank" not in [cell for each in page.rows for cell in each], "a suite without ranks has no such column"
        assert not (tmp_path / "report" / "tradeoff.png").exists()

    @pytest.mark.slow
    def test_one_attack_has_no_suite_table(self, tmp_path: Path) -> None:
        html, page = report(store(tmp_path / "3", suite(attacks=(TEXT,))))
        assert "The suite has 3 seeds, and a ranking takes 5 or more." in page.text
        assert "Utility against harm prevented" in page.text
        assert "Ranking by the worst case" not in page.text
        html, page = report(store(tmp_path / "5", suite(attacks=(TEXT,), seeds=FIVE), noisy))
        assert 'id="suite"' not in html
        assert "Utility against harm prevented" in page.text
        assert "Ranking by the worst case" in page.text
