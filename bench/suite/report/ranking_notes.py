"""Explanations of a ranking, shared by all pages that show one."""

from __future__ import annotations

from thiefbench.suite.analysis.comparison import RULES
from thiefbench.suite.analysis.statistics import FEW_SEEDS, WORST_CASE_BIAS
from thiefbench.suite.scenario import RankingRules


def ranking_notes(rules: RankingRules = RULES) -> dict[str, str]:
    """Sentences about a suite's ranking.

    Returns:
        gate: the conditions for being ranked;
        share: what harm prevented is a share of;
        count: what "k of n seeds" counts;
        bias: by how much the worst case is biased downwards;
        few: what happens to a suite with few seeds.
    """
    low, high = (f"{-bias:.2f}" for bias in sorted(WORST_CASE_BIAS, reverse=True))
    return {
        "gate": (
            "A defense is ranked if its utility is shown not to be inferior: over seeds, the one-sided 95 % lower "
            f"limit of its mean is at least {1 - rules.margin:g} without an attack, and that of its difference to the "
            f"oracle's at least {-rules.margin:g} under each attack."
        ),
        "share": (
            "Harm prevented over seeds is 1 minus a ratio of means, and the interval is that of a ratio. Where the "
            f"mean undefended harm is below {rules.least_harm:g}, there is no such share."
        ),
        "count": (
            f"\u201ck of n seeds\u201d counts the seeds where at least {rules.good:g} of their own undefended harm is "
            f"prevented (in the worst case: of every attack's; utility: where it is at least {1 - rules.margin:g}). "
            "The number after \u2265 is a lower bound on that share among all seeds: the exact (Clopper-Pearson) "
            "one-sided 95 % bound. Where all seeds agree, there is no interval."
        ),
        "bias": (
            f"The smallest of noisy means is too low by chance: by {low} to {high} where six attacks are equally bad, "
            "at five seeds with a standard deviation of 0.05 to 0.1; not at all where one is clearly the worst. It is "
            "not corrected."
        ),
        "few": f"With fewer than {FEW_SEEDS} seeds nothing is ranked.",
    }
