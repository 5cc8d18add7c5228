"""A defense whose models learn less under attack than undefended ones, on numbers that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.handmade import START, TEXT, TONE, Numbers, comparisons, store, suite, usual
from tests.bench.suite.report.test_report import report
from thiefbench.suite.analysis.lost_learning import LostLearning, lost_learning
from thiefbench.suite.report.overview import suite_table
from thiefbench.suite.report.suite_files import shown_table
from thiefbench.suite.scenario import CellSpec

FIVE = (0, 1, 2, 3, 4)


def keeping(utility: Mapping[tuple[str, str], Sequence[float]], cell: CellSpec) -> Numbers:
    """As `usual`, with these utilities of attacked cells by defense, attack and seed; the controls gain 0.5."""
    kept = utility.get((cell.defense, cell.attack)) if cell.role == "attack" else None
    return replace(usual(cell), reward=START + 0.5 * kept[cell.seed]) if kept else usual(cell)


def lost(
    folder: Path, utility: Mapping[tuple[str, str], Sequence[float]], seeds: tuple[int, ...] = FIVE
) -> list[LostLearning]:
    kept = store(folder, suite(seeds=seeds), lambda cell: keeping(utility, cell))
    return lost_learning(comparisons(kept), "logit")


class TestLostLearning:
    def test_means_of_both_under_the_attack_that_costs_it(self, tmp_path: Path) -> None:
        utility = {("none", TEXT): [0.7] * 5, ("logit", TEXT): [0.3, 0.32, 0.28, 0.34, 0.26]}
        (found,) = lost(tmp_path, utility)
        assert found.title == TEXT
        assert (found.defended.mean, found.undefended.mean) == (pytest.approx(0.3), pytest.approx(0.7))
        assert [seed for seed, _ in found.defended.points] == list(FIVE)

    @pytest.mark.parametrize(
        ("defended", "undefended", "loses"),
        [
            ([0.85, 0.87, 0.83, 0.86, 0.84], [1.0] * 5, True),
            ([1.0, 0.0, 1.0, 1.0, 1.0], [1.0] * 5, True),  # one seed in five that is ruined is enough
            ([0.92] * 5, [1.0] * 5, False),  # within the margin
            ([0.1] * 5, [0.1] * 5, False),  # the attack costs it, not the defense
            ([1.0] * 5, [0.1] * 5, False),  # a defense that restores learning
            (
                [1.0] * 5,
                [2.1] * 5,
                False,
            ),  # what the attacker's work teaches beyond the control is no defense's to keep
            ([0.8] * 5, [2.1] * 5, True),
        ],
    )
    def test_the_mean_over_seeds_counts(
        self, tmp_path: Path, defended: list[float], undefended: list[float], loses: bool
    ) -> None:
        found = lost(tmp_path, {("none", TEXT): undefended, ("logit", TEXT): defended})
        assert bool(found) == loses

    def test_few_seeds_are_enough(self, tmp_path: Path) -> None:
        assert [each.title for each in lost(tmp_path, {("logit", TONE): [0.5, 0.95, 0.2]}, (0, 1, 2))] == [TONE]

    def test_a_seed_without_a_score_is_left_out(self, tmp_path: Path) -> None:
        def says(cell: CellSpec) -> Numbers:
            numbers = keeping({("logit", TEXT): [0.2, 1.9, 0.2]}, cell)
            failed = (cell.role, cell.defense, cell.attack, cell.seed) == ("attack", "none", TEXT, 1)
            return replace(numbers, error="out of memory") if failed else numbers

        (found,) = lost_learning(comparisons(store(tmp_path, suite(), says)), "logit")
        assert [seed for seed, _ in found.undefended.points] == [0, 2]

    def test_no_defense_and_the_start_model_lose_nothing(self, tmp_path: Path) -> None:
        made = suite(defenses=("none", "logit", "reject_all"))
        kept = comparisons(store(tmp_path, made, lambda cell: keeping({("none", TEXT): [0.1] * 3}, cell)))
        assert not lost_learning(kept, "none")
        assert not lost_learning(kept, "reject_all"), "it learns nothing by construction, which its row says"


@pytest.mark.slow
def test_a_report_says_so_below_the_row(tmp_path: Path) -> None:
    utility = {("logit", TEXT): [-0.6] * 3, ("none", TEXT): [0.65] * 3, ("logit", TONE): [0.5] * 3}
    kept = store(tmp_path, suite(), lambda cell: keeping(utility, cell))
    run = kept.read_run()
    assert run is not None
    rows = {row["defense"]: row["lost"] for row in shown_table(suite_table(run, comparisons(kept)))["rows"]}
    said = (
        "learns less than undefended when attacked: under text its models keep \u22120.60 of the clean gain, and "
        "undefended ones 0.65; likewise under tone"
    )
    assert rows.pop("logit") == said
    assert not any(rows.values())
    html, _ = report(kept)
    assert said in html
