"""`guard`: the composition to start from."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from thiefbench.defenses.arithmetic import Arithmetic
from thiefbench.defenses.base import Defense
from thiefbench.defenses.composed import Composed
from thiefbench.defenses.length_budget import LengthBudget
from thiefbench.defenses.likelihood import Likelihood
from thiefbench.defenses.logit import Logit
from thiefbench.defenses.seed_replay import SeedReplay
from thiefbench.defenses.similarity import Similarity
from thiefbench.defenses.static_code import StaticCode

Population = Literal["homogeneous", "heterogeneous"]


class Guard(Composed):
    """What we recommend, made of other defenses; all of them drop what they reject.

    With equal weights and a beacon, `seed_replay`: nothing but the slot's own draw passes, whatever the attack. Beside
    it `length_budget`, for nodes that pick items by their draws (`item_grind`).

    Without a beacon, what an honest policy would hardly write is rejected by `logit` and `likelihood`. Without equal
    weights they cannot be asked, and what is left reads the text: words that one sender repeats (`similarity`), wrong
    equations (`arithmetic`), imports and calls (`static_code`), and senders whose answers are too often long
    (`length_budget`).

    The parts were chosen on seeds and payloads other than those that RESULTS.md reports.

    Args:
        population: "homogeneous" where all honest nodes hold equal weights, or "heterogeneous".
        beacon: whether the swarm's seeds come from a public beacon; it is used where weights are equal.
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
            parts = [SeedReplay(), LengthBudget()]
        else:
            parts = asks + reads
        super().__init__(parts)
