"""Whether attack and defense fit a pipeline, in which stages attack and are checked."""

from __future__ import annotations

from thiefbench.attacks.base import Attack
from thiefbench.attacks.stages.base import StageAttack
from thiefbench.defenses.base import Defense
from thiefbench.defenses.stages.base import StageCheck
from thiefbench.engine.spec import SpecError
from thiefbench.pipeline.spec import PipelineSpec

NONE = "none"
"""The spec string of the anchor that accepts everything; in a pipeline, every stage."""


def check_attack(pipeline: PipelineSpec | None, attack: Attack, name: str) -> None:
    """See that an attack is by a stage if its swarm is a pipeline, and only then; `name` is its spec string.

    Raises:
        SpecError: it is not; the message says what to write.
    """
    if pipeline and not isinstance(attack, StageAttack):
        raise SpecError(
            f"the attack {name} sends completions or weights, and in a pipeline one stage is malicious; put an attack "
            f"on completions into a stage attack, as in stage_backdoor(attack={name!r})"
        )
    if not pipeline and isinstance(attack, StageAttack):
        raise SpecError(
            f"the attack {name} is by a stage of a pipeline, and this swarm has none; give the suite pipeline, or name "
            "the inner attack alone"
        )


def check_defense(defense: Defense, name: str) -> None:
    """See that a defense checks stages; `name` is its spec string.

    Raises:
        SpecError: it inspects something else.
    """
    if name != NONE and not isinstance(defense, StageCheck):
        raise SpecError(
            f"the defense {name} checks no stages, which a pipeline consists of; choose a stage check (see `thiefbench "
            "list stage_checks`) or none"
        )
