"""Advantages and losses, as pure functions: the formula can be read off the code.

GRPO is Shao et al., arXiv:2402.03300; the form without clipping, old policy and KL term is the one of the source paper
(arXiv:2511.09780): loss = -mean over completions of mean over tokens of ratio * A, ratio = pi / stop_grad(pi). With a
KL term every token's loss gains kl * (q / p - log(q / p) - 1), p of the policy and q of the start model: the estimator
of GRPO's equation 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

STD_EPSILON = 1e-4  # as TRL's GRPOTrainer adds it


def group_advantages(rewards: torch.Tensor, kept: torch.Tensor, scale_rewards: bool = True) -> torch.Tensor:
    """Advantages relative to each group: A_i = (r_i - mean) / (std + 1e-4), with the sample standard deviation.

    Args:
        rewards: shape (groups, G).
        kept: bool, same shape; rows outside are in no mean and get advantage 0, as do all rows of a group with fewer
            than two kept rows.
        scale_rewards: divide by the standard deviation.

    Returns:
        shape (groups, G).
    """
    rewards, weight = rewards.double(), kept.double()
    count = weight.sum(1, keepdim=True)
    mean = (rewards * weight).sum(1, keepdim=True) / count.clamp(min=1)
    centred = (rewards - mean) * weight
    std = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    advantages = centred / (std + STD_EPSILON) if scale_rewards else centred
    return torch.where(count >= 2, advantages, 0.0).float()


@dataclass(frozen=True)
class Batch:
    """Part of a pool, as a learner sees it.

    Attributes:
        logprobs: current log-probs of the tokens, with gradient, shape (rows, length).
        old_logprobs: those of the policy that generated them; None on-policy.
        mask: 1.0 on real tokens, same shape.
        token_weights: factors on each token's loss, same shape.
        advantages: shape (rows,).
        pool_rows: rows in the whole pool, which the loss is a mean over.
        max_length: the sampler's length limit.
        reference_logprobs: those of the start model, shape as `logprobs`; None without a KL term.
        kl: the KL term's weight.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    mask: torch.Tensor
    token_weights: torch.Tensor
    advantages: torch.Tensor
    pool_rows: int
    max_length: int
    reference_logprobs: torch.Tensor | None = None
    kl: float = 0.0


Learner = Callable[[Batch, float], torch.Tensor]


def token_losses(batch: Batch, epsilon: float) -> torch.Tensor:
    """-min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A) plus the KL term per token, shape (rows, length)."""
    old = batch.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    ratio = (batch.logprobs - old).exp()
    advantages = batch.advantages[:, None]
    objective = torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)
    losses = -objective * batch.token_weights
    if batch.reference_logprobs is not None:
        apart = batch.reference_logprobs - batch.logprobs
        losses = losses + batch.kl * (apart.exp() - apart - 1)
    return losses * batch.mask


def grpo(batch: Batch, epsilon: float) -> torch.Tensor:
    """Mean over completions of the mean over their tokens."""
    lengths = batch.mask.sum(1).clamp(min=1)
    return (token_losses(batch, epsilon).sum(1) / lengths).sum() / batch.pool_rows


def dr_grpo(batch: Batch, epsilon: float) -> torch.Tensor:
    """Sum over tokens divided by a constant, the length limit (Liu et al., arXiv:2503.20783)."""
    return token_losses(batch, epsilon).sum() / (batch.pool_rows * batch.max_length)


LEARNERS: dict[str, Learner] = {"grpo": grpo, "dr_grpo": dr_grpo}


def scaled_poison_effect(poisoned: int, group: int, sample_std: bool = False) -> float:
    """A * c / G for c poisoned completions at reward 1 among G - c at reward 0.

    With the population standard deviation it is sqrt(rho (1 - rho)), rho = c / G (arXiv:2511.09780); the sample
    standard deviation makes it smaller by sqrt((G - 1) / G).
    """
    rho = poisoned / group
    effect: float = (rho * (1 - rho)) ** 0.5
    return effect * ((group - 1) / group) ** 0.5 if sample_std else effect
