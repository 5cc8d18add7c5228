"""Which stage check a cell's defense is: itself, none for `none`, and for `oracle` the one that knows the labels.

These two anchors inspect completions elsewhere. They stand here and not in `thiefbench.pipeline`, whose code is part of
the identity of every cell whose node is a pipeline.
"""

from __future__ import annotations

from thiefbench.defenses.anchors import Oracle
from thiefbench.defenses.base import Defense
from thiefbench.defenses.stages.base import StageCheck
from thiefbench.defenses.stages.honest_stages import HonestStages
from thiefbench.engine.spec import SpecError
from thiefbench.pipeline.compatibility import NONE, check_defense
from thiefbench.suite.execution.valid_verdicts import ValidatedCheck
from thiefbench.suite.scenario import CellSpec


def check_stage_check(defense: Defense, name: str) -> None:
    """See that a defense checks stages; `name` is its spec string.

    Raises:
        SpecError: it inspects something else.
    """
    if isinstance(defense, Oracle):
        return
    try:
        check_defense(defense, name)
    except SpecError as error:
        raise SpecError(str(error).removesuffix(f" or {NONE}") + f", {NONE} or oracle") from error


def stage_check_of(defense: Defense, spec: CellSpec) -> StageCheck | None:
    """The stage check of a cell whose node is a pipeline; None accepts every stage.

    Args:
        defense: the cell's, checked with `check_stage_check`.
        spec: the cell. Only in its attacked form is a stage labelled: what a placebo's stage adds carries no payload.
    """
    if isinstance(defense, StageCheck):
        return ValidatedCheck(defense)
    if not isinstance(defense, Oracle):
        return None
    assert spec.pipeline is not None, "the caller looked"
    return HonestStages(spec.pipeline.malicious if spec.role == "attack" else None)
