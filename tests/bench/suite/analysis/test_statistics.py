"""Statistics over seeds: by hand, by their invariances, and by how often an interval holds a known truth."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from thiefbench.suite.analysis.statistics import (
    RESAMPLES,
    MissingCellError,
    SeedCount,
    StatisticsError,
    Summary,
    held,
    paired,
    ratio,
    summarize,
    worst_case,
    worst_case_difference,
)

# Student's t with 4 degrees of freedom, as tables give it: 2.5 % and 1.25 % to each side.
T_4, T_4_HALVED = 2.7764, 3.4954

Points = dict[int, float]


def by_seed(*values: float) -> Points:
    return dict(enumerate(values))


class TestSummary:
    def test_five_seeds_by_hand(self) -> None:
        made = summarize(by_seed(0.1, 0.2, 0.3, 0.4, 0.5))
        half = T_4 * math.sqrt(0.025) / math.sqrt(5)  # the squared deviations add to 0.1, over 4
        assert made.kind == "interval"
        assert made.mean == pytest.approx(0.3)
        assert (made.low, made.high) == (pytest.approx(0.3 - half, abs=1e-5), pytest.approx(0.3 + half, abs=1e-5))

    def test_few_seeds_are_points_and_their_range(self) -> None:
        made = summarize({7: 0.86, 2: 0.81, 5: 0.83})
        assert made == Summary(pytest.approx(2.5 / 3), 0.81, 0.86, ((2, 0.81), (5, 0.83), (7, 0.86)), "range")
        assert made.above_0 is False, "a range is no interval"

    def test_in_writing(self) -> None:
        assert summarize({2: 0.86, 0: 0.81, 1: 0.83}).text() == "0.81 0.83 0.86 (3 seeds)"
        assert summarize({4: 1.0}).text(1) == "1.0 (1 seed)"
        assert summarize(by_seed(0.1, 0.2, 0.3, 0.4, 0.5)).text() == "0.30 [0.10, 0.50] (95 %, 5 seeds)"
        counted = summarize(by_seed(0.1, 0.2, 0.3, 0.4, 0.5), least=0.2)
        assert counted.text() == "0.30 [0.10, 0.50] (95 %, 4 of 5 seeds, \u2265 0.34)"
        few = summarize(by_seed(0.1, 0.2, 0.3, 0.4)).text()
        assert "[" not in few, "below five seeds nothing looks like an interval"
        assert "%" not in few, "below five seeds nothing is called a 95 % interval"
        assert summarize(by_seed(-0.001)).text() == "0.00 (1 seed)", "there is no negative zero"

    def test_equal_points_have_no_interval(self) -> None:
        made = summarize(by_seed(*[1.0] * 5), least=0.5)
        assert (made.kind, made.text()) == ("equal", "1.00 (5 of 5 seeds, \u2265 0.55)")
        assert summarize(by_seed(*[1.0] * 5)).text() == "1.00 (5 seeds)"
        rounded = summarize(by_seed(0.1 + 0.2, 0.3, 0.3, 0.3, 0.3))
        assert rounded.kind == "equal", "a last bit is no spread"

    def test_limits_that_print_alike_are_not_printed(self) -> None:
        close = summarize(by_seed(1.0, 1.0, 1.0, 1.0, 0.9999), least=0.5)
        assert close.kind == "interval"
        assert close.text() == "1.00 (5 of 5 seeds, \u2265 0.55)"
        assert close.text(5).startswith("0.99998 [0.99992, 1.00004] (95 %")

    @pytest.mark.parametrize("points", [{}, {0: 1.0, 1: math.nan}, {3: math.inf}])
    def test_what_is_no_number_is_refused(self, points: Points) -> None:
        with pytest.raises(StatisticsError):
            summarize(points)


class TestSeedCount:
    @pytest.mark.parametrize(
        ("good", "seeds", "least"), [(5, 5, 0.05 ** (1 / 5)), (3, 3, 0.05 ** (1 / 3)), (0, 5, 0.0), (4, 5, 0.34259)]
    )
    def test_the_exact_bound_by_hand(self, good: int, seeds: int, least: float) -> None:
        """All of n: p^n = 0.05. 4 of 5: 5 p^4 (1 - p) + p^5 = 0.05, which 0.34259 solves."""
        assert SeedCount(good, seeds).least_share == pytest.approx(least, abs=1e-5)

    def test_the_bound_is_where_so_many_become_unlikely(self) -> None:
        p = SeedCount(4, 5).least_share
        assert 5 * p**4 * (1 - p) + p**5 == pytest.approx(0.05)


class TestRatio:
    def test_the_interval_is_that_of_the_residuals(self) -> None:
        harm, undefended = np.array([0.1, 0.3, 0.2, 0.0, 0.15]), np.array([0.5, 0.9, 0.6, 0.3, 0.7])
        mean = undefended.mean()
        made = ratio(by_seed(*(1 - harm / mean)), by_seed(*(undefended / mean)), least=0.5)
        share = harm.sum() / undefended.sum()
        rests = (harm - share * undefended) / mean
        half = T_4 * rests.std(ddof=1) / math.sqrt(5)
        assert made.mean == pytest.approx(1 - share)
        assert (made.low, made.high) == (
            pytest.approx(1 - share - half, abs=1e-5),
            pytest.approx(1 - share + half, abs=1e-5),
        )
        assert made.points == tuple(by_seed(*(1 - harm / mean)).items()), "the points are shares of the mean harm"
        assert made.count == SeedCount(5, 5)

    def test_a_seed_with_little_harm_is_not_held_by_itself(self) -> None:
        """Undefended 0.9, 0.2 and 0.02; nothing is prevented, then half at the first seed and all at the second."""
        undefended = np.array([0.9, 0.2, 0.02])
        shares = by_seed(*(undefended / undefended.mean()))
        nothing = ratio(by_seed(*(1 - undefended / undefended.mean())), shares, least=0.5)
        assert nothing.count == SeedCount(0, 2), "the third seed's attack failed by itself"
        some = ratio(by_seed(*(1 - np.array([0.45, 0.0, 0.02]) / undefended.mean())), shares, least=0.5)
        assert some.count == SeedCount(2, 2)

    def test_exactly_half_is_half(self) -> None:
        """1 - D / U is 0.5 up to rounding, however U and the mean are spelled in binary."""
        for undefended in (0.5625, 0.1, 0.7, 0.3, 1 / 3, 0.58):
            mean = (undefended + 0.825) / 2
            points, shares = {0: 1 - undefended / 2 / mean}, {0: undefended / mean}
            assert held(points, shares, 0.5) == {0: True}

    def test_harm_in_proportion_has_no_spread(self) -> None:
        undefended = np.array([0.5, 0.9, 0.6, 0.3, 0.7])
        shares = by_seed(*(undefended / undefended.mean()))
        made = ratio({seed: 1 - 0.2 * share for seed, share in shares.items()}, shares)
        assert (made.mean, made.kind) == (pytest.approx(0.8), "equal")


class TestPaired:
    def test_only_common_seeds_count(self) -> None:
        made = paired({0: 0.5, 1: 0.7, 9: 100.0}, {1: 0.2, 0: 0.1, 8: -100.0})
        assert made.points == ((0, pytest.approx(0.4)), (1, pytest.approx(0.5)))
        assert made.kind == "range"

    def test_pairing_removes_what_seeds_have_in_common(self) -> None:
        rng = np.random.default_rng(0)
        luck = rng.normal(0, 1, 8)
        one, other = (by_seed(*(luck + rng.normal(shift, 0.01, 8))) for shift in (0.5, 0.0))
        assert paired(one, other).high - paired(one, other).low < 0.05
        assert summarize(one).high - summarize(one).low > 0.5

    def test_without_a_common_seed_there_is_no_difference(self) -> None:
        with pytest.raises(StatisticsError, match="share no seed"):
            paired({0: 1.0}, {1: 1.0})

    def test_it_changes_sign_with_its_sides(self) -> None:
        rng = np.random.default_rng(1)
        one, other = by_seed(*rng.normal(0, 1, 6)), by_seed(*rng.normal(0, 1, 6))
        ours, theirs = paired(one, other), paired(other, one)
        assert (ours.mean, ours.low, ours.high) == pytest.approx((-theirs.mean, -theirs.high, -theirs.low))


class TestWorstCase:
    def test_one_attack_is_its_own_summary(self) -> None:
        points = by_seed(0.2, 0.9, 0.4, 0.5, 0.7)
        made = worst_case({"text": points})
        assert made.summary == summarize(points)
        assert made.attack == "text"
        assert made.resamples == {"text": RESAMPLES}

    def test_two_attacks_by_hand(self) -> None:
        # Means 0.3 and 0.5; standard errors sqrt(0.025 / 5) and 0.
        made = worst_case({"text": by_seed(0.1, 0.2, 0.3, 0.4, 0.5), "dos": by_seed(*[0.5] * 5)})
        error = math.sqrt(0.005)
        assert made.attack == "text"
        assert made.summary.mean == pytest.approx(0.3)
        assert made.summary.low == pytest.approx(0.3 - T_4 * error, abs=1e-5), "the lower limit needs no correction"
        assert made.summary.high == pytest.approx(min(0.3 + T_4_HALVED * error, 0.5), abs=1e-5), "the upper one does"
        assert made.summary.points == tuple(by_seed(0.1, 0.2, 0.3, 0.4, 0.5).items())

    def test_a_noisy_attack_lowers_the_lower_limit(self) -> None:
        steady, noisy = by_seed(*[0.5] * 5), by_seed(0.0, 1.5, 0.0, 1.5, 0.0)
        assert worst_case({"text": steady, "dos": noisy}).summary.low < 0, "it may be the worse one after all"

    def test_few_seeds_have_points_and_a_range(self) -> None:
        made = worst_case({"text": by_seed(0.1, 0.4), "dos": by_seed(0.9, 0.8)})
        assert (made.summary.kind, made.summary.low, made.summary.high) == ("range", 0.1, 0.4)
        assert made.resamples == {}
        assert made.text() == "0.10 0.40 (2 seeds) against text"

    def test_the_joint_resamples_say_how_sure_the_worst_attack_is(self) -> None:
        base = np.array([0.1, 0.5, 0.9, 0.3, 0.7])
        made = worst_case({"text": by_seed(*base), "dos": by_seed(*(base + 0.01))})
        assert made.resamples == {"text": RESAMPLES, "dos": 0}, "all attacks get the same seeds of a resample"
        swapped = worst_case({"text": by_seed(*base), "dos": by_seed(*(1.0 - base))})
        assert swapped.attack == "dos", "of equal means the first by name"
        assert 0.4 * RESAMPLES < swapped.resamples["text"] < 0.6 * RESAMPLES
        assert worst_case({"a": by_seed(*base), "b": by_seed(*base)}).resamples == {"a": RESAMPLES, "b": RESAMPLES}

    def test_the_share_of_resamples_matches_all_of_them_counted(self) -> None:
        # Two attacks that differ by +1 at one seed of five and by -0.3 at the others: `text` is worse in a resample
        # that draws that seed k times when k - 0.3 (5 - k) < 0, so for k of 0 or 1: (4/5)^5 + 5 (1/5) (4/5)^4.
        made = worst_case({"text": by_seed(1, 0, 0, 0, 0), "dos": by_seed(0, 0.3, 0.3, 0.3, 0.3)})
        assert made.resamples["text"] / RESAMPLES == pytest.approx(0.8**5 + 0.8**4, abs=0.015)

    @pytest.mark.parametrize("seed", range(20))
    def test_order_changes_nothing_and_the_value_lies_inside(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        attacks, seeds = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        values = rng.normal(0.5, 0.3, (attacks, seeds))
        table = {f"attack{a}": {s: float(values[a, s]) for s in range(seeds)} for a in range(attacks)}
        mixed = {
            name: {int(s): table[name][int(s)] for s in rng.permutation(seeds)} for name in rng.permutation(list(table))
        }
        made = worst_case(table)
        assert made == worst_case(mixed), "neither the order of attacks nor that of seeds counts"
        assert made.summary.mean == pytest.approx(values.mean(1).min())
        assert made.summary.low <= made.summary.mean + 1e-12
        assert made.summary.high >= made.summary.mean - 1e-12
        worse = worst_case(table | {"zz": by_seed(*values.min(0) - 1)})
        assert worse.summary.mean < made.summary.mean, "one more attack can only make the worst case worse"
        assert worse.attack == "zz"

    @pytest.mark.parametrize("points", [{0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0, 2: None}])
    def test_a_cell_without_a_score_leaves_no_worst_case(self, points: dict[int, float | None]) -> None:
        with pytest.raises(MissingCellError, match="dos at seed 2"):
            worst_case({"text": {0: 0.5, 1: 0.5, 2: 0.5}, "dos": points})

    @pytest.mark.parametrize("table", [{}, {"text": {}}, {"text": {0: math.nan}}])
    def test_nothing_to_take_the_worst_of(self, table: dict[str, dict[int, float | None]]) -> None:
        with pytest.raises(StatisticsError):
            worst_case(table)


class TestDifference:
    def test_against_one_attack_it_is_the_paired_difference(self) -> None:
        one, other = by_seed(0.2, 0.9, 0.4, 0.5, 0.7), by_seed(0.1, 0.5, 0.4, 0.1, 0.6)
        assert worst_case_difference({"a": one}, {"a": other}) == paired(one, other)

    def test_to_a_defense_that_always_scores_0_it_is_the_worst_case(self) -> None:
        rng = np.random.default_rng(2)
        table = {name: by_seed(*rng.normal(0, 1, 6)) for name in "abc"}
        assert worst_case_difference(table, {"a": by_seed(*[0.0] * 6)}).low == worst_case(table).summary.low

    @pytest.mark.parametrize("seed", range(10))
    def test_it_changes_sign_with_its_sides(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        one, other = ({name: by_seed(*rng.normal(0, 1, 5 + seed % 3)) for name in "abcd"} for _ in range(2))
        ours, theirs = worst_case_difference(one, other), worst_case_difference(other, one)
        assert (ours.mean, ours.low, ours.high) == pytest.approx((-theirs.mean, -theirs.high, -theirs.low))
        assert worst_case_difference(one, one).mean == 0

    def test_it_needs_the_same_seeds(self) -> None:
        with pytest.raises(StatisticsError, match="different seeds"):
            worst_case_difference({"a": {0: 1.0}}, {"a": {1: 1.0}})
        with pytest.raises(MissingCellError, match="a at seed 1"):
            worst_case_difference({"a": {0: 1.0, 1: None}}, {"a": {0: 1.0, 1: 1.0}})


Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return rng.normal(0, 1, shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Lognormal with sigma 0.8 around its mean: most seeds a little below, a few far above."""
    return rng.lognormal(0, 0.8, shape) - math.exp(0.32)


def coverage(noise: Noise, attacks: int, gap: float = 0.0, seeds: int = 5, tables: int = 600) -> float:
    """How often the worst case's interval holds the truth, 0; attack number i is truly `i * gap` above the worst."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(tables):
        values = noise(rng, (attacks, seeds)) + gap * np.arange(attacks)[:, None]
        made = worst_case_difference(
            {str(a): by_seed(*row) for a, row in enumerate(values)}, {"zero": by_seed(*[0.0] * seeds)}
        )
        held += made.low <= 0 <= made.high
    return held / tables


def percentile_coverage(noise: Noise, attacks: int, stretch: float, seeds: int = 5, tables: int = 600) -> float:
    """The same of the percentile interval of minima in joint resamples, deviations from the mean stretched."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, seeds, (500, seeds))
    held = 0
    for _ in range(tables):
        values = noise(rng, (attacks, seeds))
        means = values.mean(1)
        minima = (means + stretch * (values[:, drawn].mean(2).T - means)).min(1)
        low, high = np.quantile(minima, [0.025, 0.975])
        held += low <= 0 <= high
    return held / tables


class TestCoverage:
    """Nominal 95 % at five seeds. With 600 tables a measured 95 % is exact to about two points."""

    @pytest.mark.parametrize(("attacks", "gap"), [(1, 0.0), (4, 0.0), (4, 1.0)])
    def test_normal_seeds_are_covered(self, attacks: int, gap: float) -> None:
        assert coverage(normal, attacks, gap) > 0.93, "the interval covers at least its nominal 95 %"

    def test_a_percentile_bootstrap_covers_less(self) -> None:
        """Why the limits are not quantiles of the resampled minima."""
        to_t = T_4 / 1.96 * math.sqrt(5 / 4)
        assert 0.80 < percentile_coverage(normal, 1, 1.0) < 0.90, "one attack: the known under-coverage"
        assert percentile_coverage(normal, 1, to_t) > 0.93, "at Student-t width one attack is covered"
        assert percentile_coverage(normal, 4, 1.0) < 0.50, "several equally bad ones are not"
        assert percentile_coverage(normal, 4, to_t) < 0.60, "at whatever width"

    def test_skewed_seeds_are_covered_less_and_better_than_by_percentiles(self) -> None:
        """The limit of what is promised."""
        own, percentile = coverage(skewed, 1), percentile_coverage(skewed, 1, 1.0)
        assert 0.83 < own < 0.91, "five strongly skewed seeds are covered less than nominally"
        assert percentile < own - 0.05

    @pytest.mark.parametrize("gap", [0.0, 0.5])
    def test_differences_of_worst_cases_are_covered(self, gap: float) -> None:
        rng = np.random.default_rng(0)
        held = 0
        for _ in range(600):
            luck = normal(rng, (1, 5))  # what a seed does to both defenses alike
            one, other = (normal(rng, (3, 5)) + luck + shift for shift in (gap, 0.0))
            made = worst_case_difference(*({str(a): by_seed(*row) for a, row in enumerate(v)} for v in (one, other)))
            held += made.low <= gap <= made.high
        assert held / 600 > 0.93, "the interval of a difference of worst cases covers at least its nominal 95 %"


def test_statistics_and_ranking_load_neither_torch_nor_the_store() -> None:
    code = (
        "import sys, thiefbench.suite.analysis.statistics, thiefbench.suite.analysis.ranking,"
        "thiefbench.suite.analysis.comparison;"
        "print([m for m in ('torch', 'pyarrow', 'datasets', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "the leaderboard uses them without the engine"


def test_importing_the_package_loads_no_scipy() -> None:
    code = "import sys, thiefbench; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False", "import thiefbench is cheap"
