"""The settings of a pipeline: frozen values, part of a cell's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thiefbench.engine.heterogeneity import STRICT
from thiefbench.engine.spec import SpecError, SwarmSpec, check_range
from thiefbench.limits import MOST_COMPLETIONS

MOST_STAGES = 1024


@dataclass(frozen=True)
class PipelineSpec:
    """How a model is split over the stages of a pipeline. The first and the last stage are honest and always there.

    Attributes:
        stages: into how many stages of equally many layers the model is split; the first also holds the embeddings and
            the last also holds the final norm and the output embeddings.
        malicious: the malicious stage, counted from 1; one between the first and the last.
        microbatches: into how many parts a round's prompts are divided, each of which passes the pipeline alone.
        skip: share of the stages that each microbatch of an update skips (SkipPipe, arXiv:2502.19913), rounded down to
            whole stages; sampling and evaluations pass all.
        losses: probability that a stage between the first and the last is lost before a round. It is recovered from its
            neighbours (CheckFree, arXiv:2506.15461).

    Raises:
        SpecError: a value is out of range.
    """

    __pydantic_config__ = STRICT

    stages: int = 4
    malicious: int = 2
    microbatches: int = 4
    skip: float = 0.0
    losses: float = 0.0

    def __post_init__(self) -> None:
        check_range("pipeline.stages", self.stages, 3, MOST_STAGES)
        check_range("pipeline.malicious", self.malicious, 2, self.stages - 1)
        check_range("pipeline.microbatches", self.microbatches, 1, MOST_COMPLETIONS)
        for name in ("skip", "losses"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value < 1):
                raise SpecError(f"pipeline.{name} is a share and must lie in [0, 1), got {value}")
        if self.skipped > self.stages - 2:
            raise SpecError(
                f"pipeline.skip: of {self.stages} stages, the first and the last are never skipped, so at most "
                f"{self.stages - 2} are, and {self.skip} asks for {self.skipped}"
            )

    @property
    def skipped(self) -> int:
        """How many stages a microbatch skips."""
        return math.floor(self.skip * self.stages + 1e-9)

    def check(self, swarm: SwarmSpec) -> None:
        """See that a swarm can be a pipeline.

        Raises:
            SpecError: it cannot; the message says what to write.
        """
        if swarm.nodes != 1 or swarm.malicious:
            raise SpecError(
                "a pipeline is one node whose participants are its stages, one of them malicious; set nodes: 1 and "
                "malicious: 0 in swarm"
            )
        others = {"population": swarm.population, "delay": swarm.delay, "churn": swarm.churn, "sharing": swarm.sharing}
        if given := next((name for name, value in others.items() if value), None):
            raise SpecError(f"a pipeline has no {given}; take it out, or take pipeline out")
        if swarm.truth != "public" or swarm.logprobs != "none" or swarm.reward != "rule":
            raise SpecError("in a pipeline no completions arrive from strangers; leave out truth, logprobs and reward")
        if swarm.learner.kl:
            raise SpecError("in a pipeline the learner has no KL term, which needs a second model; leave out kl")
