"""`guard`: the composition that we recommend to start with."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from thiefbench.defenses.arithmetic import Arithmetic
from thiefbench.defenses.base import Defense
from thiefbench.defenses.completeness import Completeness
from thiefbench.defenses.composed import Composed
from thiefbench.defenses.length_budget import LengthBudget
from thiefbench.defenses.likelihood import Likelihood
from thiefbench.defenses.logit import Logit
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.defenses.similarity import Similarity
from thiefbench.defenses.static_code import StaticCode

Population = Literal["homogeneous", "heterogeneous"]


class Guard(Composed):
    """The defense that we recommend, composed of other defenses; all of them drop what they reject.

    With equal weights and a beacon it is `seed_replay`, which lets nothing pass but the draw of the slot's seed,
    whatever the attack, `completeness` against nodes that withhold draws (`sift`), and `length_budget` against nodes
    that pick items by their draws (`item_grind`). It stops these two only in part: where nodes may pick items with the
    beacon known, let the swarm draw them or have nodes commit to them before (`SwarmSpec.items`).

    Without a beacon, `logit` and `likelihood` reject what an honest policy would hardly write. They need equal weights.
    Without these too, only the text can be checked: words that one sender repeats (`similarity`), wrong equations
    (`arithmetic`), imports and calls (`static_code`), and senders with too many long answers (`length_budget`).

    What it cannot stop without a beacon: completions in the policy's own words whose payload it finds probable. A false
    word that leaves numbers and answer right (`contrast(attack="own(attack='borrowed')")`) gets through even from one
    sender. Equations and lengths take a sender with a new name in every slot (`contrast(attack="dodge")` or
    `contrast(attack="dos")`, varied with `identities=1000000`), since whatever counts by sender then sees nothing.
    Against these it takes the beacon. `grounding`, which is no part of it, stops false words of attackers that do not
    know it.

    The parts were chosen on seeds and payloads other than those that RESULTS.md reports.

    Args:
        population: "homogeneous" where all honest nodes hold equal weights, or "heterogeneous".
        beacon: whether the swarm's seeds come from a public beacon; used only where weights are equal.
    """

    name: ClassVar[str] = "guard"

    def __init__(self, population: Population = "homogeneous", beacon: bool = True) -> None:
        if population not in get_args(Population):
            raise ValueError(f"guard: population must be one of {', '.join(get_args(Population))}, not {population!r}")
        reads: list[Defense] = [Similarity(), Arithmetic(), StaticCode(), LengthBudget()]
        asks: list[Defense] = [Logit(reject="drop"), Likelihood()]
        if population == "heterogeneous":
            parts = reads
        elif beacon:
            parts = [SeedReplay(), Completeness(), LengthBudget()]
        else:
            parts = asks + reads
        super().__init__(parts)
