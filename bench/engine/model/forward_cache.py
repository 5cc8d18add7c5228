"""The forward passes of a policy over a round's completions: each runs once, shared by defense and update.

Completions of a group with equal tokens, as colluders may submit, are run once. Rows of similar length are run
together. Completions that the defense has run with gradients need only a backward pass in the update.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thiefbench.engine.model.policy import Policy, Prefix

CompletionKey = tuple[int, tuple[int, ...]]
"""Which prompt a completion answers, and its token ids, EOS included where it ended."""


@dataclass(frozen=True)
class Sizes:
    """The limits on what is run at once.

    Attributes:
        chunk: tokens, padding included, of one forward pass. Small chunks stay in a processor's cache; on a GPU a chunk
            has to fill the device.
        block: floats of the vocabulary-sized tensor that are in memory at a time.
        blocks_kept: floats of a chunk's blocks that are kept for the backward pass; others are computed again.
        graphs_kept: estimated bytes of a defense's forward passes that are kept with their graph for the update; the
            update runs others again.
    """

    chunk: int
    block: int
    blocks_kept: int
    graphs_kept: int


# A chunk of a large model has not fewer tokens than this, whatever memory it takes: fewer would leave a GPU idle.
FEWEST_TOKENS = 2048
SIZES = {"cpu": Sizes(2048, 1 << 20, 1 << 25, 3 << 30), "cuda": Sizes(16384, 1 << 27, 1 << 25, 16 << 30)}


@dataclass
class Chunk:
    """Answers that were run together.

    Attributes:
        answers: in order of length.
        hidden: the states that predict each token, flat over the answers' tokens, shape (tokens, hidden).
        targets: the tokens, int64, shape (tokens,).
        graph: whether the states have a graph for gradients.
    """

    policy: Policy
    answers: list[CompletionKey]
    hidden: torch.Tensor
    targets: torch.Tensor
    graph: bool
    _measured: dict[Hashable, torch.Tensor] = field(default_factory=dict)

    @property
    def counts(self) -> list[int]:
        """Tokens per answer."""
        return [len(ids) for _, ids in self.answers]

    def starts(self) -> Iterator[tuple[CompletionKey, int]]:
        """Every answer with the position of its first token."""
        return zip(self.answers, accumulate(self.counts, initial=0), strict=False)

    def logprobs(self, temperature: float) -> torch.Tensor:
        """Log-probs of the targets over the whole vocabulary, shape (tokens,), with gradient if there is a graph."""

        def measure() -> torch.Tensor:
            with torch.set_grad_enabled(self.graph):
                return token_logprobs(self.policy, self.hidden, self.targets, temperature)

        return self.once(("logprobs", temperature), measure)

    def once(self, what: Hashable, measure: Callable[[], torch.Tensor]) -> torch.Tensor:
        """`measure()`, called once for each `what`: a pool that is inspected again has mostly the same answers."""
        if what not in self._measured:
            self._measured[what] = measure()
        return self._measured[what]

    @torch.no_grad()
    def per_block(
        self,
        measure: Callable[..., torch.Tensor],
        tokens: torch.Tensor | None = None,
        *beside: torch.Tensor,
    ) -> torch.Tensor:
        """`measure(logits, targets, *beside)` of blocks of tokens, joined.

        Args:
            measure: gets logits of the shape (tokens of a block, vocabulary), without gradient.
            tokens: int64, which tokens of the chunk, repetitions allowed; None takes all.
            beside: further values of these tokens, shape (tokens, ...), cut into the same blocks.
        """
        hidden, targets = self.hidden, self.targets
        if tokens is not None:
            hidden, targets = hidden[tokens], targets[tokens]
        blocks = _blocks(hidden, self.policy.head_weight) or [slice(0, 0)]
        return torch.cat(
            [
                measure(self.policy.head(hidden[block]), targets[block], *(part[block] for part in beside))
                for block in blocks
            ]
        )


class ForwardCache:
    """A policy's forward passes over one round's answers, each run once.

    Args:
        policy: its weights must not change while the cache is used.
        prompts: token ids; answers refer to them by position.
        expected: answers that the update will probably need, which are run with a graph; see `expect`.

    Attributes:
        redrawn: results of `DefenderPolicy.replay`, by answer, seed and settings.
    """

    def __init__(
        self, policy: Policy, prompts: Sequence[Sequence[int]], expected: Iterable[CompletionKey] = ()
    ) -> None:
        self.policy, self.prompts = policy, prompts
        self._chunk_tokens = _chunk_tokens(policy)
        self._chunk_of: dict[CompletionKey, Chunk] = {}
        self.redrawn: dict[Hashable, NDArray[np.bool_]] = {}
        self._prefixes: dict[bool, tuple[Prefix, Prefix]] = {}
        self.expect(expected)

    def expect(self, answers: Iterable[CompletionKey]) -> None:
        """Run these answers with a graph from now on, unless all the graphs would take too much memory."""
        self.expected = set(answers)
        tokens = sum(len(ids) for _, ids in self.expected)
        if tokens * _bytes_per_token(self.policy) > _sizes(self.policy.device).graphs_kept:
            self.expected = set()

    def prefix(self) -> Prefix:
        """All prompts, run once for the sampler and for `chunks`; without gradients."""
        with torch.enable_grad():
            self._prefix(graph=True)
        return self._prefix(graph=False)

    def chunks(self, answers: Iterable[CompletionKey]) -> Iterator[Chunk]:
        """Chunks with all non-empty `answers` (and maybe others), each once, for measuring only."""
        wanted = [answer for answer in dict.fromkeys(answers) if answer[1]]
        missing = [answer for answer in wanted if answer not in self._chunk_of]
        for graph in (True, False):
            for part in _parts([a for a in missing if (a in self.expected) == graph], self._chunk_tokens):
                chunk = self._run(part, graph)
                self._chunk_of |= dict.fromkeys(part, chunk)
        yield from {id(self._chunk_of[answer]): self._chunk_of[answer] for answer in wanted}.values()

    def training_chunks(self, answers: Iterable[CompletionKey]) -> Iterator[Chunk]:
        """Chunks with graphs, with all non-empty `answers`, each once.

        Those run before come first; the others are run now and not kept. A chunk's graph is used up by its backward
        pass. After the last one, call `backward` to propagate the collected gradients through the prompts.
        """
        held, others = self._held(answers)
        for chunk in held:
            for answer in chunk.answers:
                del self._chunk_of[answer]
            yield chunk
        for part in others:
            yield self._run(part, graph=True)

    def schedule(self, answers: Iterable[CompletionKey]) -> list[list[CompletionKey]]:
        """The content of each of the `training_chunks`, in order.

        The last bits of a row's states and gradients depend on the rows that it is run with. These depend on what the
        defense has measured, and in which calls.
        """
        held, others = self._held(answers)
        return [*(chunk.answers for chunk in held), *others]

    @property
    def begun(self) -> bool:
        """Whether anything has been run, even if only the prompts."""
        return bool(self._prefixes or self._chunk_of)

    def backward(self) -> None:
        """Propagate the gradients collected at the prompts' states through the prompts."""
        if True in self._prefixes:
            whole, leaves = self._prefixes.pop(True)
            whole.backward(leaves)

    def _held(self, answers: Iterable[CompletionKey]) -> tuple[list[Chunk], list[list[CompletionKey]]]:
        """The chunks with graphs that hold some of `answers`, and the parts in which the others are to be run."""
        wanted = [answer for answer in dict.fromkeys(answers) if answer[1]]
        held = [answer for answer in wanted if answer in self._chunk_of and self._chunk_of[answer].graph]
        chunks = {id(self._chunk_of[answer]): self._chunk_of[answer] for answer in held}
        return list(chunks.values()), list(_parts(list(set(wanted) - set(held)), self._chunk_tokens))

    def _run(self, answers: list[CompletionKey], graph: bool) -> Chunk:
        policy, device = self.policy, self.policy.device
        with torch.set_grad_enabled(graph):
            prefix = self._prefix(graph)
            counts = [len(ids) for _, ids in answers]
            ids = torch.full((len(answers), max(counts)), policy.pad)
            real = torch.arange(max(counts))[None, :] < torch.tensor(counts)[:, None]
            ids[real] = torch.tensor([token for _, targets in answers for token in targets])
            ids, real = ids.to(device), real.to(device)
            which = torch.tensor([prompt for prompt, _ in answers], device=device)
            return Chunk(policy, answers, policy.extend(prefix, which, ids)[real], ids[real], graph)

    def _prefix(self, graph: bool) -> Prefix:
        """All prompts, run once: as leaves that collect gradients, or without gradients."""
        if graph not in self._prefixes:
            whole = self._prefixes[True][0] if True in self._prefixes else self.policy.prefill(self.prompts)
            self._prefixes[graph] = (whole, whole.leaves() if graph else whole.detached())
        return self._prefixes[graph][1]


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(hidden @ weight.T / temperature)[target], the vocabulary-sized tensor held in blocks."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        keep = wanted and len(hidden) * len(weight) <= _sizes(hidden.device).blocks_kept
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature, ctx.kept, parts = temperature, [], []
        for block in _blocks(hidden, weight):
            logprobs = _block_logprobs(hidden[block], weight, temperature)
            parts.append(logprobs.gather(1, targets[block, None])[:, 0])
            if keep:
                ctx.kept.append(logprobs)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        hidden, weight, targets = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros(weight.shape, dtype=gradients[0].dtype, device=weight.device)
        for number, block in enumerate(_blocks(hidden, weight)):
            logprobs = ctx.kept[number] if ctx.kept else _block_logprobs(hidden[block], weight, ctx.temperature)
            slope = gradients[0][block, None] / ctx.temperature
            # d log p_target / d logits = onehot(target) - softmax, times the incoming gradient
            to_logits = logprobs.exp_().mul_(-slope)
            to_logits[torch.arange(len(slope), device=slope.device), targets[block]] += slope[:, 0]
            to_logits = to_logits.to(weight.dtype)
            torch.mm(to_logits, weight, out=to_hidden[block])
            to_weight += to_logits.T @ hidden[block]
        ctx.kept = []
        return to_hidden, to_weight.to(weight.dtype), None, None


def token_logprobs(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs of target tokens at a temperature, over the whole vocabulary.

    Args:
        policy: whose output embeddings are used.
        hidden: final states, shape (tokens, hidden).
        targets: int64, shape (tokens,).
        temperature: divides the logits.

    Returns:
        float32 (float64 for such weights), shape (tokens,).
    """
    logprobs: torch.Tensor = _TokenLogprobs.apply(hidden, policy.head_weight, targets, temperature)
    return logprobs


def _block_logprobs(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = hidden @ weight.T
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return (logits if temperature == 1 else logits.div_(temperature)).log_softmax(1)


def _blocks(hidden: torch.Tensor, weight: torch.Tensor) -> list[slice]:
    size = max(1, _sizes(hidden.device).block // len(weight))
    return [slice(start, min(start + size, len(hidden))) for start in range(0, len(hidden), size)]


def _parts(answers: list[CompletionKey], tokens: int) -> Iterator[list[CompletionKey]]:
    """Parts of similar length, none of more tokens (padding included) than a chunk may have."""
    part: list[CompletionKey] = []
    for answer in sorted(answers, key=lambda answer: (len(answer[1]), answer)):
        if part and (len(part) + 1) * len(answer[1]) > tokens:
            yield part
            part = []
        part.append(answer)
    if part:
        yield part


def _sizes(device: torch.device) -> Sizes:
    return SIZES["cpu" if device.type == "cpu" else "cuda"]


def _chunk_tokens(policy: Policy) -> int:
    """Tokens of one forward pass: fewer for a large model, so that a chunk's graph is no larger than `graphs_kept`."""
    sizes = _sizes(policy.device)
    return min(sizes.chunk, max(FEWEST_TOKENS, sizes.graphs_kept // _bytes_per_token(policy)))


def _bytes_per_token(policy: Policy) -> int:
    """What a graph keeps per token, roughly: about twelve states and five MLP activations a layer, and log-probs."""
    config = policy.config
    states = config.num_hidden_layers * (12 * config.hidden_size + 5 * (getattr(config, "intermediate_size", 0) or 0))
    kept: int = states * policy.dtype.itemsize + 4 * policy.vocabulary
    return kept
