"""Which submitted cells are run again, and the chance that these are among the forged ones.

What is drawn is a *comparison*: all of an entry's cells of one attack of one part at one seed. They are the defense's
own cell, the undefended cell, the placebo and the control, the oracles' cells, and the defense's cell without an attack
where the part has it under this attack. Harm prevented and utility at that seed are computed from exactly these, so no
number of a drawn comparison rests on a cell that was not run again, but for published ones, which are not the
submitter's: an entry that refers to them leaves own cells alone to forge, and one that brings others in their place has
every one of these run again, whatever is drawn (`thiefbench.leaderboard.verification.baseline`).

No attack is drawn a second time before every attack was drawn once, as a rank goes by the attack that is handled
worst: to raise it, that attack's cells have to be forged. With A attacks, S seeds and k = q * A + r comparisons
(r < A), q seeds are drawn of every attack and one more of r attacks that are drawn too. If c of the S seeds of one
attack are forged, some forged cell is run again with the chance

    1 - (1 - r / A) * m(q) - (r / A) * m(q + 1),        m(j) = C(S - c, j) / C(S, j)

where m(j) is the chance that j seeds drawn out of S are all true ones. A forged cell that is run again where equal bits
are promised is found for certain.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from math import comb
from typing import Final, TypeVar

FOUND: Final = 0.95
"""The least chance with which a forgery of one attack's cells at all seeds meets a comparison that is run again."""
SEVERAL: Final = 3
"""Seeds of every attack that are run again where equal bits are not promised. There, a forged number may lie close
enough to the true one by chance; it is unlikely to do so at three seeds drawn out of five."""

_Attack = TypeVar("_Attack", bound=Hashable)


def drawn(seeds: Mapping[_Attack, Sequence[int]], count: int, rng: random.Random) -> list[tuple[_Attack, int]]:
    """`count` comparisons, or all if there are fewer, as pairs of attack and seed.

    Args:
        seeds: those at which there are cells, by attack.
        count: how many.
        rng: keyed by what the submitter does not know.
    """
    attacks = rng.sample(list(seeds), len(seeds))
    queues = {attack: rng.sample(sorted(seeds[attack]), len(seeds[attack])) for attack in attacks}
    turns = max(map(len, queues.values()), default=0)
    return [
        (attack, queues[attack][turn]) for turn in range(turns) for attack in attacks if turn < len(queues[attack])
    ][:count]


def chance_of_finding(attacks: int, seeds: int, count: int, forged: Sequence[int]) -> float:
    """The chance that at least one of `count` drawn comparisons holds a forged cell; see the module for the formula.

    Where cells of several attacks are forged, the r attacks that get one more seed are shared among all of them: the
    chance to miss every forgery is the coefficient of x^r in the product over attacks of m(q) + m(q + 1) x, divided by
    C(A, r).

    Args:
        attacks, seeds: of the suite; every attack has all seeds.
        count: comparisons that are drawn.
        forged: of every attack with forged cells, at how many seeds.
    """
    turns, more = divmod(min(count, attacks * seeds), attacks)
    missing = [1.0] + [0.0] * more  # coefficients of x^0 to x^r
    for number in [*forged, *[0] * (attacks - len(forged))]:
        once, again = (_missed(seeds, number, turn) for turn in (turns, turns + 1))
        missing = [once * missing[power] + (again * missing[power - 1] if power else 0.0) for power in range(more + 1)]
    return 1 - missing[more] / comb(attacks, more)


def comparisons_needed(attacks: int, seeds: int, bits: bool = True) -> int:
    """How many comparisons have to be run again for the verdict "re-executed".

    Args:
        attacks, seeds: of the suite.
        bits: whether equal bits are promised; otherwise `SEVERAL` seeds of every attack are asked for.
    """
    if not bits:
        return attacks * min(SEVERAL, seeds)
    counts = range(1, attacks * seeds + 1)
    return next(count for count in counts if chance_of_finding(attacks, seeds, count, [seeds]) >= FOUND)


def _missed(seeds: int, forged: int, count: int) -> float:
    """The chance that `count` seeds drawn out of `seeds` are all among the true ones."""
    return comb(seeds - forged, count) / comb(seeds, count) if count <= seeds else 0.0
