"""Whether attack and defense fit what a swarm exchanges: weights, or completions."""

from __future__ import annotations

from thiefbench.attacks.base import Attack
from thiefbench.attacks.exchange.base import WeightAttack
from thiefbench.averaging.spec import AveragingSpec
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.defenses.base import Defense
from thiefbench.engine.spec import SpecError

NONE = "none"
"""The spec string of the anchor that accepts everything; where weights are exchanged, it is the plain mean."""


def check_kind(averaging: AveragingSpec | None, attack: Attack, name: str) -> None:
    """See that an attack sends what its swarm exchanges; `name` is its spec string.

    Raises:
        SpecError: it does not; the message says what to write.
    """
    if averaging and not isinstance(attack, WeightAttack):
        raise SpecError(
            f"the attack {name} sends completions, and in this swarm nodes exchange weights; put it into a weight "
            f"attack, as in boosted(attack={name!r})"
        )
    if not averaging and isinstance(attack, WeightAttack):
        raise SpecError(
            f"the attack {name} sends weights, and in this swarm nodes exchange completions; give the suite averaging, "
            f"or name the inner attack alone"
        )


def check_rule(defense: Defense, name: str) -> None:
    """See that a defense joins weights; `name` is its spec string.

    Raises:
        SpecError: it inspects completions.
    """
    if name != NONE and not isinstance(defense, Aggregation):
        raise SpecError(
            f"the defense {name} inspects completions, and in this swarm nodes exchange weights; choose an aggregation "
            "(see `thiefbench list aggregations`) or none"
        )
