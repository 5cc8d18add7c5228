"""The engine's services for defenses: the cohort's policy and a judge to ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import log
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from thiefbench.defenses.base import PoolCompletion
from thiefbench.engine.keys import key
from thiefbench.engine.model.decoding import excluded, nucleus, sample, support, without
from thiefbench.engine.model.forward_cache import Chunk, CompletionKey, ForwardCache
from thiefbench.engine.model.noise import gumbel
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.spans import token_spans
from thiefbench.tasks.base import Message, Sampling

# By how much a log-prob must exceed 1 / top_k to settle a rank: far more than the rounding of a log-softmax.
RANK_MARGIN = 0.05


class DefenderPolicy:
    """The defender's model (`thiefbench.defenses.base.PolicyView`).

    Args:
        cache: the forward passes of the cohort's current policy over the round's pool; the update reuses them.
        sampling: the swarm's sampling settings.
        prompts: the index of each item's prompt in the cache, by item id.
        noise: parts of the key that `generate` draws with.
    """

    def __init__(
        self, cache: ForwardCache, sampling: Sampling, prompts: dict[str, int], noise: tuple[int | str, ...]
    ) -> None:
        self._cache, self._sampling, self._prompts, self._noise = cache, sampling, prompts, noise
        self._policy = cache.policy
        self._calls = 0

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """Natural-log probability of every token."""
        return self._per_token(completions, lambda chunk: chunk.logprobs(self._sampling.temperature), np.float32)

    def ranks(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """How many tokens have a strictly higher logit."""

        def measure(chunk: Chunk) -> torch.Tensor:
            return chunk.once("ranks", lambda: chunk.per_block(_ranks(0.0)))

        return self._per_token(completions, measure, np.int64)

    def in_support(
        self, completions: Sequence[PoolCompletion], tolerance: float | None = None
    ) -> list[NDArray[np.bool_]]:
        """Whether the sampler's settings could have let each token through."""
        slack = self._policy.logit_noise if tolerance is None else tolerance
        allowed, barred = self._sampling, excluded(self._policy, self._sampling)

        def worked_out(chunk: Chunk) -> torch.Tensor:
            inside = torch.ones_like(chunk.targets, dtype=torch.bool)
            if allowed.top_k:
                # At most 1 / p tokens are at least as probable as p, so only improbable ones need to be counted.
                probable = chunk.logprobs(allowed.temperature).detach() > -log(allowed.top_k) + RANK_MARGIN
                if barred is not None:
                    probable &= ~torch.isin(chunk.targets, barred)
                doubtful = (~probable).nonzero()[:, 0]
                inside[doubtful] = chunk.per_block(_among(barred, _ranks(slack)), doubtful) < allowed.top_k
            if allowed.top_p < 1:
                # Logits that move by at most `slack` move a cumulative probability by at most half of it.
                lenient = replace(allowed, top_p=min(1.0, allowed.top_p + slack / 2))
                inside &= chunk.per_block(
                    _among(barred, lambda logits, targets: _in_nucleus(logits, targets, lenient, slack))
                )
            return inside

        def measure(chunk: Chunk) -> torch.Tensor:
            return chunk.once(("in_support", allowed, slack), lambda: worked_out(chunk))

        return self._per_token(completions, measure, np.bool_)

    def replay(self, completions: Sequence[PoolCompletion], tolerance: float | None = None) -> list[NDArray[np.bool_]]:
        """Whether each token is the one that the completion's seed draws after the tokens before it."""
        slack = self._policy.logit_noise if tolerance is None else tolerance
        measure = _among(excluded(self._policy, self._sampling), _redrawn(self._sampling, slack))
        settings = (self._sampling, slack)
        answers, redrawn = self._answers(completions), self._cache.redrawn
        seeded: dict[CompletionKey, dict[int, None]] = {}  # equal answers of two slots are run once and drawn twice
        for answer, completion in zip(answers, completions, strict=True):
            if completion.seed is not None and (answer, completion.seed, settings) not in redrawn:
                seeded.setdefault(answer, {})[completion.seed] = None
        for chunk in self._cache.chunks(seeded):
            rows = [(answer, seed, start) for answer, start in chunk.starts() for seed in seeded.get(answer, ())]
            counts = torch.tensor([len(answer[1]) for answer, _, _ in rows])
            steps = torch.cat([torch.arange(count) for count in counts])
            first = torch.tensor([start for _, _, start in rows]).repeat_interleave(counts)
            keys = torch.tensor([seed for _, seed, _ in rows]).repeat_interleave(counts)
            device = chunk.targets.device
            same = chunk.per_block(measure, (first + steps).to(device), keys.to(device), steps.to(device))
            for (answer, seed, _), part in zip(rows, torch.split(same.cpu(), counts.tolist()), strict=True):
                redrawn[answer, seed, settings] = part.numpy()
        return [
            redrawn[answer, completion.seed, settings].copy()
            if answer[1] and completion.seed is not None
            else np.zeros(len(answer[1]), np.bool_)
            for answer, completion in zip(answers, completions, strict=True)
        ]

    def hidden(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """The states from which each token is predicted."""
        return self._per_token(completions, lambda chunk: chunk.hidden.float(), np.float32)

    def spans(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """The position of every token in its text; EOS comes after it."""
        spans = []
        for offered in completions:
            pieces = self._policy.pieces(offered.ids)
            text_spans = token_spans(offered.ids, offered.text, pieces, self._policy.decode)
            eos_spans = np.full((int(offered.ended), 2), len(offered.text), np.int64)
            spans.append(np.concatenate([text_spans, eos_spans]))
        return spans

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        """One sampled completion text per prompt; empty if prompt and completion do not fit."""
        self._calls += 1
        ids = [self._policy.quoting_prompt_ids(prompt) for prompt in prompts]
        fitting = [i for i, prompt in enumerate(ids) if fits(self._policy, prompt, max_new_tokens)]
        keys = [key(*self._noise, "defense", self._calls, i) for i in fitting]
        settings = replace(self._sampling, max_new_tokens=max_new_tokens)
        completions = dict(zip(fitting, sample(self._policy, ids, fitting, keys, settings), strict=True))
        return [completions[i].text if i in completions else "" for i in range(len(ids))]

    def _per_token(
        self, completions: Sequence[PoolCompletion], measure: Callable[[Chunk], torch.Tensor], dtype: type
    ) -> list[NDArray]:  # type: ignore[type-arg]
        answers = self._answers(completions)
        measured: dict[CompletionKey, NDArray] = {}  # type: ignore[type-arg]
        for chunk in self._cache.chunks(answers):
            parts = torch.split(measure(chunk).detach().cpu(), chunk.counts)
            measured |= {answer: part.numpy().astype(dtype) for answer, part in zip(chunk.answers, parts, strict=True)}
        return [measured[answer].copy() if answer[1] else np.zeros(0, dtype) for answer in answers]

    def _answers(self, completions: Sequence[PoolCompletion]) -> list[CompletionKey]:
        closing = (self._policy.eos,)
        known = self._policy.vocabulary
        if any(c.ids and not 0 <= min(c.ids) <= max(c.ids) < known for c in completions):  # a device would stall on it
            raise ValueError(f"a token id outside the vocabulary of {known}")
        return [(self._prompts[c.item_id], c.ids + (closing if c.ended else ())) for c in completions]


class Judge(Protocol):
    """A judge that answers a defense's questions in every round of a swarm: a loaded model or a server."""

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """As `thiefbench.defenses.base.JudgeView.ask`, drawn with a key of the seed and the round."""


class CachedJudge:
    """A judge that caches its replies, for pools that are judged repeatedly with few changes.

    Args:
        judge: the judge; its reply to a prompt must not depend on the other prompts.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._replies: dict[Hashable, list[str]] = {}

    def ask(self, prompts: Sequence[Sequence[Message]], sampling: Sampling, votes: int, noise: int) -> list[list[str]]:
        """The judge's replies; it is asked only prompts that are new under these settings."""
        named = [
            (sampling, votes, noise, *((message["role"], message["content"]) for message in prompt))
            for prompt in prompts
        ]
        new = {name: prompt for name, prompt in zip(named, prompts, strict=True) if name not in self._replies}
        if new:
            self._replies |= zip(new, self._judge.ask(list(new.values()), sampling, votes, noise), strict=True)
        return [list(self._replies[name]) for name in named]


class DefenderJudge:
    """A judge as a defense sees it in one round (`thiefbench.defenses.base.JudgeView`).

    Args:
        judge: the judge.
        noise: key of the seed and the round, for drawing replies.
    """

    def __init__(self, judge: Judge, noise: int) -> None:
        self._judge, self._noise = judge, noise

    def ask(self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, votes: int = 1) -> list[list[str]]:
        """`votes` replies to each prompt, none to one that is too long."""
        return self._judge.ask(prompts, sampling, votes, self._noise)


def fits(policy: Policy, prompt: Sequence[int], max_new_tokens: int) -> bool:
    """Whether a prompt fits into the model's context together with a completion."""
    return policy.context is None or len(prompt) + max_new_tokens <= policy.context


def _among(barred: torch.Tensor | None, measure: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A measure of logits, and of tensors beside them, in which barred tokens cannot be drawn."""
    return lambda logits, *beside: measure(without(logits, barred), *beside)


def _ranks(slack: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Counts the tokens whose logit is more than `slack` above the target's."""

    def count(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (logits > logits.gather(1, targets[:, None]) + slack).sum(1)

    return count


def _in_nucleus(logits: torch.Tensor, targets: torch.Tensor, sampling: Sampling, slack: float) -> torch.Tensor:
    scores, _ = support(logits, sampling)
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return (chosen + slack) / sampling.temperature >= _least(scores)


def _redrawn(sampling: Sampling, slack: float) -> Callable[..., torch.Tensor]:
    """For each token, whether Gumbel-max with its row's key and step may have drawn it.

    If logits differ by at most `slack` from the sampler's, two things may differ: which of two nearly equal scores is
    larger, and which tokens at the edge of the support are included. So a token passes if its score is at least, up to
    the slack, that of every token that is certainly included.
    """
    margin = slack / sampling.temperature
    wide = replace(sampling, top_k=sampling.top_k + 1 if sampling.top_k else 0, top_p=1.0)
    # Scores that move by at most a margin move a cumulative probability by at most half of it.
    off = margin / 2 if sampling.top_p < 1 else 0.0
    most, least = sampling.top_p + off, max(sampling.top_p - off, 1e-9)

    def measure(logits: torch.Tensor, targets: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        scores, candidates = support(logits, wide)
        inside = scores[:, : sampling.top_k or None]
        certain = nucleus(inside, least)
        if scores.shape[1] > inside.shape[1]:
            certain = certain.masked_fill(inside <= scores[:, -1:] + margin, -torch.inf)
        best = (certain + gumbel(keys, steps, candidates[:, : inside.shape[1]])).amax(1)
        chosen = logits.gather(1, targets[:, None]).double() / sampling.temperature
        drawn = (chosen + gumbel(keys, steps, targets[:, None]))[:, 0] + margin >= best
        return drawn & (chosen[:, 0] + margin >= _least(nucleus(inside, most)))

    return measure


def _least(scores: torch.Tensor) -> torch.Tensor:
    """The least finite score of every row."""
    return scores.masked_fill(scores.isinf(), torch.inf).amin(1)
