"""Learning that a defense costs under attack: models that learn less behind it than undefended models do.

Harm prevented looks at the payload alone. A defense that keeps models from learning keeps them from the payload too,
and its harm prevented then says little. Utility without an attack need not show it: a defense may reject honest work
only where others attack, or learning may break down only where the work that is left is poisoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thiefbench.suite.analysis.comparison import Comparison, Line, values_over
from thiefbench.suite.analysis.ranking_inputs import line_of
from thiefbench.suite.analysis.statistics import Summary, paired, summarize


@dataclass(frozen=True)
class LostLearning:
    """A defense under an attack that costs more learning than the attack does by itself.

    Attributes:
        title: of the attack's comparison.
        defended, undefended: utility over common seeds, behind the defense and without it.
    """

    title: str
    defended: Summary
    undefended: Summary


def lost_learning(comparisons: Sequence[Comparison], defense: str) -> list[LostLearning]:
    """Under which attacks a defense's models keep less of the clean gain than undefended models do.

    With u_s the utility (`comparison`) at seed s of the trained cell behind the defense and v_s that of the undefended
    cell, at most 1, learning is lost where mean(u - min(v, 1)) < -m over the seeds that have both, with m the margin of
    the suite's `RankingRules`. It is the mean and no limit of an interval that counts: a defense that ruins models at
    every other seed has a wide one. What undefended models learn beyond the control, from the attacker's own work, no
    defense owes.

    Args:
        comparisons: of every attack.
        defense: its spec string.

    Returns:
        In the order of the attacks; without those where no seed has both utilities.
    """
    found = []
    for each in comparisons:
        own, undefended = (_utilities(line_of(each, "attack", name)) for name in (defense, "none"))
        other = {seed: min(value, 1.0) for seed, value in undefended.items()}
        seeds = own.keys() & other.keys()
        if seeds and paired(own, other).mean < -each.rules.margin:
            kept = [summarize({seed: values[seed] for seed in seeds}) for values in (own, undefended)]
            found.append(LostLearning(each.title, *kept))
    return found


def _utilities(line: Line | None) -> dict[int, float]:
    return values_over({result.seed: result for result in line.results}, "utility") if line else {}
