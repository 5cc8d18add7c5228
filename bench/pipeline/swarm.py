"""A swarm of one node whose model is a pipeline: a round of the engine, with stages that may be lost, lie and be checked.

A round is the engine's (`thiefbench.engine.swarm`); its update passes the stages (`thiefbench.pipeline.cohort`). After
it, the malicious stage adds to its weights, and every stage is checked. A rejected stage goes back to its weights before
the round, and an honest participant runs it from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thiefbench.attacks.stages.base import MessageView, StageAttack, StageAttackView
from thiefbench.defenses.stages.base import Recomputed, StageCheck, StageVerdict, StageView
from thiefbench.engine.keys import generator
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.round_record import Clock, RoundRecord
from thiefbench.engine.spec import SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.pipeline.cohort import Passage, PipelineCohort
from thiefbench.pipeline.lessons import lesson_view
from thiefbench.pipeline.line import Traffic
from thiefbench.pipeline.report import StageRow
from thiefbench.pipeline.spec import PipelineSpec
from thiefbench.pipeline.stages import layer_tensors, lost, recovered, skip_schedule, split


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
        self._learned: torch.Tensor | None = None
        self._malicious = None if self.context.role == "control" else pipeline.malicious - 1

    def round(self, number: int) -> RoundRecord:
        """Play round `number`, counted from 1, with its losses and checks."""
        clock = Clock()
        with clock.phase("attack"):
            self._learn()
        with clock.phase("stages"):
            gone = lost(self.pipeline.stages, self.pipeline.losses, generator(self.seed, "lost", number))
            for stage in gone:
                self._recover(stage)
            start = {name: tensor.clone() for name, tensor in self._cohort.state().items()}
            before = self._weights()
        self._cohort.passage, self._cohort.last = self._passage(number), None
        record = super().round(number)
        with clock.phase("stages"):
            updated = self._cohort.last is not None
            traffic = self._cohort.line.traffic if updated else [Traffic() for _ in before]
            if updated:
                self._norms = self._gradient_norms()
            altered = self._alter(number, before)
        with clock.phase("inspect"):
            self._check(number, before, start, traffic, gone, altered)
        seconds = {name: record.seconds.get(name, 0.0) + clock.seconds.get(name, 0.0)
                   for name in (*record.seconds, *(each for each in clock.seconds if each not in record.seconds))}  # fmt: skip
        return replace(record, seconds=seconds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the malicious stage has learned, for a checkpoint beside the population's."""
        return {} if self._learned is None else {"stages/learned": self._learned}

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
        self._learned = tensors["stages/learned"].clone() if "stages/learned" in tensors else None
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

    def _tensors_of(self, stage: int) -> dict[str, torch.Tensor]:
        """The master weights of a stage's layers, by name."""
        cohort = self._cohort
        layers = split(cohort.policy.config.num_hidden_layers, self.pipeline.stages)[stage]
        return layer_tensors(cohort.masters, layers, layer_prefix(cohort.masters))

    def _weights(self) -> torch.Tensor:
        """The flat weights of all stages, shape (stages, size); a copy."""
        return torch.stack([flat(self._tensors_of(stage)) for stage in range(self.pipeline.stages)])

    @torch.no_grad()
    def _set(self, stage: int, weights: torch.Tensor) -> None:
        """Give a stage other weights.

        Raises:
            DivergedError: they are not finite.
        """
        if not bool(weights.isfinite().all()):
            raise DivergedError(f"the weights of stage {stage + 1} are not finite any more")
        tensors = self._tensors_of(stage)
        parts = torch.split(weights, [tensor.numel() for tensor in tensors.values()])
        shaped = {name: part.view(tensors[name].shape) for name, part in zip(tensors, parts, strict=True)}
        self._cohort.take({**self._cohort.masters, **shaped})

    def _gradient_norms(self) -> list[float]:
        """The norms of the stages' gradients in the last update, after clipping."""
        return [
            float(
                torch.linalg.vector_norm(
                    flat({name: _gradient(tensor) for name, tensor in self._tensors_of(stage).items()})
                )
            )
            for stage in range(self.pipeline.stages)
        ]

    def _recover(self, stage: int) -> None:
        """Give a lost stage its neighbours' mean weights and a fresh optimizer."""
        before, after = (flat(self._tensors_of(neighbour)) for neighbour in (stage - 1, stage + 1))
        self._set(stage, recovered(before, after, self._norms[stage - 1], self._norms[stage + 1]))
        for tensor in self._tensors_of(stage).values():
            self._cohort.optimizer.state.pop(tensor, None)

    def _learn(self) -> None:
        """Let the malicious stage learn offline, once, from the start weights."""
        if self._malicious is None or self._learned is not None:
            return
        attack, size = self._attack, len(flat(self._tensors_of(self._malicious)))
        view = lesson_view(self.context, attack, self._cohort.policy, self._tensors_of(self._malicious))
        learned = attack.learned(view) if self.context.role == "attack" else attack.placebo_learned(view)
        self._learned = self._sound(learned, size, "learned")

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

        return Passage(skips, self._malicious, sent)

    def _alter(self, number: int, before: torch.Tensor) -> bool:
        """Let the malicious stage add to its weights; whether it did."""
        stage = self._malicious
        if stage is None:
            return False
        assert self._learned is not None, "it has learned before round 1"
        weights = flat(self._tensors_of(stage))
        view = StageAttackView(
            round=number,
            stage=stage + 1,
            stages=self.pipeline.stages,
            learned=self._learned,
            weights=weights,
            update=weights - before[stage],
            rng=generator(self.seed, "stage", number),
        )
        added = self._attack.added(view)
        if added is None:
            return False
        self._set(stage, weights + self._sound(added, len(weights), "added"))
        return True

    def _check(
        self,
        number: int,
        before: torch.Tensor,
        start: dict[str, torch.Tensor],
        traffic: list[Traffic],
        gone: list[int],
        altered: bool,
    ) -> None:
        """Check every stage, then act on the verdicts, and keep a row for each."""
        after, repeated = self._weights(), Repeated(self, start, before)
        verdicts, recomputed = [], []
        for stage, check in enumerate(self._checks):
            repeated.asked = False
            seen = traffic[stage]
            view = StageView(
                round=number,
                stage=stage + 1,
                stages=self.pipeline.stages,
                received=seen.received.signal(),
                sent=seen.sent.signal(),
                gradient=seen.gradient.signal(),
                weights=after,
                before=before,
                rng=generator(self.seed, "stage check", number, stage),
                recompute=partial(repeated.stage, stage),
            )
            verdicts.append(StageVerdict() if check is None else check.check(view))
            recomputed.append(repeated.asked)
        repeated.done()
        for stage, verdict in enumerate(verdicts):
            self._note(number, stage, verdict, traffic[stage], stage in gone, altered, recomputed[stage],
                       float((after[stage] - before[stage]).double().norm()))  # fmt: skip
            if verdict.action == "reject":
                self._undo(stage, before[stage], start)
        if self._malicious is not None and verdicts[self._malicious].action == "reject":
            self._malicious = None

    def _undo(self, stage: int, before: torch.Tensor, start: dict[str, torch.Tensor]) -> None:
        """Take a stage back to its weights and optimizer before the round."""
        self._set(stage, before)
        for name, tensor in self._tensors_of(stage).items():
            moments = {kind: start[f"{kind}/{name}"] for kind in MOMENTS if f"{kind}/{name}" in start}
            if moments:
                self._cohort.optimizer.state[tensor] = {kind: value.clone() for kind, value in moments.items()}
            else:
                self._cohort.optimizer.state.pop(tensor, None)

    def _note(
        self,
        number: int,
        stage: int,
        verdict: StageVerdict,
        seen: Traffic,
        gone: bool,
        altered: bool,
        recomputed: bool,
        moved: float,
    ) -> None:
        """Keep a row of a stage."""
        mine = stage == self._malicious
        self.stage_rows.append(
            StageRow(
                round=number,
                stage=stage + 1,
                malicious=mine,
                lost=gone,
                altered=altered and mine,
                passes=seen.passes,
                skipped=seen.skipped,
                refused=len(seen.refused),
                refusal=seen.refused[0] if seen.refused else "",
                action=verdict.action,
                score=verdict.score,
                reason=verdict.reason,
                recomputed=recomputed,
                moved=moved,
                bytes=seen.bytes,
            )
        )

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


MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam keeps for a tensor."""


class Repeated:
    """The update of a round, repeated for those who ask; at most once, however many stages are asked about.

    One process plays all stages, so all of them are repeated. A participant of a real pipeline would repeat one stage,
    from the activations and gradients that this stage received, which are the same here: whoever sent something else
    than it computed sends it again.

    Args:
        swarm: the swarm, after the update.
        start: weights and moments before the update.
        before: the weights of the stages' layers before it.

    Attributes:
        asked: whether somebody has asked since this was last set to False.
    """

    def __init__(self, swarm: PipelineSwarm, start: dict[str, torch.Tensor], before: torch.Tensor) -> None:
        self._swarm, self._start, self._before = swarm, start, before
        self._result: tuple[torch.Tensor, list[float]] | None = None
        self.asked = False

    def stage(self, stage: int) -> Recomputed:
        """What another participant gets for a stage."""
        self.asked = True
        if self._result is None:
            self._result = self._repeat()
        weights, errors = self._result
        return Recomputed(weights[stage], errors[stage])

    def done(self) -> None:
        """Forget what was repeated."""
        self._result = None

    def _repeat(self) -> tuple[torch.Tensor, list[float]]:
        swarm, cohort = self._swarm, self._swarm._cohort
        if cohort.last is None:
            return self._before, [0.0] * len(self._before)
        now = {name: tensor.clone() for name, tensor in cohort.state().items()}
        grad_norm, traffic = cohort.grad_norm, cohort.line.traffic
        cohort.restore(self._start)
        cohort.update(*cohort.last)
        weights, errors = swarm._weights(), [each.sent_error for each in cohort.line.traffic]
        cohort.restore(now)
        cohort.grad_norm, cohort.line.traffic = grad_norm, traffic
        return weights, errors


def layer_prefix(weights: Mapping[str, torch.Tensor]) -> str:
    """What comes before a layer's number in the names of a model's weights, as "model.layers."."""
    name = next(name for name in weights if ".layers." in name or name.startswith("layers."))
    return name[: name.index("layers.") + len("layers.")]


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Tensors in one float32 vector, in their order; a copy."""
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors.values()])


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
