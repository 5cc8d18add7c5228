"""Which aggregation a cell's defense is: itself, the plain mean for `none`, the mean of honest vectors for `oracle`.

These two anchors inspect completions elsewhere. They stand here and not in `thiefbench.averaging`, whose code is part
of the identity of every cell that exchanges weights.
"""

from __future__ import annotations

from thiefbench.averaging.compatibility import NONE, check_rule
from thiefbench.defenses.aggregation.base import Aggregation
from thiefbench.defenses.aggregation.honest_mean import HonestMean
from thiefbench.defenses.aggregation.mean import Mean
from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import Defense
from thiefbench.engine.keys import key
from thiefbench.engine.spec import SpecError
from thiefbench.suite.execution.valid_verdicts import ValidatedRule
from thiefbench.suite.scenario import CellSpec


def check_aggregation(defense: Defense, name: str) -> None:
    """See that a defense says what a node adopts where weights are exchanged; `name` is its spec string.

    Raises:
        SpecError: it inspects completions.
    """
    if isinstance(defense, Oracle):
        return
    try:
        check_rule(defense, name)
    except SpecError as error:
        raise SpecError(str(error).removesuffix(f" or {NONE}") + f", {NONE} or oracle") from error


def aggregation_of(defense: Defense, spec: CellSpec) -> Aggregation:
    """The aggregation of a cell whose nodes exchange weights.

    Args:
        defense: the cell's, checked with `check_aggregation`.
        spec: the cell. In its placebo and its control, no sender is malicious.
    """
    if isinstance(defense, Aggregation):
        return ValidatedRule(defense)
    return HonestMean(_malicious(spec)) if isinstance(defense, Oracle) else Mean()


def _malicious(spec: CellSpec) -> list[str]:
    """The pseudonyms of a cell's malicious senders."""
    swarm = spec.swarm
    malicious = range(swarm.nodes - swarm.malicious, swarm.nodes) if spec.role == "attack" else ()
    return [pseudonym(spec.seed, node) for node in malicious]


def pseudonym(seed: int, node: int) -> str:
    """A sender's pseudonym in exchanges, as `AveragingSwarm` draws it; a test holds the two together."""
    return f"{key(seed, 'sender', node) & 0xFFFFFFFF:08x}"
