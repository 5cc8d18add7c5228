"""A swarm's settings: frozen values, part of a cell's identity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Final, Literal, get_args

from thiefbench.engine.heterogeneity import LATER, ChurnSpec, DelaySpec, NodeClass, SharingSpec, classes_of
from thiefbench.engine.heterogeneity import STRICT as STRICT
from thiefbench.engine.heterogeneity import SpecError as SpecError
from thiefbench.engine.reward_judge import Rewarding, RewardJudgeSpec
from thiefbench.engine.sampler import ControlTokens, sampler
from thiefbench.limits import MOST_COMPLETIONS
from thiefbench.tasks.base import Sampling, Topology

Role = Literal["attack", "placebo", "control"]
LossType = Literal["grpo", "dr_grpo", "dapo", "cispo", "gspo", "ftis", "gepo"]
Seeds = Literal["beacon", "announced"]
Logprobs = Literal["none", "reported", "recomputed"]
Batches = Literal["cohort", "node"]
Items = Literal["chosen", "committed", "drawn"]
Truth = Literal["public", "sender"]

MOST_DRAWN: Final = 8
"""An evaluation in which most outcomes are None draws at most this many times the requested completions."""


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise an error for a number that is out of range.

    Raises:
        SpecError: the number is out of range; the message names it and the limit.
    """
    if value < least:
        raise SpecError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise SpecError(f"{name} must be at most {most:,}, got {value:,}")


@dataclass(frozen=True)
class LearnerSpec:
    """How the policy learns from a pool.

    Attributes:
        loss: "grpo" (the paper's form), "dr_grpo", "dapo", "cispo", "gspo", "ftis" or "gepo";
            `thiefbench.engine.learning.grpo` has the formulas.
        learning_rate: Adam's, constant.
        beta1, beta2: Adam's decay rates.
        max_grad_norm: the gradient is clipped to this norm.
        epsilon: clipping range of the ratio; no effect on-policy, where the ratio is 1.
        scale_rewards: divide advantages by the group's standard deviation.
        kl: weight of the KL divergence from the start model, per token, added to the loss; the paper uses none (0).
        epsilon_high: the ratio's upper bound is 1 + this (DAPO's clip-higher, 0.28 there); None uses `epsilon`.
        ratio_cap: the upper bound of a token's truncated importance weight: F-TIS's C, and CISPO's 1 + eps_high.
        kl_gate: F-TIS's g, in nats per completion: rows with a negative advantage and at least this KL have no
            gradient.
        delta: the clip's second side (INTELLECT-2, arXiv:2505.07291; TRL's `delta`): an upper bound on the ratio, so
            that a larger ratio with a negative advantage has no gradient; None for the usual clip, which does not bound
            such ratios. No effect with ftis and cispo, which truncate their weights.
    """

    __pydantic_config__ = STRICT

    loss: LossType = "grpo"
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float = 1.0
    epsilon: float = 0.2
    scale_rewards: bool = True
    kl: float = 0.0
    epsilon_high: float | None = field(default=None, metadata=LATER)
    ratio_cap: float = field(default=2.0, metadata=LATER)
    kl_gate: float = field(default=50.0, metadata=LATER)
    delta: float | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossType):
            raise SpecError(f"loss must be one of {', '.join(get_args(LossType))}, got {self.loss!r}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise SpecError(f"{each.name} must be a finite number, got {value}")
        for name in ("kl", "kl_gate"):
            if not getattr(self, name) >= 0:
                raise SpecError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not self.ratio_cap > 0:
            raise SpecError(f"ratio_cap must be above 0, got {self.ratio_cap}")
        if self.epsilon_high is not None and not self.epsilon_high > 0:
            raise SpecError(f"epsilon_high must be above 0, or left out to take epsilon, got {self.epsilon_high}")
        if self.delta is not None and not self.delta > self.clip_range[1]:
            raise SpecError(f"delta must be above 1 + epsilon_high, {self.clip_range[1]:g} here, got {self.delta}")
        for name in ("learning_rate", "max_grad_norm", "epsilon"):
            if not getattr(self, name) > 0:
                raise SpecError(f"{name} must be above 0, got {getattr(self, name)}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise SpecError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")

    @property
    def clip_range(self) -> tuple[float, float]:
        """The lower and upper bound at which ratios are clipped."""
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return 1 - self.epsilon, 1 + high

    @property
    def needs_logprobs(self) -> bool:
        """Whether the loss needs the generator's log-probs, which are then sent along with completions."""
        return self.loss in ("ftis", "gepo")


@dataclass(frozen=True)
class SwarmSpec:
    """A swarm's settings: who answers what, and how nodes sample and learn.

    Attributes:
        topology: "vertical" (a node owns whole groups) or "horizontal" (every group is shared by all nodes).
        nodes: m, participants.
        malicious: f, the number of malicious nodes, which collude; the last f nodes by number.
        prompts: B, groups per round.
        group: G, completions per group.
        sampling: how honest nodes sample.
        learner: how they learn.
        seeds: where a slot's seed comes from: "beacon" (public and fixed after the weights, so that everyone knows a
            slot's seed) or "announced" (every node says which seed it used).
        items: which items a node answers in the vertical topology: "chosen" by the node when the beacon is known, as in
            the paper; "committed" by the node before the beacon; or "drawn" for the node.
        population: the classes of nodes that start from different models; empty for one class, the cell's model.
        logprobs: the generator's log-probs in a learner's ratio: "none" (ratio 1), "reported" by senders, or
            "recomputed" by every receiver with the generator's own model, whose weights must then be public.
        delay: by how many rounds samplers are behind the learner.
        churn: which nodes crash and recover.
        sharing: set if every node learns from its own selection of the groups only.
        truth: by whose answers and tests completions are rewarded: "public" (every node knows the task's), or "sender"
            (the receiver takes those that arrive with a group, as deployed swarms do; vertical topology only).
        reward: by what completions are rewarded: "rule" (the task's own reward), "judge" (a judging model), or "mixed"
            (the rule for items that have one, the judge for the others). Evaluations always use the rule.
        reward_judge: that judging model.
        control_tokens: "drawn" like any other token, or "excluded" from the support, all but EOS. A completion with a
            control token inside leaves its group, so a model is neither rewarded nor punished for it. If a collapsing
            model has come to write such tokens, it therefore stays collapsed where they are drawn.

    Raises:
        SpecError: f is not below m, B (vertical) or G (horizontal) is not divisible by m, or the settings contradict
            each other.
    """

    __pydantic_config__ = STRICT

    topology: Topology = "horizontal"
    nodes: int = 4
    malicious: int = 1
    prompts: int = 32
    group: int = 12
    sampling: Sampling = field(default_factory=Sampling)
    learner: LearnerSpec = field(default_factory=LearnerSpec)
    seeds: Seeds = "beacon"
    population: tuple[NodeClass, ...] = field(default=(), metadata=LATER)
    logprobs: Logprobs = field(default="none", metadata=LATER)
    delay: DelaySpec | None = field(default=None, metadata=LATER)
    churn: ChurnSpec | None = field(default=None, metadata=LATER)
    sharing: SharingSpec | None = field(default=None, metadata=LATER)
    items: Items = field(default="chosen", metadata=LATER)
    truth: Truth = field(default="public", metadata=LATER)
    control_tokens: ControlTokens = field(default="drawn", metadata=LATER)
    reward: Rewarding = field(default="rule", metadata=LATER)
    reward_judge: RewardJudgeSpec = field(default=RewardJudgeSpec(), metadata=LATER)

    @property
    def sampler(self) -> Sampling:
        """By what settings honest nodes draw tokens: `sampling`, with control tokens excluded if they are."""
        return sampler(self.sampling, self.control_tokens)

    @property
    def classes(self) -> list[int]:
        """The class of every node."""
        return classes_of(self.population, self.nodes)

    @property
    def mixed(self) -> bool:
        """Whether the swarm differs from the paper's, in which all nodes are equal and always present."""
        return bool(self.population or self.delay or self.churn or self.sharing or self.logprobs != "none")

    @property
    def homogeneous(self) -> bool:
        """Whether all honest nodes sample from, and learn with, the same weights."""
        return not (len(self.population) > 1 or self.sharing or (self.delay and self.delay.longest))

    def __post_init__(self) -> None:
        if self.seeds not in get_args(Seeds):
            raise SpecError(f"seeds must be {' or '.join(get_args(Seeds))}, got {self.seeds!r}")
        if self.items not in get_args(Items):
            raise SpecError(f"items must be one of {', '.join(get_args(Items))}, got {self.items!r}")
        for name in ("nodes", "prompts", "group"):
            check_range(name, getattr(self, name), 1, MOST_COMPLETIONS)
        if not math.isfinite(self.sampling.temperature):
            raise SpecError(f"temperature must be a finite number, got {self.sampling.temperature}")
        if self.prompts * self.group > MOST_COMPLETIONS:
            raise SpecError(
                f"prompts (B) times group (G) must be at most {MOST_COMPLETIONS:,}, got {self.prompts * self.group:,}"
            )
        if not 0 <= self.malicious < self.nodes:
            raise SpecError(f"malicious must lie between 0 and nodes - 1 = {self.nodes - 1}, got {self.malicious}")
        if self.group < 2:
            raise SpecError("group must be at least 2: an advantage is relative to the group")
        shared, name = (self.group, "group (G)") if self.topology == "horizontal" else (self.prompts, "prompts (B)")
        if self.topology not in ("vertical", "horizontal"):
            raise SpecError(f"topology must be vertical or horizontal, got {self.topology!r}")
        if shared % self.nodes:
            fitting = [str(n) for n in range(shared - shared % self.nodes, shared + self.nodes + 1, self.nodes) if n][
                :2
            ]
            raise SpecError(
                f"{self.topology}: {name} = {shared} is not divisible by nodes (m) = {self.nodes}; "
                f"try {' or '.join(fitting)}"
            )
        if self.logprobs not in get_args(Logprobs):
            raise SpecError(f"logprobs must be one of {', '.join(get_args(Logprobs))}, got {self.logprobs!r}")
        classes_of(self.population, self.nodes)  # raises an error if the shares are invalid
        if self.topology == "horizontal" and any(each.domain for each in self.population):
            raise SpecError("in the horizontal topology all nodes answer the same items; domains need the vertical one")
        if self.sharing and self.topology != "vertical":
            raise SpecError("sharing takes whole groups of others, which the vertical topology has")
        if self.control_tokens not in get_args(ControlTokens):
            raise SpecError(
                f"control_tokens must be {' or '.join(get_args(ControlTokens))}, got {self.control_tokens!r}"
            )
        if self.truth not in get_args(Truth):
            raise SpecError(f"truth must be {' or '.join(get_args(Truth))}, got {self.truth!r}")
        if self.truth == "sender" and self.topology != "vertical":
            raise SpecError(
                "truth: sender needs the vertical topology, in which a group's answer and tests come from the one node "
                "that answers it"
            )
        if self.reward not in get_args(Rewarding):
            raise SpecError(f"reward must be one of {', '.join(get_args(Rewarding))}, got {self.reward!r}")
        if self.reward == "rule" and self.reward_judge != RewardJudgeSpec():
            raise SpecError(
                "reward_judge is the judge of reward: judge and reward: mixed; set one of them, or leave it out"
            )
        if self.learner.needs_logprobs and self.logprobs == "none":
            raise SpecError(
                f"the learner {self.learner.loss} divides by the generators' log-probs; set logprobs: reported or "
                "recomputed"
            )
