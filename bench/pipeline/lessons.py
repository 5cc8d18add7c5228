"""What a malicious stage has before round 1: its own copy of the start model, in which only its own layers learn."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thiefbench.attacks.base import AttackerView, Slot
from thiefbench.attacks.stages.base import Examples, LessonView, StageAttack
from thiefbench.engine.context import SwarmContext, items_of
from thiefbench.engine.keys import generator
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.views.attacker import AttackerPolicy


def lesson_view(
    context: SwarmContext,
    attack: StageAttack,
    policy: Policy,
    number: int,
    start: torch.Tensor,
    stage: Mapping[str, torch.Tensor],
) -> LessonView:
    """The offline view of a malicious stage.

    Args:
        context: the swarm's.
        attack: picks the questions, as many as its `lessons`.
        policy: the start model, which is not modified.
        number: the stage's, from 1.
        start: the start weights of all stages, shape (stages, size).
        stage: the stage's tensors, by name.
    """
    rng = generator(context.seed, "lessons")
    granted = [context.views.item(item) for item in items_of(context.task, "train")]
    items = attack.choose_items(granted, min(attack.lessons, len(granted)), rng)
    slots = tuple(Slot(item, 0, group, 0) for group, item in enumerate(items))
    sampler = AttackerPolicy(policy, context.task, context.spec.sampler, (context.seed, "offline"))
    view = AttackerView(0, slots, context.task, generator(context.seed, "offline", "attack"), sampler)

    def taught(
        examples: Examples, steps: int, learning_rate: float, changed: torch.Tensor | None = None
    ) -> torch.Tensor:
        own = of_stage(policy if changed is None else with_change(policy, stage, changed), tuple(stage))
        student = AttackerPolicy(own, context.task, context.spec.sampler, (context.seed, "taught"))
        after = student.taught(examples, steps, learning_rate).policy.weights()
        return torch.cat(
            [(after[name].detach().float() - start.detach().float()).reshape(-1) for name, start in stage.items()]
        )

    return LessonView(view, taught, number, start)


def with_change(policy: Policy, stage: Mapping[str, torch.Tensor], changed: torch.Tensor) -> Policy:
    """A copy of a policy whose stage has other weights.

    Args:
        policy: the start model, which is not modified.
        stage: the stage's tensors, by name.
        changed: what is added to them, float32, shape (size,).
    """
    copied = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    parts = torch.split(changed, [tensor.numel() for tensor in stage.values()])
    weights = copied.weights()
    with torch.no_grad():
        for (name, tensor), part in zip(stage.items(), parts, strict=True):
            weights[name].copy_(tensor.detach().float() + part.view(tensor.shape))
    return copied


def of_stage(policy: Policy, names: Sequence[str]) -> Policy:
    """The same model as a policy of which only the named tensors are trainable; its copies made by type are alike."""

    class StagePolicy(Policy):
        """A policy whose `weights` are a stage's."""

        def weights(self) -> Mapping[str, torch.Tensor]:
            """The stage's tensors by name."""
            everything: Any = super().weights()
            return {name: everything[name] for name in names}

    return StagePolicy(policy.model, policy.tokenizer)
