"""The fast sampling loop: keyed Gumbel-max, prompts prefilled once, finished rows compacted away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from thiefbench.engine.model.noise import gumbel
from thiefbench.engine.model.policy import Policy, Prefix
from thiefbench.engine.model.stepping import stepper
from thiefbench.engine.sampler import ExcludingSampling
from thiefbench.tasks.base import Completion, Sampling

# A linear layer's last bits depend on very small batch sizes, so a live batch is padded up to this many rows.
FEWEST_ROWS = 16
# More rows than this are decoded one batch after another: memory is bounded, and a larger batch is no faster.
MOST_ROWS = 512
# Rows are dropped from the batch once this share of it has finished: copying the cache costs about one step.
COMPACT_AT = 0.25
# Steps between two counts of the rows that still run. A count waits for all work queued on a GPU, so there it is rare.
STEPS_PER_COUNT = {"cpu": 1, "cuda": 8}
# Elements of one stride in `_largest`: with 4 of them, both of its sorts are short at a vocabulary of 2,048.
STRIDE = 4


@dataclass(frozen=True)
class NearTies:
    """Take a random token among those whose score is near that of the token drawn, by another key.

    Attributes:
        margin: by how much the score (scaled logit plus noise) may be lower.
        keys: for each completion, the key that chooses among them, with equal probabilities.
    """

    margin: float
    keys: Sequence[int]


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    logprobs: bool = False,
    prefix: Prefix | None = None,
    near: NearTies | None = None,
) -> list[Completion]:
    """Sample one completion per row.

    Args:
        policy: the model to sample from.
        prompts: distinct prompts, as token ids.
        rows: for each completion, the prompt it answers.
        keys: for each completion, its noise key (`noise.key`).
        sampling: temperature, support and length limit.
        logprobs: also return each token's log-prob at the sampler's temperature, over the whole vocabulary.
        prefix: the prompts' forward pass, from `Policy.prefill`, if they have already been run.
        near: sample a completion that a replay with a tolerance for near-ties accepts.

    Returns:
        Completions in the order of `rows`. The noise depends only on the keys; the last bits of logits depend on the
        batch, so two batch plans agree except at near-ties.
    """
    order = list(range(len(rows)))
    if prefix is None:  # prompts of similar length are run together: less padding
        order.sort(key=lambda i: (len(prompts[rows[i]]), rows[i]))
    completions: dict[int, Completion] = {}
    for start in range(0, len(rows), MOST_ROWS):
        batch = order[start : start + MOST_ROWS]
        used, own_prefix = list(range(len(prompts))), prefix
        if own_prefix is None:
            used = list(dict.fromkeys(rows[i] for i in batch))
            with torch.inference_mode():
                own_prefix = policy.prefill([prompts[prompt] for prompt in used])
        index = {prompt: i for i, prompt in enumerate(used)}
        ties = near and NearTies(near.margin, [near.keys[i] for i in batch])
        decoded = _decode(
            policy, own_prefix, [index[rows[i]] for i in batch], [keys[i] for i in batch], sampling, logprobs, ties
        )
        completions |= dict(zip(batch, decoded, strict=True))
    return [completions[i] for i in range(len(rows))]


@torch.inference_mode()
def _decode(
    policy: Policy,
    prefix: Prefix,
    rows: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    logprobs: bool,
    near: NearTies | None,
) -> list[Completion]:
    """`sample` for rows that are decoded together."""
    count = len(rows)
    filler = [i % count for i in range(count, max(count, FEWEST_ROWS))]
    device = policy.device
    prompt = torch.tensor([rows[i] for i in (*range(count), *filler)], device=device)
    row_keys = torch.tensor([keys[i] for i in (*range(count), *filler)], device=device)
    tie_keys = torch.tensor([near.keys[i] for i in (*range(count), *filler)], device=device) if near else row_keys
    batch = stepper(policy, prefix, prompt)

    tokens = torch.full((len(prompt), sampling.max_new_tokens), policy.pad, device=device)
    token_logprobs = torch.zeros(tokens.shape, device=device)
    lengths = torch.full((len(prompt),), sampling.max_new_tokens, device=device)
    live = torch.arange(len(prompt), device=device)  # batch row -> completion
    running = torch.ones(len(prompt), dtype=torch.bool, device=device)  # of the live rows
    hidden = prefix.last.index_select(0, prompt)
    barred = excluded(policy, sampling)
    steps_per_count = STEPS_PER_COUNT["cpu" if device.type == "cpu" else "cuda"]
    for step in range(sampling.max_new_tokens):
        logits = policy.head(hidden)
        chosen = choose(without(logits, barred), row_keys, step, sampling, (near.margin, tie_keys) if near else None)
        tokens[live, step] = torch.where(running, chosen, policy.pad)
        if logprobs:
            scores = (logits / sampling.temperature).log_softmax(-1).gather(1, chosen[:, None])[:, 0]
            token_logprobs[live, step] = torch.where(running, scores, 0.0)
        ended = running & (chosen == policy.eos)
        lengths[live] = torch.where(ended, step + 1, lengths[live])
        running &= ~ended
        if step + 1 == sampling.max_new_tokens:
            break
        if (step + 1) % steps_per_count == 0:
            left = int(running.sum())
            if left == 0:
                break
            if left <= (1 - COMPACT_AT) * len(live) and len(live) > FEWEST_ROWS:
                # Running rows first; finished ones stay only to keep the batch at its smallest size.
                kept = torch.argsort(~running, stable=True)[: max(left, FEWEST_ROWS)]
                batch.keep(kept)
                live, running, chosen, row_keys = live[kept], running[kept], chosen[kept], row_keys[kept]
                tie_keys = tie_keys[kept]
        hidden = batch.step(chosen)
    return _completions(policy, tokens[:count], lengths[:count], token_logprobs if logprobs else None)


def choose(
    logits: torch.Tensor,
    row_keys: torch.Tensor,
    step: int,
    sampling: Sampling,
    near: tuple[float, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Gumbel-max over the support: the token whose scaled logit plus keyed noise is largest, shape (rows,).

    With `near` (see `NearTies`), a token whose sum is at most the margin below the largest.
    """
    scores, candidates = support(logits, sampling)
    drawn = scores + gumbel(row_keys, step, candidates)
    if near is not None:
        margin, tie_keys = near
        passing = drawn >= drawn.amax(1, keepdim=True) - margin
        drawn = gumbel(tie_keys, step, candidates).masked_fill(~passing, -torch.inf)
    return candidates.gather(1, drawn.argmax(1, keepdim=True))[:, 0]


def excluded(policy: Policy, sampling: Sampling) -> torch.Tensor | None:
    """The ids of the tokens that are never drawn, whatever their logits; None if there are none."""
    barred = sorted(policy.special - {policy.eos}) if isinstance(sampling, ExcludingSampling) else []
    return torch.tensor(barred, device=policy.device) if barred else None


def without(logits: torch.Tensor, barred: torch.Tensor | None) -> torch.Tensor:
    """The logits with -inf for every barred token (`excluded`)."""
    return logits if barred is None else logits.index_fill(1, barred, -torch.inf)


def support(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates the sampler's settings let through.

    Args:
        logits: float32, shape (rows, vocabulary), -inf for tokens that are excluded.
        sampling: temperature, top_k and top_p, applied in this order.

    Returns:
        Scaled logits (float64, -inf outside the support) and token ids, both of shape (rows, candidates), best first.
    """
    width = logits.shape[1] if sampling.top_k == 0 else min(sampling.top_k, logits.shape[1])
    scores, candidates = _largest(logits, width)
    return nucleus(scores.double() / sampling.temperature, sampling.top_p), candidates


def nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Scaled logits, best first, with -inf outside the smallest set whose probability reaches `top_p`."""
    if top_p >= 1:
        return scores
    share = scores.softmax(1)
    before = share.cumsum(1) - share
    return scores.masked_fill(before >= top_p, -torch.inf)


def _largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`values.topk(count, 1)`, in half the time: a row's largest values lie in the strides with the largest maxima."""
    rows, width = values.shape
    strides = width // STRIDE
    if width % STRIDE or strides < 2 * count:
        return values.topk(count, 1)
    best = values.view(rows, STRIDE, strides).amax(1).topk(count, 1, sorted=False).indices
    columns = (best[:, None] + torch.arange(0, width, strides, device=values.device)[:, None]).flatten(1)
    kept, place = values.gather(1, columns).topk(count, 1)
    return kept, columns.gather(1, place)


@cache
def _numbers(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def _completions(
    policy: Policy, tokens: torch.Tensor, lengths: torch.Tensor, logprobs: torch.Tensor | None
) -> list[Completion]:
    # One int object per token, not per occurrence: a run's history holds millions of ids.
    numbers = _numbers(policy.vocabulary)
    rows = [[numbers[i] for i in row[:length]] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    ended = [row[-1] == policy.eos for row in rows]
    ids = [tuple(row[:-1] if end else row) for row, end in zip(rows, ended, strict=True)]
    scores = [None] * len(rows) if logprobs is None else [
        tuple(line[: len(row)]) for line, row in zip(logprobs.tolist(), rows, strict=False)
    ]  # fmt: skip
    texts = policy.decode(ids)
    return [Completion(*parts) for parts in zip(ids, texts, ended, scores, strict=True)]
