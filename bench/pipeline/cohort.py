"""The model of a pipeline as it learns: microbatch by microbatch, each over its own path of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from thiefbench.engine.backends.local import LocalBackend
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.spec import SpecError
from thiefbench.pipeline.line import Line, Sent
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.stages import microbatches, split


@dataclass
class Passage:
    """How the next update passes the stages.

    Attributes:
        skips: the stages that every microbatch skips.
        malicious: the stage that sends what `sent` says; None if all are honest.
        sent: see `thiefbench.pipeline.line.Sent`.
    """

    skips: Sequence[frozenset[int]] = ()
    malicious: int | None = None
    sent: Sent | None = None


class PipelineCohort(Cohort):
    """A cohort whose updates pass a line of stages.

    Attributes:
        line: of its stages.
        passage: how the next update passes them; the swarm sets it before every round.
        last: prompts and rows of the last update, for whoever repeats it.
    """

    line: Line
    passage: Passage
    last: tuple[Sequence[Sequence[int]], Sequence[TrainingRow]] | None = None

    def lay(self, pipeline: PipelineSpec) -> None:
        """Divide the model into stages.

        Raises:
            SpecError: its layers cannot be found, or not be divided equally.
        """
        if not hasattr(self.policy.model.base_model, "layers"):
            raise SpecError("this model does not keep its layers in `layers`, so it cannot be split into stages")
        layers = split(self.policy.config.num_hidden_layers, pipeline.stages)
        self.line, self.passage = Line(self.policy.model, layers, self.policy.pad), Passage()
        self._count = pipeline.microbatches

    def accumulate(
        self,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[TrainingRow],
        advantages: Sequence[float],
        cache: ForwardCache | None = None,
    ) -> float:
        """As `Cohort.accumulate`, in microbatches; forward passes before the update are not used.

        A microbatch has some of the prompts and their rows. All rows count in the loss's divisor, whichever microbatch
        they are in, so that the gradients of the microbatches add up to that of the pool.
        """
        self.last = (prompts, rows)
        passage, total = self.passage, 0.0
        learned = [row.prompt for row, advantage in zip(rows, advantages, strict=True) if advantage != 0]
        with self.line.open(passage.malicious, passage.sent):
            for number, part in enumerate(microbatches(sorted(learned), self._count)):
                self.line.skipping = passage.skips[number] if passage.skips else frozenset()
                place = {prompt: i for i, prompt in enumerate(part)}
                moved = [replace(row, prompt=place.get(row.prompt, 0)) for row in rows]
                own = [
                    advantage if row.prompt in place else 0.0 for row, advantage in zip(rows, advantages, strict=True)
                ]
                total += super().accumulate([prompts[prompt] for prompt in part], moved, own)
        self.line.skipping = frozenset()
        return total


class PipelineBackend(LocalBackend):
    """A backend whose one cohort is a pipeline."""

    cohort_class: Any = PipelineCohort
