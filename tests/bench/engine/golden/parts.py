"""What is played for the golden values: a tiny swarm of every kind, and learners on given rows.

Each part gives plain data. What is an approximate number stands under one of the names in `comparing.TOLERANCES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch

from tests.bench.engine.golden.players import Forms, Letters, Turns, load
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.backends.base import RoundBackend
from thiefbench.engine.heterogeneity import ChurnSpec, DelaySpec, NodeClass, SharingSpec
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.learning.grpo import group_advantages
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import LearnerSpec, LossType, Role, SwarmSpec
from thiefbench.engine.swarm import Swarm
from thiefbench.tasks.base import Sampling
from thiefbench.zoo.models import resolve

Made = dict[str, Any]

SAMPLING = Sampling(temperature=0.9, top_k=40, max_new_tokens=16)
LEARNER = LearnerSpec(learning_rate=3e-3)
SWARM = SwarmSpec(nodes=4, malicious=1, prompts=4, group=4, sampling=SAMPLING, learner=LEARNER)
TEXTS = ("a = a, yes", "xyz", "Oui, 12")
"""Of what the learned models are asked how probable they find it."""


def swarm_of(
    seed: int,
    role: Role = "attack",
    models: Sequence[str] = ("bytes",),
    probing: bool = False,
    identities: int = 1,
    copies: int = 1,
    backend: RoundBackend | None = None,
    **fields: Any,
) -> tuple[Swarm, Turns]:
    """A swarm before its first round, and its defense; `fields` are those of its spec."""
    if len(models) > 1:
        fields["population"] = tuple(NodeClass(model, 1 / len(models)) for model in models)
    policies, defense = [load(model) for model in models], Turns()
    attack = Forms(probing, identities, copies)
    return Swarm(replace(SWARM, **fields), role, policies, Letters(), attack, defense, seed, backend=backend), defense


def _played(seed: int, rounds: int = 3, evaluated: int = 8, **settings: Any) -> Made:
    """Rounds of a swarm, an evaluation after them, and what became of the models."""
    swarm, defense = swarm_of(seed, **settings)
    start = [_weights(cohort.policy) for cohort in swarm.population.cohorts]
    made: Made = {}
    for number in range(1, rounds + 1):
        record = swarm.round(number)
        made[f"round {number}"] = {
            "rows": [_row(row) for row in record.rows],
            "seen by the defense": defense.told,
            "grad_norm": record.grad_norm,
        }
    made["evaluation"] = [_row(row) for row in swarm.evaluate(rounds, evaluated).rows] if evaluated else []
    kinds = dict(enumerate(start))
    made["models"] = [
        _learned(cohort.policy, kinds.get(cohort.number, start[cohort.kind])) for cohort in swarm.population.cohorts
    ]
    return made


def _row(row: CompletionRow) -> Made:
    """What a row says, without what says nothing."""
    made = {
        "at": f"{row.group}.{row.place} of node {row.node}" if row.phase == "train" else f"{row.phase} {row.place}",
        "item": row.item_id,
        "sender": row.sender,
        "tokens": " ".join(map(str, row.ids)) + (" EOS" if row.ended else ""),
        "text": row.text,
        "reward": row.reward,
        "refused": row.refused,
        "payload": row.payload,
        "outcome": row.outcome,
        "verdict": row.action if row.phase == "train" else "",
        "masked": list(row.token_weights or ()),
        "score": row.score,
        "reason": row.reason,
        "advantage": row.advantage,
        "cohort": f"{row.cohort} {row.label}".strip(),
        "version": row.version,
    }
    return {name: value for name, value in made.items() if not (value is None or value is False or value in ("", []))}


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.weights().items()}


def _learned(policy: Policy, start: dict[str, torch.Tensor]) -> Made:
    """How far and in which direction weights moved, and what the model says now."""
    moved = {name: weight.detach() - start[name] for name, weight in policy.weights().items()}
    return {"moved": _digest(moved), "log_probs": _says(policy)}


def _digest(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Of embeddings, every layer and output: length, and the part along a direction that is fixed and arbitrary."""
    made: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        part = re.search(r"embed|layers.\d|head", name)
        made.setdefault(part[0] if part else "norm", []).append(tensor.double().flatten())
    whole = {part: torch.cat(own) for part, own in made.items()}
    directions = {part: torch.cos(torch.arange(len(one), dtype=torch.float64)) for part, one in whole.items()}
    along = {part: one @ directions[part] / directions[part].norm() for part, one in whole.items()}
    return {part: [float(one.norm()), float(along[part])] for part, one in whole.items()}


def _says(policy: Policy) -> list[float]:
    answers = [(0, (*policy.encode(text), policy.eos)) for text in TEXTS]
    reading, made = ForwardCache(policy, [policy.encode("Is it?")]), {}
    for chunk in reading.chunks(answers):
        made |= dict(zip(chunk.answers, torch.split(chunk.logprobs(1.0).detach(), chunk.counts), strict=True))
    return [float(made[answer].sum()) for answer in answers]


def _roles() -> Made:
    """The same swarm as placebo and as control."""
    return {role: _played(8, rounds=1, role=role, evaluated=4) for role in ("placebo", "control")}


def _advantages() -> Made:
    """Of two groups with dropped rows, scaled and not, beside one of equal rewards and one with a single kept row."""
    rewards = torch.tensor([[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0]])
    kept = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    return {
        f"scaled {scaled}": {"advantage": group_advantages(rewards, kept, scaled).tolist()} for scaled in (True, False)
    }


def _lessons(policy: Policy) -> tuple[list[list[int]], list[TrainingRow]]:
    """Two groups of four rows, of several lengths, two of them equal, with every kind of verdict."""
    draws = np.random.RandomState(7)
    texts = ("ab", "abc def", "x", "abc def", "0", "a a a a a", "yes, so = a", "no")
    lessons = []
    for row, text in enumerate(texts):
        targets = (*policy.encode(text), policy.eos)
        told = tuple(float(value) for value in -4.0 + 1.5 * draws.standard_normal(len(targets)))
        masked = tuple((0.0, 1.0, 0.5)[token % 3] for token in range(len(targets)))
        lessons.append(
            TrainingRow(
                row // 4, targets, (0.0, 1.0, 0.5, 1.0)[(row + row // 4) % 4], kept=row != 2,
                token_weights=masked if row in (1, 4) else None, old_logprobs=None if row == 3 else told,
            )
        )  # fmt: skip
    return [policy.encode("Is it?"), policy.encode("One more, then?")], lessons


def _gradients() -> Made:
    """Loss and gradient of every learner, on-policy and off."""
    made: Made = {}
    for loss in get_args(LossType):
        for stale in (False, True):
            spec = replace(
                SWARM,
                learner=LearnerSpec(loss=loss, kl=0.05, epsilon_high=0.3, delta=3.0, kl_gate=4.0),
                logprobs="reported" if loss in ("ftis", "gepo") else "none",
            )
            cohort = Cohort(load(), spec, AcceptAll())
            _nudge(cohort.policy)
            prompts, lessons = _lessons(cohort.policy)
            rows = lessons if stale else [replace(lesson, old_logprobs=None) for lesson in lessons]
            advantages = cohort.advantages(rows)
            value = cohort.accumulate(prompts, rows, advantages)
            gradients = {name: w.grad for name, w in cohort.policy.weights().items() if w.grad is not None}
            made[f"{loss}, {'late' if stale else 'on time'}"] = {
                "advantage": advantages,
                "loss": value,
                "gradient": _digest(gradients),
            }
    return made


@torch.no_grad()
def _nudge(policy: Policy) -> None:
    """Away from the start, so that a KL term has something to say."""
    for number, weight in enumerate(policy.weights().values()):
        weight += 0.02 * torch.cos(torch.arange(weight.numel()) + number).view_as(weight)


def _updates() -> Made:
    """Three updates on given rows: the optimizer's moments, the clipped gradient, a pool that teaches nothing."""
    cohort = Cohort(load(), replace(SWARM, learner=replace(LEARNER, max_grad_norm=0.05)), AcceptAll())
    start, made = _weights(cohort.policy), {}
    prompts, lessons = _lessons(cohort.policy)
    pools = (lessons, lessons[::-1], [replace(lesson, reward=1.0) for lesson in lessons], lessons)
    for number, pool in enumerate(pools, 1):
        pool = [replace(lesson, old_logprobs=None, group=lesson.prompt) for lesson in pool]
        step = cohort.update(prompts, pool)
        made[f"update {number}"] = {"advantage": step.advantages, "grad_norm": step.grad_norm}
        made[f"after update {number}"] = _learned(cohort.policy, start)
    return made


def _trained() -> Made:
    """Draws of a model with a large vocabulary that was trained, with a nucleus and without."""
    policy = Policy.load(resolve("micro-math"))
    prompt = policy.encode("Tom has 3 apples and buys 4 more. How many apples does he have?\n")
    made: Made = {}
    for name, sampling in {
        "top 50": Sampling(top_k=50, max_new_tokens=24),
        "cooler, nucleus": Sampling(temperature=0.7, top_k=0, top_p=0.9, max_new_tokens=24),
    }.items():
        keys = [1000 + number for number in range(4)]
        done = sample(policy, [prompt], [0] * len(keys), keys, sampling, logprobs=True)
        made[name] = [
            {"text": each.text, "ended": each.ended, "log_probs": [sum(each.logprobs or ())]} for each in done
        ]
    return made


SWARMS: dict[str, dict[str, Any]] = {
    "horizontal": {"seed": 5},
    "vertical": {"seed": 8, "topology": "vertical", "seeds": "announced", "identities": 2, "evaluated": 0},
    "mixed swarm": {
        "seed": 3, "models": ("bytes", "pairs"), "malicious": 2, "logprobs": "reported", "probing": True,
        "evaluated": 4, "learner": replace(LEARNER, loss="ftis"),
    },
    "late swarm": {
        "seed": 1, "delay": DelaySpec("lognormal", rounds=3), "logprobs": "recomputed",
        "learner": replace(LEARNER, loss="gepo"),
    },
    "late by one": {"seed": 1, "delay": DelaySpec(rounds=1), "logprobs": "reported", "evaluated": 0},
    "crashes": {
        "seed": 3, "churn": ChurnSpec((1, 2), down=1, recovery="neighbours"), "evaluated": 4,
        "learner": replace(LEARNER, kl=0.1),
    },
    "chosen groups": {
        "seed": 3, "rounds": 2, "topology": "vertical", "sharing": SharingSpec(1, 2, per_sender=1), "copies": 2,
        "evaluated": 4,
    },
}  # fmt: skip
"""By name, the settings of swarms of every kind: those of `swarm_of`, rounds, and completions of the evaluation."""

PARTS: dict[str, Callable[[], Made]] = {
    "advantages": _advantages,
    "gradients": _gradients,
    "updates": _updates,
    "horizontal": partial(_played, **SWARMS["horizontal"]),
    "vertical": partial(_played, **SWARMS["vertical"]),
    "placebo and control": _roles,
    **{
        name: partial(_played, **settings)
        for name, settings in SWARMS.items()
        if name not in ("horizontal", "vertical")
    },
    "trained model": _trained,
}
"""By name, what makes a part's values."""
