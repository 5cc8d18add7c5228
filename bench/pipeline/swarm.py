"""A swarm of one node whose model is a pipeline: its stages may be lost, lie, and be checked.

A round is the engine's (`thiefbench.engine.swarm`); its update passes the stages (`thiefbench.pipeline.cohort`). After
it, the malicious stage adds to its weights, and every stage is checked. A rejected stage goes back to its weights
before the round, and an honest participant runs it from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thiefbench.attacks.stages.base import MessageView, StageAttack, StageAttackView
from thiefbench.defenses.stages.base import StageCheck, StageVerdict, StageView
from thiefbench.engine.keys import generator
from thiefbench.engine.round_record import Clock, RoundRecord
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.pipeline.cohort import Passage, PipelineCohort
from thiefbench.pipeline.lessons import lesson_view
from thiefbench.pipeline.line import Sending, Traffic
from thiefbench.pipeline.repeating import Repeated
from thiefbench.pipeline.report import StageRow
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.stages import commitment, lost, skip_schedule
from thiefbench.pipeline.weights import CohortState, StageWeights


class PipelineSwarm(Swarm):
    """One node, a pipeline of stages, one of them malicious.

    Args:
        pipeline: the stages.
        check: how the other participants check a stage; every stage has a copy of its own. None accepts all.
        spec: the swarm's settings: one node, none malicious.
        parts: the other arguments of `Swarm`, with a `PipelineBackend`. The attack is a `StageAttack`; the defense is
            never asked.

    Attributes:
        stage_rows: one row for every stage and round.
        weights: of the stages' layers.
        learned: what the malicious stage learned offline; None before it has. Swarms that differ only in their check,
            and in what follows, may take it from one another.

    Raises:
        SpecError: as `Swarm`; or the swarm or the model cannot be a pipeline.
    """

    def __init__(self, pipeline: PipelineSpec, check: StageCheck | None, spec: SwarmSpec, **parts: Any) -> None:
        pipeline.check(spec)
        super().__init__(spec, **parts)
        self.pipeline = pipeline
        self._cohort.lay(pipeline)
        self.stage_rows: list[StageRow] = []
        self._checks = [copy.deepcopy(check) for _ in range(pipeline.stages)]
        self._norms = [0.0] * pipeline.stages
        self.learned: torch.Tensor | None = None
        self.weights = StageWeights(self._cohort, pipeline)
        self._malicious = None if self.context.role == "control" else pipeline.malicious - 1

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1, with its losses and checks."""
        clock = Clock()
        with clock.phase("lessons"):
            self.learn()
        with clock.phase("stages"):
            gone = lost(self.pipeline.stages, self.pipeline.losses, generator(self.seed, "lost", number))
            unrecovered = self.weights.stacked() if gone else None
            for stage in gone:
                self.weights.recover(stage, self._norms)
            start = {name: tensor.clone() for name, tensor in self._cohort.state().items()}
            before = self.weights.stacked()
        self._cohort.passage, self._cohort.last = self._passage(number), None
        record = super().round(number)
        with clock.phase("stages"):
            traffic = [Traffic() for _ in before]
            if self._cohort.last is not None:
                traffic, self._norms = self._cohort.line.traffic, self.weights.gradient_norms()
            altered = self._alter(number, before)
        with clock.phase("checks"):
            verdicts = self._verdicts(number, before, unrecovered, start, traffic, gone, altered)
            self._act(verdicts, start)
        return replace(record, seconds=record.seconds | clock.seconds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the malicious stage has learned, for a checkpoint beside the population's."""
        return {} if self.learned is None else {"stages/learned": self.learned}

    def state(self) -> dict[str, Any]:
        """The rest, as JSON."""
        return {
            "rows": [row.as_data() for row in self.stage_rows],
            "checks": [None if check is None else check.state() for check in self._checks],
            "norms": self._norms,
            "malicious": self._malicious,
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take back what `tensors` and `state` returned."""
        self.learned = tensors["stages/learned"].clone() if "stages/learned" in tensors else None
        self.stage_rows = [StageRow.from_data(row) for row in state["rows"]]
        for check, kept in zip(self._checks, state["checks"], strict=True):
            if check is not None:
                check.restore(kept)
        self._norms, self._malicious = list(state["norms"]), state["malicious"]

    @property
    def _cohort(self) -> PipelineCohort:
        cohort = self.population.cohorts[0]
        assert isinstance(cohort, PipelineCohort), "a pipeline is played by a PipelineBackend"
        return cohort

    def learn(self) -> None:
        """Let the malicious stage learn offline, once, from the start weights; a round does so if nobody has asked."""
        if self._malicious is None or self.learned is not None:
            return
        attack, tensors = self._attack, self.weights.of(self._malicious)
        start = self.weights.stacked()
        view = lesson_view(self.context, attack, self.policy, self._malicious + 1, start, tensors)
        learned = attack.learned(view) if self.context.role == "attack" else attack.placebo_learned(view)
        self.learned = self._sound(learned, len(self.weights.flat(self._malicious)), "learned")

    def _passage(self, number: int) -> Passage:
        """How the update of a round passes the stages."""
        pipeline = self.pipeline
        rng = generator(self.seed, "skipped", number)
        skips = skip_schedule(pipeline.stages, pipeline.skipped, pipeline.microbatches, rng)
        if self._malicious is None or self.context.role != "attack":
            return Passage(skips)
        attack = self._attack

        def sent(count: int, received: torch.Tensor, computed: torch.Tensor) -> object:
            return attack.sent(MessageView(number, count, received, computed))

        return Passage(skips, self._malicious, Sending(sent))

    def _alter(self, number: int, before: torch.Tensor) -> bool:
        """Let the malicious stage add to its weights; whether it did."""
        stage = self._malicious
        if stage is None:
            return False
        assert self.learned is not None, "it has learned before round 1"
        weights = self.weights.flat(stage)
        view = StageAttackView(
            round=number,
            stage=stage + 1,
            stages=self.pipeline.stages,
            learned=self.learned,
            weights=weights,
            update=weights - before[stage],
            rng=generator(self.seed, "stage", number),
        )
        added = self._attack.added(view)
        if added is None:
            return False
        self.weights.put(stage, weights + self._sound(added, len(weights), "added"))
        return True

    def _verdicts(
        self,
        number: int,
        before: torch.Tensor,
        unrecovered: torch.Tensor | None,
        start: CohortState,
        traffic: Sequence[Traffic],
        gone: Sequence[int],
        altered: bool,
    ) -> list[StageVerdict]:
        """Check every stage, and keep a row for each."""
        after, repeated, verdicts = self.weights.stacked(), Repeated(self._cohort, self.weights, start), []
        for stage, check in enumerate(self._checks):
            repeated.asked, seen = False, traffic[stage]
            view = StageView(
                round=number,
                stage=stage + 1,
                stages=self.pipeline.stages,
                received=seen.received.signal(),
                sent=seen.sent.signal(),
                gradient=seen.gradient.signal(),
                weights=after,
                before=before,
                rng=generator(self.seed, "stage check", number, stage, commitment(after, stage)),
                recompute=partial(repeated.stage, stage),
                before_recovery=unrecovered,
            )
            verdict = StageVerdict() if check is None else check.check(view)
            verdicts.append(verdict)
            mine = stage == self._malicious
            self.stage_rows.append(
                StageRow(
                    round=number,
                    stage=stage + 1,
                    malicious=mine,
                    lost=stage in gone,
                    altered=altered and mine,
                    passes=seen.passes,
                    skipped=seen.skipped,
                    refused=len(seen.refused),
                    refusal=seen.refused[0] if seen.refused else "",
                    action=verdict.action,
                    score=verdict.score,
                    reason=verdict.reason,
                    recomputed=repeated.asked,
                    moved=float((after[stage] - before[stage]).double().norm()),
                    bytes=seen.bytes,
                )
            )
        return verdicts

    def _act(self, verdicts: Sequence[StageVerdict], start: CohortState) -> None:
        """Take every rejected stage back to its state before the round, and give it an honest participant."""
        for stage, verdict in enumerate(verdicts):
            if verdict.action == "reject":
                self.weights.take_back(stage, start)
                self._malicious = None if stage == self._malicious else self._malicious

    @property
    def _attack(self) -> StageAttack:
        assert isinstance(self.attack, StageAttack), "checked before the swarm is made"
        return self.attack

    def _sound(self, vector: object, size: int, what: str) -> torch.Tensor:
        """A vector of the attack's.

        Raises:
            ValueError: it is none of the right shape and type.
        """
        if not isinstance(vector, torch.Tensor) or tuple(vector.shape) != (size,) or vector.dtype != torch.float32:
            raise ValueError(f"the attack {self.attack.name}: {what} gives a float32 vector of the shape ({size},)")
        return vector.detach()
