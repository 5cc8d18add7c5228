"""The ranking's rules, one by one, on rows made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from thiefbench.suite.analysis.comparison import AttackSuccess, UndefendedAttack, why_inconclusive
from thiefbench.suite.analysis.ranking import (
    ANCHORS,
    AttackOutcome,
    Placement,
    RankingError,
    RankingRow,
    rank,
    too_few,
)
from thiefbench.suite.analysis.statistics import SeedCount, StatisticsError, lower_limits
from thiefbench.suite.scenario import RankingRules

SEEDS = tuple(range(5))
NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)


def row(
    defense: str,
    prevented: Mapping[str, float] | float = 0.9,
    utility: float = 1.0,
    attacked: float = 1.0,
    seeds: Sequence[int] = SEEDS,
    noise: Sequence[float] = NOISE,
) -> RankingRow:
    """A defense that prevents so much harm (by attack, or of `text` and `dos` alike), give or take a seed's noise."""
    means = prevented if isinstance(prevented, Mapping) else {"text": prevented, "dos": prevented}
    return RankingRow(
        defense,
        {seed: AttackOutcome(utility) for seed in seeds},
        {
            attack: {seed: AttackOutcome(attacked, mean + noise[i]) for i, seed in enumerate(seeds)}
            for attack, mean in means.items()
        },
    )


def trial(attack: str, lead: float = 0.5, seeds: Sequence[int] = SEEDS, half: float = 0.02) -> UndefendedAttack:
    """An attack that beats its placebo by `lead`, with intervals of +- `half` over completions."""

    def measured(value: float) -> AttackSuccess:
        return AttackSuccess(value, value - half, value + half)

    undefended = {seed: measured(0.1 + lead + NOISE[i]) for i, seed in enumerate(seeds)}
    return UndefendedAttack(attack, undefended, {seed: measured(0.1) for seed in seeds})


TRIALS = (trial("text"), trial("dos"))
ORACLE = row("oracle(reject='drop')", 1.0)
NONE = row("none", 0.0)


def ranked(
    *rows: RankingRow, trials: Sequence[UndefendedAttack] = TRIALS, seeds: Sequence[int] = SEEDS
) -> list[Placement]:
    return rank([*rows, ORACLE, NONE], trials, seeds)


def place(defense: str, places: Sequence[Placement]) -> Placement:
    (found,) = [each for each in places if each.defense == defense]
    return found


def changed(of: RankingRow, attack: str, seed: int, outcome: AttackOutcome) -> RankingRow:
    cells = {name: dict(by_seed) for name, by_seed in of.attacked.items()}
    cells[attack][seed] = outcome
    return replace(of, attacked=cells)


class TestPlaces:
    def test_by_the_worst_attack_and_not_by_the_mean(self) -> None:
        places = ranked(row("lopsided", {"text": 1.0, "dos": 0.2}), row("even", 0.5))
        assert [(p.defense, p.number) for p in places if p.status == "ranked"] == [("even", 1), ("lopsided", 2)]
        worst = place("lopsided", places).worst
        assert worst is not None
        assert worst.attack == "dos"
        assert worst.summary.mean == pytest.approx(0.2)

    def test_what_cannot_be_told_apart_shares_a_place_and_the_next_one_skips(self) -> None:
        wobble = (0.1, -0.1, 0.05, -0.05, 0.0)
        places = ranked(row("a", 0.9), row("b", 0.89, noise=wobble), row("c", 0.5))
        assert [(p.defense, p.number) for p in places[:3]] == [("a", 1), ("b", 1), ("c", 3)], "1, 1, 3"
        assert places[1].reason.startswith("cannot be told apart from a, which is ahead by 0.01 [")
        assert (places[0].reason, places[2].reason) == ("", "")

    def test_paired_seeds_tell_apart_what_shares_its_luck(self) -> None:
        luck = (0.3, -0.3, 0.2, -0.2, 0.0)
        places = ranked(row("a", 0.6, noise=luck), row("b", 0.55, noise=luck))
        assert [p.number for p in places[:2]] == [1, 2], "intervals overlap, paired differences do not"

    def test_a_group_is_held_to_its_best_and_not_chained(self) -> None:
        """Each of a, b, c is close to the next, but c is far enough from a."""
        one, other = (0.02, -0.02, 0.0, 0.02, -0.02), (-0.02, 0.02, 0.0, -0.02, 0.02)
        places = ranked(row("a", 0.90, noise=one), row("b", 0.88, noise=other), row("c", 0.86, noise=one))
        assert [p.number for p in places[:3]] == [1, 1, 3]

    def test_a_noisy_row_does_not_climb_past_a_better_one(self) -> None:
        wild = (0.5, -0.5, 0.4, -0.4, 0.0)
        places = ranked(row("a", 0.9), row("b", 0.8), row("wild", 0.7, noise=wild))
        assert [(p.defense, p.number) for p in places[:3]] == [("a", 1), ("b", 2), ("wild", 2)]

    @pytest.mark.parametrize("seeds", [(0,), (0, 1, 2), (0, 1, 2, 3)])
    def test_below_five_seeds_nothing_is_ranked(self, seeds: Sequence[int]) -> None:
        rows = [row(name, value, seeds=seeds) for name, value in (("b", 0.9), ("a", 0.1))]
        places = rank(
            [*rows, row("oracle", 1.0, seeds=seeds)],
            [trial("text", seeds=seeds), trial("dos", seeds=seeds)],
            seeds,
        )
        assert [(p.defense, p.status, p.number) for p in places] == [
            ("a", "unplaced", None), ("b", "unplaced", None), ("oracle", "anchor", None),
        ], "rows stand by their names, not by what too few seeds say"  # fmt: skip
        assert too_few(seeds).startswith(f"{len(seeds)} seed")
        assert too_few(SEEDS) == ""

    def test_worse_rows_change_no_place_above_them(self) -> None:
        few = ranked(row("a", 0.9), row("b", 0.6))
        more = ranked(row("a", 0.9), row("b", 0.6), row("c", 0.2), row("d", -0.5))
        assert more[:2] == few[:2]

    @pytest.mark.parametrize("seed", range(10))
    def test_order_changes_nothing_and_places_follow_values(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = [
            row(f"d{i}", dict(zip(("text", "dos"), rng.uniform(-0.5, 1, 2), strict=True)), noise=rng.normal(0, 0.2, 5))
            for i in range(6)
        ]
        rows = [*rows, ORACLE, NONE, row("weak", 0.9, utility=0.5)]
        places = rank(rows, TRIALS, SEEDS)
        mixed = [rows[i] for i in rng.permutation(len(rows))]
        again = [
            replace(r, attacked={a: {s: r.attacked[a][s] for s in reversed(SEEDS)} for a in reversed(r.attacked)})
            for r in mixed
        ]
        assert rank(again, TRIALS[::-1], SEEDS[::-1]) == places, "no order of rows, attacks or seeds counts"
        numbers = [p.number for p in places if p.number is not None]
        values = [(p.worst.summary.above_0, p.worst.summary.mean) for p in places if p.number is not None and p.worst]
        assert numbers == sorted(numbers)
        assert values == sorted(values, reverse=True), "those that are not told from preventing nothing come last"
        first = 1 if values[0][0] else 2
        groups = [
            number == at or (at > first and number == numbers[at - first - 1])
            for at, number in enumerate(numbers, first)
        ]
        assert all(groups), "1, 1, 3"


class TestSeedsWhereItHeld:
    def test_a_seed_counts_where_every_attack_is_held(self) -> None:
        made = changed(row("a"), "text", 1, AttackOutcome(1.0, 0.2))
        made = changed(changed(made, "dos", 1, AttackOutcome(1.0, 0.1)), "dos", 4, AttackOutcome(1.0, 0.49))
        worst = place("a", ranked(made)).worst
        assert worst is not None
        assert worst.summary.count == SeedCount(3, 5), "seeds 1 and 4 failed, seed 1 against both"
        rules = RankingRules(good=0.15)
        worst = place("a", rank([made, ORACLE], TRIALS, SEEDS, rules)).worst
        assert worst is not None
        assert worst.summary.count == SeedCount(4, 5), "what counts as held is the suite's"

    def test_five_equal_seeds_are_no_certainty(self) -> None:
        worst = place("a", ranked(row("a", 1.0, noise=[0.0] * 5))).worst
        assert worst is not None
        assert worst.summary.kind == "equal"
        assert worst.text().startswith("1.00 (5 of 5 seeds, \u2265 0.55) against dos"), "and no [1.00, 1.00]"


class TestRatioOfMeans:
    def test_one_weak_seed_leaves_a_score(self) -> None:
        """Undefended harms 0.5, 0.6, 0.4, 0.5 and -0.01; defended a tenth of the mean at every seed."""
        harms = (0.5, 0.6, 0.4, 0.5, -0.01)
        mean = sum(harms) / 5
        made = row("a", {"text": 0.9, "dos": 1.5})
        for seed, harm in enumerate(harms):
            made = changed(made, "text", seed, AttackOutcome(1.0, 0.9, undefended_share=harm / mean))
        worst = place("a", ranked(made)).worst
        assert worst is not None
        assert (worst.attack, worst.summary.mean) == ("text", pytest.approx(0.9))
        # The ratio is 0.1; the residuals (D - 0.1 U) / mean(U) of D = 0.1 mean(U) are 0.1 - 0.1 U / mean(U).
        rests = [0.1 - 0.1 * harm / mean for harm in harms]
        half = 2.7764 * (sum(rest**2 for rest in rests) / 4 / 5) ** 0.5
        assert worst.summary.low == pytest.approx(0.9 - half, abs=1e-4)

    @pytest.mark.parametrize("shares", [(1.2, 0.8, 1.1, 0.9, 1.0), (1.75, 0.25, 1.5, 0.25, 1.25)])
    def test_none_prevents_exactly_nothing_and_holds_at_no_seed(self, shares: tuple[float, ...]) -> None:
        """Also where undefended harm is a quarter of its mean, so that 1 - D / mean(U) is 0.75."""
        made = row("none")
        for attack in ("text", "dos"):
            for seed in SEEDS:
                made = changed(made, attack, seed, AttackOutcome(1.0, 1 - shares[seed], undefended_share=shares[seed]))
        worst = place("none", rank([made, ORACLE], TRIALS, SEEDS)).worst
        assert worst is not None
        assert (worst.summary.low, worst.summary.high) == (pytest.approx(0), pytest.approx(0)), "harm over itself"
        assert worst.summary.count == SeedCount(0, 5)

    def test_an_attack_that_failed_by_itself_at_a_seed_is_no_failure_there(self) -> None:
        made = row("a", {"text": 0.9, "dos": 0.9})
        made = changed(made, "dos", 1, AttackOutcome(1.0, -0.02, undefended_share=0.05))
        worst = place("a", rank([made, ORACLE], TRIALS, SEEDS)).worst
        assert worst is not None
        assert worst.summary.count == SeedCount(5, 5)


class TestAnchors:
    def test_anchors_are_shown_and_never_ranked(self) -> None:
        anchors = [row(name, 1.0) for name in ("reject_all", "random(rate=0.2)", "blacklist", "none")]
        places = rank([*anchors, ORACLE, row("logit", 0.5)], TRIALS, SEEDS)
        assert [(p.defense, p.status, p.number) for p in places] == [
            ("logit", "ranked", 1), ("oracle(reject='drop')", "anchor", None), ("blacklist", "anchor", None),
            ("random(rate=0.2)", "anchor", None), ("reject_all", "anchor", None), ("none", "anchor", None),
        ]  # fmt: skip
        assert all(p.worst is not None for p in places), "their worst cases are there to compare with"

    @pytest.mark.parametrize("name", ANCHORS)
    def test_an_anchor_is_known_by_its_name(self, name: str) -> None:
        assert row(name).anchor == row(f"{name}(x=1)").anchor == name

    @pytest.mark.parametrize("name", ["logit", "my_filter.py:none", "blacklist+logit", "none_at_all", "logit(x=1)"])
    def test_other_names_are_submissions(self, name: str) -> None:
        assert row(name).anchor == ""

    def test_an_anchor_with_a_missing_cell_has_no_worst_case(self) -> None:
        places = rank([changed(NONE, "dos", 3, AttackOutcome(problem="failed: out of memory")), ORACLE], TRIALS, SEEDS)
        assert place("none", places).worst is None
        assert "dos at seed 3" in place("none", places).reason


class TestEligibility:
    def test_what_is_not_ranked_stands_below_none(self) -> None:
        places = ranked(row("weak", 1.0, utility=0.5), row("logit", 0.1))
        assert [p.defense for p in places] == ["logit", "oracle(reject='drop')", "none", "weak"]

    @pytest.mark.parametrize(("utility", "status"), [(0.9, "ranked"), (0.89, "unranked")])
    def test_utility_without_an_attack(self, utility: float, status: str) -> None:
        found = place("a", ranked(row("a", utility=utility)))
        assert found.status == status
        if status == "unranked":
            assert found.reason == (
                "its utility without an attack is 0.890 (one-sided 95 % limit over seeds: 0.890), and 0.9 is asked"
            )
            assert found.number is None
            assert found.worst is not None, "what it prevented is shown all the same"

    @pytest.mark.parametrize(("mean", "status"), [(0.9376, "unranked"), (0.9378, "ranked")])
    def test_utility_without_an_attack_is_tested_by_its_limit_over_seeds(self, mean: float, status: str) -> None:
        # The steps have a standard deviation of 0.03953, and tables give t = 2.1318 for 4 degrees of freedom and 5 %
        # to one side: the limit lies 2.1318 * 0.03953 / sqrt(5) = 0.0377 below the mean.
        steps = (0.05, 0.0, -0.05, 0.025, -0.025)
        mixed = replace(row("a"), unattacked={seed: AttackOutcome(mean + steps[seed]) for seed in SEEDS})
        assert place("a", ranked(mixed)).status == status

    def test_utility_under_attack_is_held_to_the_oracle_s(self) -> None:
        low = row("a", attacked=0.6)
        assert place("a", ranked(low)).reason == (
            "its utility against dos minus the oracle's is -0.400 (one-sided 95 % limit over seeds: -0.400), "
            "and -0.1 is allowed"
        )
        places = rank([low, row("oracle", 1.0, attacked=0.65)], TRIALS, SEEDS)
        assert place("a", places).status == "ranked", "where the oracle learns little, little is asked"

    def test_one_noisy_cell_expels_nobody_and_a_loss_at_every_seed_does(self) -> None:
        dip = changed(row("a"), "text", 3, AttackOutcome(0.86, 0.9))
        assert place("a", ranked(dip)).status == "ranked", "0.86 is below 0.9 of the oracle's, at one seed of five"
        loss = dip
        for seed in SEEDS:
            loss = changed(loss, "text", seed, AttackOutcome(0.88, 0.9))
        assert place("a", ranked(loss)).status == "unranked"
        wild = changed(row("a"), "text", 3, AttackOutcome(0.5, 0.9))
        found = place("a", ranked(wild))
        assert found.status == "unranked", "so much spread leaves open that it costs more than the margin"
        assert "against text minus the oracle's is -0.100 (one-sided 95 % limit over seeds: -0.2" in found.reason

    def test_the_margin_is_the_suite_s(self) -> None:
        loss = row("a", attacked=0.85)
        for margin, status in ((0.1, "unranked"), (0.2, "ranked")):
            places = rank([loss, ORACLE], TRIALS, SEEDS, RankingRules(margin=margin))
            assert place("a", places).status == status

    def test_the_spread_is_shared_by_all_attacks(self) -> None:
        wobble = (0.08, -0.08, 0.08, -0.08, 0.0)
        made = row("a")
        for seed in SEEDS:
            made = changed(made, "text", seed, AttackOutcome(0.98 + wobble[seed], 0.9))
        # Of `text` alone: s = 0.08, and 2.1318 * 0.08 / sqrt(5) = 0.0763 below -0.02. With `dos`, which does not
        # vary: s = 0.08 / sqrt(2), 8 degrees of freedom, and 1.8595 * 0.0566 / sqrt(5) = 0.0470 below.
        (attack, limit) = min(zip(("text", "dos"), lower_limits([
            {seed: 0.98 + wobble[seed] - 1.0 for seed in SEEDS}, dict.fromkeys(SEEDS, 0.0),
        ]), strict=True), key=lambda pair: pair[1])  # fmt: skip
        assert attack == "text"
        assert limit == pytest.approx(-0.02 - 0.0470, abs=1e-4)
        assert place("a", ranked(made)).status == "ranked"

    def test_the_better_oracle_counts(self) -> None:
        oracles = [row("oracle", 1.0, attacked=0.2), row("oracle(reject='drop')", 1.0, attacked=1.0)]
        assert place("a", rank([row("a", attacked=0.5), *oracles], TRIALS, SEEDS)).status == "unranked"

    def test_beside_a_negative_oracle_the_margin_is_the_same(self) -> None:
        oracle = row("oracle", 1.0, attacked=-0.5)
        assert place("a", rank([row("a", attacked=-0.6), oracle], TRIALS, SEEDS)).status == "ranked"
        assert place("a", rank([row("a", attacked=-0.61), oracle], TRIALS, SEEDS)).status == "unranked"

    def test_without_an_oracle_nobody_is_ranked(self) -> None:
        assert "no oracle row" in place("a", rank([row("a"), NONE], TRIALS, SEEDS)).reason
        partial = changed(ORACLE, "text", 2, AttackOutcome(problem="failed"))
        found = place("a", rank([row("a"), partial], TRIALS, SEEDS))
        assert found.reason == "the oracle's cell against text at seed 2 has no utility"

    def test_a_failed_cell_is_no_score(self) -> None:
        failed = changed(row("a"), "dos", 4, AttackOutcome(problem="failed: out of memory"))
        found = place("a", ranked(failed))
        assert (found.status, found.worst) == ("unranked", None)
        assert "dos at seed 4" in found.reason
        assert "out of memory" in found.reason

    def test_a_missing_cell_is_no_score(self) -> None:
        made = row("a")
        for attack in ("dos", "text"):
            left = replace(made, attacked={name: cells for name, cells in made.attacked.items() if name != attack})
            found = place("a", ranked(left))
            assert found.status == "unranked"
            assert f"{attack} at seed 0" in found.reason
            assert "not run" in found.reason
        free = replace(made, unattacked={seed: cell for seed, cell in made.unattacked.items() if seed != 2})
        assert place("a", ranked(free)).reason == "no utility without an attack at seed 2 (not run)"

    def test_other_seeds_and_attacks_do_not_count(self) -> None:
        more = row("a", {"text": 0.9, "dos": 0.9, "tone": -5.0}, seeds=(*SEEDS, 77), noise=(*NOISE, -9.0))
        assert place("a", ranked(more)) == place("a", ranked(row("a")))


class TestInconclusive:
    def test_one_attack_that_does_not_work_leaves_everything_unranked(self) -> None:
        places = ranked(row("a", 1.0), row("weak", utility=0.1), trials=(trial("text"), trial("dos", lead=0.0)))
        assert {p.defense: p.status for p in places} == {
            "a": "inconclusive", "weak": "inconclusive", "oracle(reject='drop')": "anchor", "none": "anchor",
        }  # fmt: skip
        assert all(p.number is None and p.worst is None for p in places), "an inconclusive result is never a success"
        assert "dos does not beat its placebo" in place("a", places).reason
        assert "text" not in place("a", places).reason

    @pytest.mark.parametrize(("lead", "works"), [(0.0, False), (0.015, False), (0.021, True), (-0.5, False)])
    def test_from_five_seeds_on_the_paired_interval_decides(self, lead: float, works: bool) -> None:
        # The noise has a standard deviation of 0.0158, so the interval reaches 2.776 * 0.0158 / sqrt(5) = 0.0196 down.
        assert (why_inconclusive(trial("text", lead), SEEDS) == "") == works

    def test_below_five_seeds_intervals_must_lie_apart_at_every_seed(self) -> None:
        seeds = (0, 1, 2)
        assert why_inconclusive(trial("text", 0.06, seeds), seeds) == "", "0.05 apart at the closest, each +- 0.02"
        assert why_inconclusive(trial("text", 0.045, seeds), seeds) == (
            "undefended, text does not beat its placebo at seed 2"
        )
        touching = (
            {seed: AttackSuccess(0.5, 0.4, 0.6) for seed in seeds},
            {seed: AttackSuccess(0.3, 0.2, 0.4) for seed in seeds},
        )
        assert why_inconclusive(UndefendedAttack("text", *touching), seeds) != "", "touching intervals overlap"

    def test_a_failed_trial_is_why_inconclusive(self) -> None:
        whole = trial("text")
        cut = {seed: cell for seed, cell in whole.reference.items() if seed != 3}
        assert "no undefended score at seed 3" in why_inconclusive(replace(whole, reference=cut), SEEDS)


class TestInput:
    def test_what_cannot_be_ranked_is_refused(self) -> None:
        with pytest.raises(RankingError, match="at least one attack"):
            rank([NONE], [], SEEDS)
        with pytest.raises(RankingError, match="at least one attack and one seed"):
            rank([NONE], TRIALS, [])
        with pytest.raises(RankingError, match="the defense a is given twice"):
            rank([row("a"), row("a")], TRIALS, SEEDS)
        with pytest.raises(RankingError, match="the attack text is given twice"):
            rank([NONE], [TRIALS[0], TRIALS[0]], SEEDS)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_what_is_no_number_is_refused(self, value: float) -> None:
        with pytest.raises(RankingError, match="utility is"):
            AttackOutcome(value)
        with pytest.raises(StatisticsError, match="low is"):
            AttackSuccess(0.0, value, 0.0)

    def test_no_rows_have_no_places(self) -> None:
        assert rank([], TRIALS, SEEDS) == []


def test_limits_over_seeds_need_a_spread() -> None:
    with pytest.raises(StatisticsError, match="two or more seeds"):
        lower_limits([{0: 0.1}, {0: 0.2}])
