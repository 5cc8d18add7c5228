"""The choices behind the ranking, simulated: how often its limits hold, and what stood in their place before.

    python tests/benchmarks/ranking.py
    python tests/benchmarks/ranking.py --tables gate power --draws 4000

Every table compares the rule of before with that of `thiefbench.suite.analysis`, on results with a known truth: five
seeds and six attacks as in `standard-v1`, normal and independent seeds where nothing else is said. All tables take
about a minute; with `--draws 2000` a share is exact to about one point.

- gate: the share of suites in which the utility gate takes a defense out of the ranking.
- ratio: harm prevented where the undefended harm varies: suites without a score, bias, and coverage of the interval.
- rare: a defense that fails at one seed in ten: how often the interval, and the exact bound of the count, hold.
- bias: of the worst case, and of two corrections of it.
- power: the share of runs that tell two defenses apart, simulated and by the formula that `--plan` uses.
- clusters: intervals of a rejection rate where verdicts on one item or sender are alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from thiefbench.suite.analysis.clustered import clustered_rate
from thiefbench.suite.analysis.power import power, seeds_needed
from thiefbench.suite.analysis.ranking import AttackOutcome, RankingRow, unfit
from thiefbench.suite.analysis.scoring import wilson
from thiefbench.suite.analysis.statistics import (
    SeedCount,
    Summary,
    ratio,
    summarize,
    worst_case_difference,
)

SEEDS, ATTACKS = 5, 6
Values = NDArray[np.float64]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--draws", type=int, default=2000, help="suites, runs or pools behind every number")
    asked = parser.parse_args()
    for name in asked.tables:
        started = time.perf_counter()
        TABLES[name](asked.draws, np.random.default_rng([len(name), asked.draws]))
        print(f"  {time.perf_counter() - started:.0f} s\n", flush=True)


# --- the utility gate ---


def gate(draws: int, rng: np.random.Generator) -> None:
    """One attack may cost the defense some of the oracle's utility of 1; the spread is that of every cell."""
    print("gate: taken out of the ranking (of suites); a defense that costs 0.1 should be, one that costs 0 should not")
    print("  spread of utility  costs, under one attack   before   now")
    worlds = [(spread, cost, 1.0) for spread in (0.03, 0.04) for cost in (0.0, 0.05, 0.1, 0.15, 0.2)]
    for spread, cost, wilder in [*worlds, (0.03, 0.0, 2.0), (0.03, 0.1, 2.0)]:
        before = now = 0
        for _ in range(draws // 2):
            spreads = np.full(ATTACKS, spread)
            spreads[0] *= wilder
            own, oracle = (1 + rng.normal(0, 1, (ATTACKS, SEEDS)) * spreads[:, None] for _ in range(2))
            own[0] -= cost
            free = 1 + rng.normal(0, spread, SEEDS)
            before += bool(free.mean() < 0.9 or (own < np.minimum(0.9 * oracle, oracle)).any())
            now += bool(unfit(_row("mine", free, own), [_row("oracle", free, oracle)], _names(), range(SEEDS)))
        which = f"{spread:.2f}" + (f", {wilder * spread:.2f} there" if wilder > 1 else "")
        print(f"  {which:18} {cost:23.2f}   {2 * before / draws:6.1%}  {2 * now / draws:6.1%}")


def _row(defense: str, unattacked: Values, utilities: Values) -> RankingRow:
    attacked = {
        name: {seed: AttackOutcome(float(value), 1.0) for seed, value in enumerate(row)}
        for name, row in zip(_names(), utilities, strict=True)
    }
    return RankingRow(defense, {seed: AttackOutcome(float(value)) for seed, value in enumerate(unattacked)}, attacked)


def _names() -> list[str]:
    return [f"attack {number}" for number in range(ATTACKS)]


# --- harm prevented ---


def ratios(draws: int, rng: np.random.Generator) -> None:
    """A defense that lets 0.2 of the harm through, give or take 0.03; the undefended harm varies with the seed."""
    print("ratio: harm prevented of 0.8 where the undefended harm varies; before: a mean of ratios, none without each")
    print("  undefended harm   no score: before, now    bias: before, now      covered: before, now")
    for mean, spread in ((0.5, 0.1), (0.5, 0.25), (0.3, 0.15), (0.15, 0.05), (0.1, 0.05), (0.05, 0.05)):
        ones: list[Summary] = []
        others: list[Summary] = []
        missing = [0, 0]
        for _ in range(draws):
            undefended = rng.normal(mean, spread, SEEDS)
            defended = 0.2 * undefended + rng.normal(0, 0.03, SEEDS)
            if (undefended > 0).all():
                ones.append(summarize(_by_seed(1 - defended / undefended)))
            else:
                missing[0] += 1
            if (whole := undefended.mean()) >= 0.1:
                others.append(ratio(_by_seed(1 - defended / whole), _by_seed(undefended / whole)))
            else:
                missing[1] += 1
        biases = [fmean(each.mean for each in made) - 0.8 if made else np.nan for made in (ones, others)]
        held = [_held(made, 0.8) for made in (ones, others)]
        print(
            f"  {mean:.2f} +- {spread:.2f}      {missing[0] / draws:10.1%}  {missing[1] / draws:6.1%}"
            f"       {biases[0]:+8.3f}  {biases[1]:+.3f}       {held[0]:8.1%}  {held[1]:6.1%}"
        )


def rare(draws: int, rng: np.random.Generator) -> None:
    """A defense that prevents all of the harm, but at some seeds none: the truth is its share of good seeds."""
    print("rare: a defense that prevents 1 +- spread, and 0 at one seed in ten; before: Student's t alone")
    print("  spread   seeds   interval holds 0.9   bound of the count holds 0.9   no interval (equal seeds)")
    for spread, seeds in ((0.0, 5), (0.01, 5), (0.0, 10), (0.01, 10), (0.01, 20)):
        interval = bound = equal = 0
        for _ in range(draws):
            values = np.where(rng.random(seeds) < 0.1, 0.0, 1 + rng.normal(0, spread, seeds) if spread else 1.0)
            made = summarize(_by_seed(values), least=0.5)
            count = made.count or SeedCount(0, seeds)
            interval += made.low <= 0.9 <= made.high
            bound += count.least_share <= 0.9
            equal += made.kind == "equal"
        print(f"  {spread:6.2f}  {seeds:6}   {interval / draws:18.1%}   {bound / draws:28.1%}   {equal / draws:10.1%}")


# --- the worst case ---


def bias(draws: int, rng: np.random.Generator) -> None:
    """Of the smallest mean; of twice it minus the mean of resampled minima (Efron and Tibshirani, An Introduction to
    the Bootstrap, section 10.6); and of the mean over seeds of the attack that is worst at the other seeds (van
    Hasselt, arXiv:1302.7175)."""
    print("bias: of the worst case of six attacks; and of two corrections, which are not made")
    print("  the worst is     spread over seeds   smallest mean   bootstrap   the other seeds choose   interval holds")
    gaps = {"equal": 0.0, "0.05 apart": 0.05, "0.2 below": 0.2}
    for name, gap in gaps.items():
        for spread in (0.05, 0.1):
            truth = np.array([0.0, *[gap * (1 if name == "0.2 below" else n) for n in range(1, ATTACKS)]])
            plain, corrected, crossed, held = [], [], [], 0
            for _ in range(draws // 2):
                values = truth[:, None] + rng.normal(0, spread, (ATTACKS, SEEDS))
                smallest = values.mean(1).min()
                drawn = rng.integers(0, SEEDS, (200, SEEDS))
                plain.append(smallest)
                corrected.append(2 * smallest - values[:, drawn].mean(2).min(0).mean())
                left = values.sum(1)[:, None] - values
                crossed.append(values[left.argmin(0), np.arange(SEEDS)].mean())
                nothing = {"": dict.fromkeys(range(SEEDS), 0.0)}
                made = worst_case_difference(_table(values), nothing)
                held += made.low <= 0 <= made.high
            numbers = [fmean(each) for each in (plain, corrected, crossed)]
            print(
                f"  {name:14} {spread:19.2f}   {numbers[0]:+13.3f}   {numbers[1]:+9.3f}   {numbers[2]:+22.3f}"
                f"   {2 * held / draws:14.1%}"
            )


def powers(draws: int, rng: np.random.Generator) -> None:
    """Two defenses a gap apart: at one attack that is the worst of both by far, or at all six alike."""
    print("power: runs in which the better of two defenses is told apart (80 % is the usual aim)")
    print("  gap   spread   seeds   one clearly worst attack   six equal attacks   formula   seeds for 80 %")
    for gap, spread, seeds in (
        (0.1, 0.04, 5), (0.1, 0.08, 5), (0.2, 0.04, 5), (0.2, 0.08, 5), (0.2, 0.08, 7), (0.2, 0.08, 8), (0.2, 0.08, 10),
        (0.3, 0.08, 5), (0.1, 0.08, 15),
    ):  # fmt: skip
        found = []
        for above in (1.0, 0.0):
            truth = np.array([0.0, *[above] * (ATTACKS - 1)])[:, None]
            told = 0
            for _ in range(draws // 2):
                one, other = (truth + rng.normal(shift, spread, (ATTACKS, seeds)) for shift in (gap, 0.0))
                told += worst_case_difference(_table(one), _table(other)).above_0
            found.append(2 * told / draws)
        print(
            f"  {gap:.1f} {spread:8.2f} {seeds:7}   {found[0]:24.1%}   {found[1]:17.1%}"
            f"   {power(gap, spread, seeds, ATTACKS):7.1%}   {seeds_needed(gap, spread, ATTACKS) or 'over 200':>8}"
        )


# --- verdicts ---


def clusters(draws: int, rng: np.random.Generator) -> None:
    """Verdicts with a logit that varies by item and by sender (standard deviations); 60 items of four completions."""
    print("clusters: 95 % intervals of a rejection rate that hold it; before: Wilson over completions")
    print("  by item  by sender  senders   rate    covered: before, now     mean width: before, now")
    for by_item, by_sender, senders, middle in (
        (0.0, 0.0, 3, -2.0), (2.0, 0.0, 3, -2.0), (0.0, 0.7, 3, -2.0), (2.0, 0.7, 3, -2.0), (2.0, 0.7, 8, -2.0),
        (2.0, 0.0, 1, -2.0), (0.0, 0.7, 1, -2.0), (2.0, 0.7, 3, -4.0),
    ):  # fmt: skip
        logits = middle + rng.normal(0, 1, 200_000) * np.hypot(by_item, by_sender)
        truth = float((1 / (1 + np.exp(-logits))).mean())
        sender, item, _ = (axis.ravel() for axis in np.indices((senders, 60, 4)))
        held, width = np.zeros(2), np.zeros(2)
        for _ in range(draws // 2):
            logit = middle + rng.normal(0, by_sender, senders)[sender] + rng.normal(0, by_item, 60)[item]
            rejected = rng.random(len(item)) < 1 / (1 + np.exp(-logit))
            for at, rate in enumerate((wilson(int(rejected.sum()), len(item)), clustered_rate(rejected, sender, item))):
                low, high = rate.low or 0.0, 1.0 if rate.high is None else rate.high
                held[at] += low <= truth <= high
                width[at] += high - low
        print(
            f"  {by_item:7.1f} {by_sender:10.1f} {senders:8} {truth:6.3f} {2 * held[0] / draws:15.1%}"
            f"  {2 * held[1] / draws:6.1%} {2 * width[0] / draws:19.3f}  {2 * width[1] / draws:.3f}"
        )
    print("  the same filter, with a ban: all of a sender's completions are rejected with a chance of 0.1")
    held = np.zeros(2)
    for _ in range(draws):
        rejected = np.repeat(rng.random(3) < 0.1, 200)
        senders_of, items_of = np.repeat(np.arange(3), 200), np.tile(np.arange(50), 12)
        for at, rate in enumerate((wilson(int(rejected.sum()), 600), clustered_rate(rejected, senders_of, items_of))):
            held[at] += (rate.low or 0.0) <= 0.1 <= (1.0 if rate.high is None else rate.high)
    print(f"  three senders: {held[0] / draws:21.1%}  {held[1] / draws:6.1%}   (no cell tells; seeds draw new senders)")


def _by_seed(values: Sequence[float] | Values) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(values)}


def _table(values: Values) -> Mapping[str, Mapping[int, float | None]]:
    return {str(number): {**_by_seed(row)} for number, row in enumerate(values)}


def _held(made: Sequence[Summary], truth: float) -> float:
    return fmean(each.low <= truth <= each.high for each in made) if made else float("nan")


TABLES: dict[str, Callable[[int, np.random.Generator], None]] = {
    "gate": gate, "ratio": ratios, "rare": rare, "bias": bias, "power": powers, "clusters": clusters,
}  # fmt: skip

if __name__ == "__main__":
    main()
