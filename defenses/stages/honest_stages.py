"""What `oracle` means in a pipeline: the malicious stage is replaced after the first round."""

from __future__ import annotations

from typing import Any, ClassVar

from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView

REASON = "labelled as malicious"
"""The reason of its rejection."""


class HonestStages(StageCheck):
    """Reject the malicious stage once, in the first round. It knows which one that is, so it is an anchor.

    From then on an honest participant runs that stage. No plug-in name stands for it: the benchmark takes it for the
    defense `oracle`, which cannot be submitted.

    Args:
        malicious: the malicious stage, from 1; None if there is none.
    """

    name: ClassVar[str] = "oracle"
    sees_labels: ClassVar[bool] = True

    def __init__(self, malicious: int | None = None) -> None:
        self.malicious = malicious
        self._replaced = False

    def check(self, view: StageView) -> StageVerdict:
        """Reject the malicious stage the first time, and accept everything else."""
        if view.stage != self.malicious or self._replaced:
            return StageVerdict()
        self._replaced = True
        return StageVerdict("reject", reason=REASON)

    def state(self) -> dict[str, Any]:
        """Whether the malicious stage has been replaced."""
        return {"replaced": self._replaced}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._replaced = state["replaced"]
