"""`recomputation`: another participant repeats a stage's work in some rounds, drawn at random."""

from __future__ import annotations

from typing import ClassVar

from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView


class Recomputation(StageCheck):
    """Repeat a share of the stages' work of a round, and reject a stage that sends or holds something else.

    Whoever repeats it needs the stage's weights and optimizer before the round, and the activations and gradients that
    it received. Its weights after the round must be those of one update, and its activations those that its layers
    compute. Each stage and round is drawn with the same probability, after the round, so that the stage cannot know.
    The expected cost is the probability, in updates of the whole pipeline.

    Args:
        share: probability that a stage's round is repeated, in (0, 1].
        tolerance: the largest accepted difference: of weights in lengths of the repeated update, of activations
            relative to the largest. Last bits differ between machines.
    """

    name: ClassVar[str] = "recomputation"

    def __init__(self, share: float = 0.25, tolerance: float = 0.01) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"recomputation: share must lie in (0, 1], got {share}")
        if not tolerance > 0:
            raise ValueError(f"recomputation: tolerance must be above 0, got {tolerance}")
        self.share, self.tolerance = share, tolerance

    def check(self, view: StageView) -> StageVerdict:
        """Reject a stage whose repeated work differs; accept a round that is not drawn."""
        if view.rng.random() >= self.share:
            return StageVerdict()
        place = view.stage - 1
        repeated = view.recompute()
        update = float((repeated.weights - view.before[place]).double().norm())
        apart = float((repeated.weights - view.weights[place]).double().norm())
        # An update of length 0 leaves the weights as they were, to their last bits.
        off = apart / max(update, 1e-6 * float(view.before[place].double().norm()), 1e-12)
        if off > self.tolerance:
            return StageVerdict("reject", off, "weights are not those of the update")
        if repeated.sent_error > self.tolerance:
            return StageVerdict("reject", min(repeated.sent_error, 1e30), "activations are not those of the weights")
        return StageVerdict(score=max(off, repeated.sent_error))
