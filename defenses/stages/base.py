"""The contract of a stage check: what the other participants of a pipeline make of a stage after a round.

A new stage check is one class with a `name` and the method `check`, declared under the entry-point group
``thiefbench.stage_checks`` or named as ``path/to/file.py:Class``. It is written wherever a defense is. It does not see
which stage is malicious. Every stage has a check of its own, with a state of its own.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, cast

from thiefbench.defenses.base import DefenderView, Defense, Requirement, Verdict

if TYPE_CHECKING:  # as in `defenses/base.py`
    import torch

PIPELINE: Final = cast(Requirement, "pipeline")
"""What every stage check has in `requires`: the node is a pipeline of stages."""


@dataclass(frozen=True)
class StageVerdict:
    """What a stage check makes of one stage in one round.

    Attributes:
        action: "accept"; "reject" takes the stage's weights back to those before the round and replaces its participant
            by an honest one.
        score: how suspicious it is, in a unit that the check chooses; None if it has none.
        reason: a few words for reports.
    """

    action: Literal["accept", "reject"] = "accept"
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Signal:
    """What passed one boundary between two stages in the update of a round.

    Attributes:
        mean: over the tokens of all passes, float32, shape (hidden,).
        rms: the root of the mean square of its numbers.
        tokens: how many tokens there were.
    """

    mean: torch.Tensor
    rms: float
    tokens: int


@dataclass(frozen=True, eq=False)
class Recomputed:
    """What another participant gets that repeats a stage's work of a round.

    Attributes:
        weights: the stage's weights after the round, float32, shape (size,): those before it, and one update from the
            activations and gradients that the stage received.
        sent_error: the largest difference between what the stage sent in a pass and what the other participant
            computes, relative to the largest number computed; infinite if the stage sent nothing sound.
    """

    weights: torch.Tensor
    sent_error: float


@dataclass(frozen=True, eq=False)
class StageView:
    """What the other participants know of a stage after a round.

    Weights are those of a stage's layers, without embeddings, head and final norm. They must not be modified.

    Attributes:
        round: the round's number, from 1.
        stage, stages: the stage's number, from 1, and how many there are.
        received: activations that the stage received; None if it was skipped, or if nothing was learned.
        sent: activations that it sent to the next stage; None as before, or if nothing sound arrived.
        gradient: gradients with respect to `received`, which it sent back; None as before.
        weights: of every stage, after the round, float32, shape (stages, size).
        before: the same before the round, after lost stages were recovered.
        before_recovery: the same before that; None if no stage was lost.
        rng: keyed by (seed, round, stage) and the other stages' weights after the round. A stage that knows the seed
            and its own weights cannot foresee what is drawn.
        recompute: repeats the stage's work of the round; it takes as long as the stage's update.
    """

    round: int
    stage: int
    stages: int
    received: Signal | None
    sent: Signal | None
    gradient: Signal | None
    weights: torch.Tensor
    before: torch.Tensor
    rng: random.Random
    recompute: Callable[[], Recomputed]
    before_recovery: torch.Tensor | None = None


class StageCheck(Defense):
    """A check of a pipeline's stages. Constructor arguments are its parameters, as of any defense.

    It counts as a defense, so it is named wherever a defense is, and what inspects completions inspects none here.
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({PIPELINE})

    @abstractmethod
    def check(self, view: StageView) -> StageVerdict:
        """The verdict on a stage after a round; called for every stage, in order, once a round.

        It must give one for all finite numbers. Checks that see equal views must give equal verdicts.
        """

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """Accept all completions: in a pipeline, nobody sends any."""
        return [Verdict() for _ in view.completions]
