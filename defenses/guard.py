"""`guard`: the combination of defenses that we recommend to start with."""

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

    With equal weights and a beacon it consists of `seed_replay`, which accepts only the draw of the slot's seed,
    whatever the attack; `completeness`, against nodes that withhold draws (`sift`); and `length_budget`, against nodes
    that pick items by their draws (`item_grind`), which it hardly stops. If nodes may pick items
    after the beacon is known, let the swarm draw the items instead, or let nodes commit to them beforehand
    (`SwarmSpec.items`).

    Without a beacon, `logit` and `likelihood` reject what an honest policy would hardly write. They need equal weights.
    Without equal weights, only the text can be checked: words that one sender repeats (`similarity`), wrong equations
    (`arithmetic`), imports and calls (`static_code`), and senders with too many long answers (`length_budget`).

    Without a beacon, it cannot stop completions in the policy's own words whose payload the policy finds probable.
    A false word that leaves numbers and answer right (`contrast(attack="own(attack='borrowed')")`) passes even from
    one sender. False equations and longer answers pass if the sender has a new pseudonym in every slot
    (`contrast(attack="dodge")` or `contrast(attack="dos")`, varied with `identities=1000000`), because checks that
    count by sender then find nothing. Stopping these attacks requires the beacon. `grounding`, which is not part of
    it, stops false words of attackers that do not know it.

    The parts were chosen on seeds and payloads other than those that RESULTS.md reports.

    Args:
        population: "homogeneous" if all honest nodes hold equal weights, or else "heterogeneous".
        beacon: whether the swarm's seeds come from a public beacon; used only if weights are equal.
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
