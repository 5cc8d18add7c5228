"""The fast sampling loop: keyed Gumbel-max, prompts prefilled once, finished rows compacted away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thiefbench.engine.noise import gumbel
from thiefbench.engine.policy import Policy, Prefix
from thiefbench.tasks.base import Completion, Sampling

# A linear layer's last bits depend on very small batch sizes, so a live batch is padded up to this many rows.
FEWEST_ROWS = 16
# Rows are dropped from the batch once this share of it has finished: copying the cache costs about one step.
COMPACT_AT = 0.25


class _GrowingCache:
    """Keys and values in buffers allocated once; each step writes one position and reads a view of what is there."""

    def __init__(self, prefix: Prefix, prompt: torch.Tensor, steps: int) -> None:
        self.at = int(prefix.mask.shape[1])
        self.keys = [self._buffer(layer, prompt, steps) for layer in prefix.keys]
        self.values = [self._buffer(layer, prompt, steps) for layer in prefix.values]
        self.visible = torch.ones(len(prompt), self.at + steps, dtype=torch.bool, device=prompt.device)
        self.visible[:, : self.at] = prefix.mask.index_select(0, prompt)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer][:, :, self.at] = keys[:, :, 0]
        self.values[layer][:, :, self.at] = values[:, :, 0]
        return self.keys[layer][:, :, : self.at + 1], self.values[layer][:, :, : self.at + 1]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.at

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all other rows."""
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                kept = torch.empty((len(rows), *buffer.shape[1:]), dtype=buffer.dtype, device=buffer.device)
                kept[:, :, : self.at] = buffer[:, :, : self.at].index_select(0, rows)
                buffers[layer] = kept
        self.visible = self.visible.index_select(0, rows)

    @staticmethod
    def _buffer(states: torch.Tensor, prompt: torch.Tensor, steps: int) -> torch.Tensor:
        _, heads, length, size = states.shape
        buffer = torch.empty((len(prompt), heads, length + steps, size), dtype=states.dtype, device=states.device)
        buffer[:, :, :length] = states.index_select(0, prompt)
        return buffer


@torch.inference_mode()
def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    logprobs: bool = False,
) -> list[Completion]:
    """Sample one completion per row.

    Args:
        policy: the model to sample from.
        prompts: distinct prompts, as token ids.
        rows: for each completion, the prompt it answers.
        keys: for each completion, its noise key (`noise.key`).
        sampling: temperature, support and length limit.
        logprobs: also return each token's log-prob at the sampler's temperature, over the whole vocabulary.

    Returns:
        Completions in the order of `rows`. The noise depends on nothing but the keys; logits depend on the batch in
        their last bits, so two batch plans agree up to near-ties.
    """
    if not rows:
        return []
    count = len(rows)
    filler = [i % count for i in range(count, max(count, FEWEST_ROWS))]
    device = policy.device
    prompt = torch.tensor([rows[i] for i in (*range(count), *filler)], device=device)
    row_keys = torch.tensor([keys[i] for i in (*range(count), *filler)], device=device)
    prefix = policy.prefill(prompts)
    cache = _GrowingCache(prefix, prompt, sampling.max_new_tokens)
    positions = prefix.lengths.index_select(0, prompt)[:, None]

    tokens = torch.full((len(prompt), sampling.max_new_tokens), policy.pad, device=device)
    token_logprobs = torch.zeros(tokens.shape, device=device)
    lengths = torch.full((len(prompt),), sampling.max_new_tokens, device=device)
    live = torch.arange(len(prompt), device=device)  # batch row -> completion
    running = torch.ones(len(prompt), dtype=torch.bool, device=device)  # of the live rows
    hidden = prefix.last.index_select(0, prompt)
    for step in range(sampling.max_new_tokens):
        logits = policy.head(hidden)
        chosen = choose(logits, row_keys, step, sampling)
        tokens[live[running], step] = chosen[running]
        if logprobs:
            scores = (logits / sampling.temperature).log_softmax(-1).gather(1, chosen[:, None])[:, 0]
            token_logprobs[live[running], step] = scores[running]
        ended = running & (chosen == policy.eos)
        lengths[live[ended]] = step + 1
        running &= ~ended
        left = int(running.sum())
        if left == 0 or step + 1 == sampling.max_new_tokens:
            break
        if left <= (1 - COMPACT_AT) * len(live) and len(live) > FEWEST_ROWS:
            # Running rows first; finished ones stay only to keep the batch at its smallest size.
            kept = torch.argsort(~running, stable=True)[: max(left, FEWEST_ROWS)]
            cache.keep(kept)
            live, running, chosen = live[kept], running[kept], chosen[kept]
            row_keys, positions = row_keys[kept], positions[kept]
        visible = cache.visible[:, None, None, : cache.at + 1]
        hidden = policy.forward(chosen[:, None], positions, visible, cache)[:, 0]
        cache.at += 1
        positions = positions + 1
    return _completions(policy, tokens[:count], lengths[:count], token_logprobs if logprobs else None)


def choose(logits: torch.Tensor, row_keys: torch.Tensor, step: int, sampling: Sampling) -> torch.Tensor:
    """Gumbel-max over the support: the token whose scaled logit plus keyed noise is largest, shape (rows,)."""
    scores, candidates = support(logits, sampling)
    return candidates.gather(1, (scores + gumbel(row_keys, step, candidates)).argmax(1, keepdim=True))[:, 0]


def support(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates the sampler's settings let through.

    Args:
        logits: float32, shape (rows, vocabulary).
        sampling: temperature, top_k and top_p, applied in this order.

    Returns:
        Scaled logits (float64, -inf outside the support) and token ids, both of shape (rows, candidates), best first.
    """
    width = logits.shape[1] if sampling.top_k == 0 else min(sampling.top_k, logits.shape[1])
    scores, candidates = logits.topk(width, dim=1)
    scores = scores.double() / sampling.temperature
    if sampling.top_p < 1:
        share = scores.softmax(1)
        before = share.cumsum(1) - share
        scores = scores.masked_fill(before >= sampling.top_p, -torch.inf)
    return scores, candidates


def _completions(
    policy: Policy, tokens: torch.Tensor, lengths: torch.Tensor, logprobs: torch.Tensor | None
) -> list[Completion]:
    rows = [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
    ended = [row[-1] == policy.eos for row in rows]
    ids = [tuple(row[:-1] if end else row) for row, end in zip(rows, ended, strict=True)]
    scores = [None] * len(rows) if logprobs is None else [
        tuple(line[: len(row)]) for line, row in zip(logprobs.tolist(), rows, strict=False)
    ]  # fmt: skip
    texts = policy.decode(ids)
    return [Completion(*parts) for parts in zip(ids, texts, ended, scores, strict=True)]
