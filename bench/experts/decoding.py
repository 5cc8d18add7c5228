"""Sampling from an ensemble: the experts decode in step, and their next-token probabilities are mixed.

The loop is the engine's (`thiefbench.engine.model.decoding`) with several models: keyed Gumbel-max over the mixture's
support, prompts prefilled once, finished rows compacted away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.model.decoding import COMPACT_AT, FEWEST_ROWS, MOST_ROWS, choose, excluded, without
from thiefbench.engine.model.forward_cache import ForwardCache
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import stepper
from thiefbench.experts.weighting import mixture, shares
from thiefbench.tasks.base import Completion, Sampling


@dataclass(frozen=True)
class EnsembleAnswer:
    """What an ensemble answered.

    Attributes:
        completion: the answer.
        shares: the mean share of each expert over the answer's tokens.
    """

    completion: Completion
    shares: tuple[float, ...]


def sample_ensemble(
    experts: Sequence[Policy],
    prompts: Sequence[Sequence[int]],
    scores: torch.Tensor,
    rows: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    updates: bool,
    top: int = 0,
) -> list[EnsembleAnswer]:
    """Sample one answer per row from a mixture of experts.

    Args:
        experts: models that share their tokens.
        prompts: distinct prompts, as token ids.
        scores: each expert's log-prior plus evidence before the answer, float64, shape (prompts, experts).
        rows: for each answer, the prompt it answers.
        keys: for each answer, its noise key.
        sampling: temperature, support and length limit, applied to the mixture's log-probabilities.
        updates: whether every token of the answer is evidence for the next one's shares.
        top: see `shares`.

    Raises:
        DivergedError: an expert's probabilities are not finite.
    """
    order = sorted(range(len(rows)), key=lambda i: (len(prompts[rows[i]]), rows[i]))
    answers: dict[int, EnsembleAnswer] = {}
    for start in range(0, len(rows), MOST_ROWS):
        batch = order[start : start + MOST_ROWS]
        used = list(dict.fromkeys(rows[i] for i in batch))
        index = {prompt: i for i, prompt in enumerate(used)}
        decoded = _decode(
            experts, [prompts[prompt] for prompt in used], scores[used], [index[rows[i]] for i in batch],
            [keys[i] for i in batch], sampling, updates, top,
        )  # fmt: skip
        answers |= dict(zip(batch, decoded, strict=True))
    return [answers[i] for i in range(len(rows))]


@torch.inference_mode()
def _decode(
    experts: Sequence[Policy],
    prompts: Sequence[Sequence[int]],
    scores: torch.Tensor,
    rows: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    updates: bool,
    top: int,
) -> list[EnsembleAnswer]:
    """`sample_ensemble` for rows that are decoded together."""
    first, device, count = experts[0], experts[0].device, len(rows)
    seats = [*range(count), *(i % count for i in range(count, max(count, FEWEST_ROWS)))]
    prompt = torch.tensor([rows[i] for i in seats], device=device)
    row_keys = torch.tensor([keys[i] for i in seats], device=device)
    beliefs = scores.to(device)[prompt]
    prefixes = [expert.prefill(prompts) for expert in experts]
    batches = [stepper(expert, prefix, prompt) for expert, prefix in zip(experts, prefixes, strict=True)]
    hidden = [prefix.last.index_select(0, prompt) for prefix in prefixes]

    tokens = torch.full((len(seats), sampling.max_new_tokens), first.pad, device=device)
    lengths = torch.full((len(seats),), sampling.max_new_tokens, device=device)
    shared = torch.zeros(len(seats), len(experts), dtype=torch.float64, device=device)
    live = torch.arange(len(seats), device=device)  # batch row -> answer
    running = torch.ones(len(seats), dtype=torch.bool, device=device)
    barred = excluded(first, sampling)
    for step in range(sampling.max_new_tokens):
        heads = [expert.head(state) for expert, state in zip(experts, hidden, strict=True)]
        logprobs = torch.stack([logits.log_softmax(1) for logits in heads], 1)
        log_shares = shares(beliefs, top)
        mixed = mixture(logprobs, log_shares)
        if not bool(mixed[running].isfinite().all()):
            raise DivergedError(
                "the experts' shares or probabilities are not finite any more; use a smaller learning_rate"
            )
        chosen = choose(without(mixed, barred), row_keys, step, sampling)
        tokens[live, step] = torch.where(running, chosen, first.pad)
        shared[live] += log_shares.exp() * running[:, None]
        if updates:
            of_token = chosen[:, None, None].expand(-1, len(experts), 1)
            beliefs = beliefs + logprobs.gather(2, of_token)[:, :, 0].double()
        ended = running & (chosen == first.eos)
        lengths[live] = torch.where(ended, step + 1, lengths[live])
        running &= ~ended
        left = int(running.sum())
        if left == 0 or step + 1 == sampling.max_new_tokens:
            break
        if left <= (1 - COMPACT_AT) * len(live) and len(live) > FEWEST_ROWS:
            kept = torch.argsort(~running, stable=True)[: max(left, FEWEST_ROWS)]
            for batch in batches:
                batch.keep(kept)
            live, running, chosen = live[kept], running[kept], chosen[kept]
            row_keys, beliefs = row_keys[kept], beliefs[kept]
        hidden = [batch.step(chosen) for batch in batches]
    means = (shared / lengths[:, None]).tolist()
    written = [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)][:count]
    ended_rows = [row[-1] == first.eos for row in written]
    ids = [tuple(row[:-1] if end else row) for row, end in zip(written, ended_rows, strict=True)]
    texts = first.decode(ids)
    return [
        EnsembleAnswer(Completion(*answer), tuple(mean))
        for *answer, mean in zip(ids, texts, ended_rows, means[:count], strict=True)
    ]


@torch.no_grad()
def log_likelihoods(policy: Policy, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> torch.Tensor:
    """The log-likelihood of texts under a model at temperature 1.

    Args:
        policy: the model.
        texts: for each, the token ids that come before it, at least one, and its own.

    Returns:
        float64, shape (texts,); 0 for an empty one.
    """
    total = torch.zeros(len(texts), dtype=torch.float64)
    cache = ForwardCache(policy, [before for before, _ in texts])
    for chunk in cache.chunks([(number, tuple(text)) for number, (_, text) in enumerate(texts)]):
        logprobs = chunk.logprobs(1.0).double().cpu()
        for (number, text), start in chunk.starts():
            total[number] = logprobs[start : start + len(text)].sum()
    return total
