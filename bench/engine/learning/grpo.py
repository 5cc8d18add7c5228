"""Advantages and losses, as pure functions whose code follows the formulas.

GRPO is Shao et al., arXiv:2402.03300; the form without clipping, old policy and KL term is the source paper's
(arXiv:2511.09780): loss = -mean over completions of mean over tokens of ratio * A, ratio = pi / stop_grad(pi). With a
KL term, kl * (q / p - log(q / p) - 1) is added to every token's loss, where p is the token's probability under the
policy and q under the start model: the estimator of GRPO's equation 4.

All learners except `cispo` use the same clipped objective per token (`token_losses`) with a different ratio, weight or
divisor. In their docstrings, pi is the learner's model and q the model that generated a completion, according to the
log-probs that came with it. If a sender reports these, they are only claims: a sender that understates them raises
every ratio up to its bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from thiefbench.engine.spec import LearnerSpec

STD_EPSILON = 1e-4  # as TRL's GRPOTrainer adds it
# A sender's log-prob is only a claim, and e^89 overflows a float32, so ratios are bounded by e^20.
MAX_LOG_RATIO = 20.0


def group_advantages(rewards: torch.Tensor, kept: torch.Tensor, scale_rewards: bool = True) -> torch.Tensor:
    """Advantages relative to each group: A_i = (r_i - mean) / (std + 1e-4), with the sample standard deviation.

    Args:
        rewards: shape (groups, G).
        kept: bool, same shape; the other rows are left out of the mean and get advantage 0, as do all rows of a group
            with fewer than two kept rows.
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
        mask: 1.0 on real tokens, 0 on padding, same shape; on padding, the other fields hold any finite number.
        token_weights: factors on each token's objective, same shape.
        advantages: shape (rows,).
        pool_rows: number of rows in the whole pool that count, over which the loss is a mean.
        max_length: the sampler's length limit.
        reference_logprobs: those of the start model, shape as `logprobs`; None without a KL term.
        kl: the KL term's weight.
        pool_tokens: number of tokens in all rows of the whole pool that count, by which dapo and cispo divide.
        expected: gepo's denominator, of each row's group (`group_expectation`), shape (rows,); None
            on-policy.
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
    pool_tokens: int = 0
    expected: torch.Tensor | None = None


Learner = Callable[[Batch, LearnerSpec], torch.Tensor]


def log_ratios(batch: Batch) -> torch.Tensor:
    """log(pi / q) of every token, without gradient; 0 on padding, and everywhere if on-policy. Shape (rows, length)."""
    if batch.old_logprobs is None:
        return torch.zeros_like(batch.mask)
    return (batch.logprobs.detach() - batch.old_logprobs) * batch.mask


def token_losses(batch: Batch, spec: LearnerSpec, log_ratio: torch.Tensor) -> torch.Tensor:
    """-min(ratio * A, clip(ratio, 1 - eps, 1 + eps_high) * A) * token weight, plus the KL term, per token.

    The clip does not bound ratios above 1 if A is negative; `LearnerSpec.delta` bounds the first ratio from above.

    Args:
        batch: the part of a pool to learn from.
        spec: clipping range.
        log_ratio: without gradient, shape (rows, length), or (rows, 1) where a row's tokens share one ratio. Larger
            values count as `MAX_LOG_RATIO`.

    Returns:
        shape (rows, length), 0 on padding. The gradient of a token's ratio is always ratio * d log pi of that token.
    """
    zero = batch.logprobs - batch.logprobs.detach()  # 0, with the token's gradient
    ratio = (log_ratio.clamp(max=MAX_LOG_RATIO) + zero).exp()
    advantages = batch.advantages[:, None]
    bounded = ratio if spec.delta is None else ratio.clamp(max=spec.delta)
    objective = torch.min(bounded * advantages, ratio.clamp(*spec.clip_range) * advantages)
    return _with_kl(batch, -objective * batch.token_weights)


def _with_kl(batch: Batch, losses: torch.Tensor) -> torch.Tensor:
    """Losses of tokens with the KL term, if there is one; 0 on padding. Shape (rows, length)."""
    if batch.reference_logprobs is not None:
        apart = batch.reference_logprobs - batch.logprobs
        losses = losses + batch.kl * (apart.exp() - apart - 1)
    return losses * batch.mask


def row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over each row's real tokens, 0 for rows without tokens; shape (rows,)."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def grpo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Mean over completions of the mean over their tokens."""
    return row_means(token_losses(batch, spec, log_ratios(batch)), batch.mask).sum() / batch.pool_rows


def dr_grpo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Sum over tokens divided by a constant, the length limit (Liu et al., arXiv:2503.20783)."""
    return token_losses(batch, spec, log_ratios(batch)).sum() / (batch.pool_rows * batch.max_length)


def dapo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Mean over tokens, all with the same weight whatever their completion's length (Yu et al., arXiv:2503.14476).

    The paper divides by the tokens of a group and takes the mean over groups; this function, like TRL's GRPOTrainer,
    divides by the tokens of all kept rows of the pool. TRL's `bnpo` divides by those of its local batch; if that is the
    whole pool, as here, `dapo` and `bnpo` are the same loss. Clip-higher is `LearnerSpec.epsilon_high`. The paper's
    dynamic sampling and length penalty concern the choice and reward of completions and are not part of the loss.

    Raises:
        ValueError: the batch does not say how many tokens the pool has.
    """
    return token_losses(batch, spec, log_ratios(batch)).sum() / _pool_tokens(batch, "dapo")


def cispo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Clipped IS-weight Policy Optimization (MiniMax-M1, arXiv:2506.13585): it clips the weight and not the gradient.

    -(sum over tokens of sg(min(pi / q, C)) A log pi) / tokens, sg = stop gradient. A token beyond the cap still
    contributes a gradient, with the cap as its weight; in `dapo` it would contribute none. The weight has no lower
    limit; the paper sets its lower limit so low that it has no effect. C, the paper's 1 + eps_high, is
    `LearnerSpec.ratio_cap`; TRL's `cispo` takes the same number as `epsilon_high`. The paper divides by the tokens of a
    group; this function, like TRL, divides by those of all kept rows of the pool. `epsilon`, `epsilon_high` and `delta`
    have no effect. On-policy, every weight is 1 and the gradient is that of `dapo`, but the value differs from
    `dapo`'s.

    Raises:
        ValueError: the batch does not say how many tokens the pool has.
    """
    weights = log_ratios(batch).clamp(max=math.log(spec.ratio_cap)).exp()
    objective = weights * batch.advantages[:, None] * batch.logprobs
    return _with_kl(batch, -objective * batch.token_weights).sum() / _pool_tokens(batch, "cispo")


def _pool_tokens(batch: Batch, loss: str) -> int:
    """The number of tokens in the whole pool; raises ValueError if the batch does not say it."""
    if batch.pool_tokens < 1:
        raise ValueError(f"{loss} divides by the tokens of the whole pool; give Batch.pool_tokens")
    return batch.pool_tokens


def gspo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Group Sequence Policy Optimization (Zheng et al., arXiv:2507.18071): one ratio per completion.

    -mean_i min(s_i A_i, clip(s_i, 1 - eps, 1 + eps_high) A_i), s_i = (pi(y_i) / q(y_i))^(1 / |y_i|): the exponential of
    the mean over tokens of log(pi / q). It is computed in the paper's token form, a mean over tokens of s_it = sg(s_i)
    pi_t / sg(pi_t) (sg = stop gradient), which has the same value and gradient and lets a token weight scale only its
    token's part; s_i itself is always computed from all tokens. Ratios of completions are close to 1, so the paper
    clips at eps = 3e-4 and eps_high = 4e-4, not at `LearnerSpec`'s default of 0.2.
    """
    sequence = row_means(log_ratios(batch), batch.mask)[:, None]
    return row_means(token_losses(batch, spec, sequence), batch.mask).sum() / batch.pool_rows


def ftis(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Filtered Truncated Importance Sampling (Blagoev et al., arXiv:2605.22537), for swarms of different models.

    -mean_i mean_t min(sg(pi) / q, C) min(R A_i, clip(R, 1 - eps, 1 + eps_high) A_i), R = pi / sg(pi), with A_i set to 0
    where A_i <= 0 and KL_i >= g (such a row stays in its group's mean and standard deviation). This is `grpo` in its
    on-policy form with filtered advantages and truncated weights, which multiply the token weights.

    The objective, C = 2, g = 50 and one KL value per completion are taken from a summary of the paper, not from the
    paper itself. Our own choices are that the truncated weight has no gradient, as is usual, and the estimate of KL_i,
    which the summary does not give: the sum over tokens of pi / q - 1 - log(pi / q), in nats. It is never negative, its
    mean over completions drawn from q is KL(q || pi) of whole completions, and a token that is improbable for the
    learner adds about log(q / pi). The paper writes KL(pi || q). Its estimate from the same tokens, the sum of (pi / q)
    log(pi / q) - pi / q + 1, gives such a token at most 1 nat: with g = 50, no completion of up to 50 tokens would ever
    be filtered for such tokens.
    """
    apart = log_ratios(batch).clamp(max=MAX_LOG_RATIO)
    weights = apart.exp().clamp(max=spec.ratio_cap)
    divergence = (apart.expm1() - apart).sum(1)
    passed = (batch.advantages > 0) | (divergence < spec.kl_gate)
    filtered = replace(
        batch,
        old_logprobs=None,
        advantages=torch.where(passed, batch.advantages, 0.0),
        token_weights=batch.token_weights * weights,
    )
    return grpo(filtered, spec)


def gepo(batch: Batch, spec: LearnerSpec) -> torch.Tensor:
    """Group Expectation Policy Optimization (Zhang et al., arXiv:2508.17850), for late completions.

    -mean_i min(w_i A_i, clip(w_i, 1 - eps, 1 + eps_high) A_i), w_i = p_i / E_q[q], p_i the exponential of the mean over
    tokens of log pi, E_q[q] as in `group_expectation`. The means of log-probs, the denominator without gradient, the
    clipping of w_i itself and the mean over completions follow the code published with the paper (HeteroRL_GEPO).

    Our own choices: the expectation is over kept rows only; the gradient is computed per token as in `gspo`, so that a
    token weight scales only its token's part; on-policy (no `expected`), w_i is 1, as if all completions of a group
    were equally probable, whereas the published code uses p_i / E_p[p]. Its authors also add a KL term of weight 0.005;
    this is `LearnerSpec.kl`, 0 by default.

    Raises:
        ValueError: the batch has the generators' log-probs and no `expected`.
    """
    if batch.expected is not None:
        log_weights = row_means(batch.logprobs.detach(), batch.mask) - batch.expected.log()
    elif batch.old_logprobs is None:
        log_weights = torch.zeros_like(batch.advantages)
    else:
        raise ValueError("gepo compares with what a group's generators expect; give Batch.expected")
    return row_means(token_losses(batch, spec, log_weights[:, None]), batch.mask).sum() / batch.pool_rows


LEARNERS: dict[str, Learner] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "cispo": cispo,
    "gspo": gspo,
    "ftis": ftis,
    "gepo": gepo,
}


def group_expectation(mean_logprobs: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """GEPO's E_q[q] = sum_i q_i^2 / sum_i q_i over a group's kept rows, q_i = exp(the generator's mean token log-prob).

    Args:
        mean_logprobs: shape (groups, G).
        kept: bool, same shape; the other rows are left out of the sums.

    Returns:
        shape (groups, G), the value of each row's group; 1 in groups without a kept row, 0 below e^-103.
    """
    log_probs = mean_logprobs.double().masked_fill(~kept, -torch.inf)
    # Exponentials are taken relative to the largest one, so that probabilities as small as e^-10000 do not give 0 / 0.
    expected = (torch.logsumexp(2 * log_probs, 1) - torch.logsumexp(log_probs, 1)).exp()
    expected = torch.where(kept.any(1), expected, 1.0)
    return expected[:, None].expand(mean_logprobs.shape).float()
