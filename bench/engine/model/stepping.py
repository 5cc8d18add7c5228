"""One decoding step for a batch of rows: an optimised version for Llama-like models, a plain one for all others.

The fast one (`FusedStepper`) differs from transformers' forward pass in three ways, none of which changes the result
beyond the last bits: projections that read the same input are one matrix product; a prompt's keys and values are read
once for all completions of its group instead of once for each; and no module, cache or mask object is built per step.
Only this module and `policy.py` depend on transformers' models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from thiefbench.engine.model.policy import Policy, Prefix

FUSED_MODELS = frozenset({"llama", "qwen2"})
# Buffers for the completions' own keys and values grow by this many steps: memory follows the lengths really drawn.
STEPS_PER_BLOCK = 32
# On a GPU by more: a step reads the whole buffer there, and every new one costs a step without a graph and a capture.
STEPS_PER_GRAPH = 64


class Stepper(Protocol):
    """Decodes one more token for every row of a batch."""

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token, int64 of shape (rows,), and return the hidden states after it."""

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, given as int64 positions in the batch."""


def stepper(policy: Policy, prefix: Prefix, prompt: torch.Tensor) -> Stepper:
    """The fastest stepper for a model.

    Args:
        policy: the model.
        prefix: prompts, from `Policy.prefill`.
        prompt: int64, which prompt each row follows, shape (rows,).
    """
    config = policy.model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    fused = config.model_type in FUSED_MODELS and config.hidden_act == "silu" and rope in ("default", "llama3")
    if not fused:
        return PlainStepper(policy, prefix, prompt)
    return (GraphedStepper if prompt.device.type == "cuda" else FusedStepper)(policy, prefix, prompt)


class PlainStepper:
    """transformers' own forward pass with a cache of every row's prompt; tests compare the fused stepper with it."""

    def __init__(self, policy: Policy, prefix: Prefix, prompt: torch.Tensor) -> None:
        self.policy = policy
        self.cache = _RowCache(prefix, prompt)
        self.positions = prefix.lengths.index_select(0, prompt)[:, None]
        self.behind = prefix.mask.index_select(0, prompt)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Stepper.step`."""
        self.behind = functional.pad(self.behind, (0, 1), value=True)
        visible = self.behind[:, None, None]
        hidden = self.policy.forward(tokens[:, None], self.positions, visible, self.cache)[:, 0]
        self.positions = self.positions + 1
        return hidden

    def keep(self, rows: torch.Tensor) -> None:
        """See `Stepper.keep`."""
        self.cache.states = [states.index_select(1, rows) for states in self.cache.states]
        self.positions, self.behind = self.positions[rows], self.behind[rows]


class _RowCache:
    """Keys and values of prompt and completion, row by row, as transformers asks for them."""

    def __init__(self, prefix: Prefix, prompt: torch.Tensor) -> None:
        sides = zip(prefix.keys, prefix.values, strict=True)
        self.states = [torch.stack(side).index_select(1, prompt) for side in sides]  # (2, rows, heads, length, size)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.states[layer] = torch.cat([self.states[layer], torch.stack([keys, values])], 3)
        return self.states[layer][0], self.states[layer][1]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.states[0].shape[3]


@dataclass(frozen=True)
class _Layer:
    """A layer's weights; those with the same input are concatenated."""

    norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None

    @classmethod
    def of(cls, module: Any) -> _Layer:
        attention, mlp = module.self_attn, module.mlp
        qkv, qkv_bias = _side_by_side(attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up, gate_up_bias = _side_by_side(mlp.gate_proj, mlp.up_proj)
        return cls(
            module.input_layernorm.weight, qkv, qkv_bias, attention.o_proj.weight, attention.o_proj.bias,
            module.post_attention_layernorm.weight, gate_up, gate_up_bias, mlp.down_proj.weight, mlp.down_proj.bias,
        )  # fmt: skip


def _side_by_side(*linears: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return torch.cat([linear.weight for linear in linears]), torch.cat(biases) if biases else None


class FusedStepper:
    """A step of a Llama-like model (RMSNorm, rotary embedding, SwiGLU), prompts shared by the rows of a group."""

    def __init__(self, policy: Policy, prefix: Prefix, prompt: torch.Tensor) -> None:
        config = policy.model.config
        self.base = policy.model.base_model
        self.layers = [_Layer.of(module) for module in self.base.layers]
        self.epsilon: float = config.rms_norm_eps
        self.kv_heads: int = config.num_key_value_heads
        self.heads: int = config.num_attention_heads
        self.size: int = prefix.keys[0].shape[3]
        self.scale = self.size**-0.5
        self.keys, self.values = list(prefix.keys), list(prefix.values)
        self.padding = torch.zeros(prefix.mask.shape, dtype=torch.float32, device=prompt.device)
        self.padding.masked_fill_(~prefix.mask, -torch.inf)
        self.positions = prefix.lengths.index_select(0, prompt)
        self.last_position = int(prefix.lengths.max())  # of the first step
        self.table = (prefix.last[:0], prefix.last[:0])
        self.at = 0
        self.own = [self._buffer(len(prompt), 0) for _ in self.layers]
        self._seat(prompt)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Stepper.step`."""
        if self.at == self.own[0].shape[3]:
            self._grow(len(tokens), STEPS_PER_BLOCK)
        hidden = self._advance(tokens)
        self.at += 1
        self.positions = self.positions + 1
        return hidden

    def _grow(self, rows: int, steps: int) -> None:
        """Make room for the keys and values of further steps."""
        for number, own in enumerate(self.own):  # one by one: never are two sets of buffers held
            self.own[number] = torch.cat([own, self._buffer(rows, steps)], 3)

    def _advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """A step without its bookkeeping: it writes keys and values at the place of this step."""
        x: torch.Tensor = self.base.embed_tokens(tokens)
        cosine, sine = (table[self.positions, None] for table in self._rotation(x))  # (rows, 1, size): 1 for the heads
        for number, layer in enumerate(self.layers):
            normed = self._normed(x, layer.norm)
            mixed = functional.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, self.size)
            turned = mixed[:, : self.heads + self.kv_heads]
            halves = turned.chunk(2, 2)
            turned = turned * cosine + torch.cat((-halves[1], halves[0]), 2) * sine
            self._write(number, turned[:, self.heads :], mixed[:, self.heads + self.kv_heads :])
            seen = self._attend(number, turned[:, : self.heads])
            x = x + functional.linear(seen, layer.out, layer.out_bias)
            inner = self._gated(self._normed(x, layer.mlp_norm), layer)
            x = x + functional.linear(inner, layer.down, layer.down_bias)
        return self._normed(x, self.base.norm.weight)

    def _gated(self, normed: torch.Tensor, layer: _Layer) -> torch.Tensor:
        """SwiGLU, in one matrix product."""
        gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, 1)
        return functional.silu(gate) * up

    def _write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store this step's keys and values, each of shape (rows, kv heads, size), of one layer."""
        self.own[number][0, :, :, self.at] = keys
        self.own[number][1, :, :, self.at] = values

    def _scores(self, number: int, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 scores of the queries, (rows, kv heads, repeat, size), at own keys, and the values behind them."""
        own = self.own[number][:, :, :, : self.at + 1]
        return torch.matmul(queries, own[0].transpose(2, 3)).float(), own[1]

    def keep(self, rows: torch.Tensor) -> None:
        """See `Stepper.keep`."""
        for number, own in enumerate(self.own):
            self.own[number] = own[:, :, :, : self.at].index_select(1, rows)
        self.positions = self.positions[rows]
        self._seat(self.prompt[rows])

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm in float32, in half the operations of `functional.rms_norm` on a processor."""
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        scaled = x * length.square_().div_(x.shape[1]).add_(self.epsilon).rsqrt_()
        made: torch.Tensor = weight * scaled.to(x.dtype)
        return made

    def _rotation(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of all positions so far and some ahead, shape (positions, size)."""
        if self.last_position + self.at >= len(self.table[0]):
            positions = torch.arange(self.last_position + self.at + STEPS_PER_BLOCK, device=x.device)
            cosine, sine = self.base.rotary_emb(x, positions[None])
            self.table = (cosine[0], sine[0])
        return self.table

    def _seat(self, prompt: torch.Tensor) -> None:
        """Assign every row a seat: every prompt has as many seats as the largest group needs."""
        present, place, counts = torch.unique(prompt, return_inverse=True, return_counts=True)
        if len(present) < len(self.padding):
            self.keys = [keys.index_select(0, present) for keys in self.keys]
            self.values = [values.index_select(0, present) for values in self.values]
            self.padding = self.padding[present]
        self.prompt = place
        self.group = int(counts.max())
        order = torch.argsort(place, stable=True)
        first = counts.cumsum(0) - counts
        number = torch.empty_like(place)  # of a row within its group
        number[order] = torch.arange(len(place), device=place.device) - first[place[order]]
        self.seat = place * self.group + number
        everyone = torch.arange(len(present) * self.group, device=place.device)
        self.all_seated = torch.equal(self.seat, everyone)  # no seat is empty, and none has to be looked up

    def _attend(self, number: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of one query per row, shape (rows, heads, size), to its prompt and own tokens: (rows, width)."""
        keys, values = self.keys[number], self.values[number]
        length = keys.shape[2]
        rows, repeat = len(queries), self.heads // self.kv_heads
        grouped = queries.reshape(rows, self.kv_heads, repeat, self.size) * self.scale

        to_prompt = torch.matmul(self._to_seats(grouped), keys.transpose(2, 3)).float() + self.padding[:, None, None]
        to_own, own_values = self._scores(number, grouped)
        scores = torch.cat([self._to_rows(to_prompt), to_own], 3).softmax(3).to(queries.dtype)
        from_prompt = torch.matmul(self._to_seats(scores[..., :length]), values)
        return (self._to_rows(from_prompt) + torch.matmul(scores[..., length:], own_values)).reshape(rows, -1)

    def _to_seats(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, kv heads, repeat, n) -> (prompts, kv heads, group * repeat, n), zero on empty seats."""
        _, heads, repeat, width = rows.shape
        seats = rows
        if not self.all_seated:
            seats = rows.new_zeros(len(self.padding) * self.group, heads, repeat, width)
            seats.index_copy_(0, self.seat, rows)
        seats = seats.reshape(-1, self.group, heads, repeat, width).transpose(1, 2)
        return seats.reshape(-1, heads, self.group * repeat, width)

    def _to_rows(self, seats: torch.Tensor) -> torch.Tensor:
        """The inverse of `_to_seats`."""
        _, heads, _, width = seats.shape
        rows = seats.view(-1, heads, self.group, self.heads // self.kv_heads, width).transpose(1, 2)
        rows = rows.reshape(-1, heads, self.heads // self.kv_heads, width)
        return rows if self.all_seated else rows.index_select(0, self.seat)

    def _buffer(self, rows: int, steps: int) -> torch.Tensor:
        """Own keys and values of one layer, shape (2, rows, kv heads, steps, size)."""
        shape = (2, rows, self.kv_heads, steps, self.size)
        return self.keys[0].new_empty(shape)


class GraphedStepper(FusedStepper):
    """The fused step on a GPU, where launching hundreds of small kernels takes longer than running them.

    A step with the same shapes as the step before is captured as a CUDA graph, which is replayed until the buffers grow
    or rows are dropped. So that every step is the same work, it attends to the whole buffer, with a mask on what is not
    written yet, and reads its place in the buffer from a tensor.
    """

    def __init__(self, policy: Policy, prefix: Prefix, prompt: torch.Tensor) -> None:
        super().__init__(policy, prefix, prompt)
        self.keys, self.values = ([states.contiguous() for states in side] for side in (self.keys, self.values))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.place = torch.zeros(1, dtype=torch.long, device=prompt.device)  # `at`, where kernels can read it
        self.numbers = self.place  # of the buffer's steps

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Stepper.step`."""
        full = self.at == self.own[0].shape[3]
        if full:
            self._grow(len(tokens), STEPS_PER_GRAPH)
            hidden = self._advance(tokens)  # before a capture, libraries must have run once on these shapes
        else:
            if self.graph is None:
                self._capture(tokens)
            hidden = self._replayed(tokens)
        self.at += 1
        self.place += 1
        self.positions += 1
        return hidden

    def keep(self, rows: torch.Tensor) -> None:
        """See `Stepper.keep`."""
        super().keep(rows)
        self.graph = None

    def _grow(self, rows: int, steps: int) -> None:
        super()._grow(rows, steps)
        self.graph = None
        self.numbers = torch.arange(self.own[0].shape[3], device=self.place.device)

    def _capture(self, tokens: torch.Tensor) -> None:
        """Record the step as a graph; nothing is computed."""
        self.tokens = tokens.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.hidden = self._advance(self.tokens)

    def _replayed(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self.graph is not None
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.hidden.clone()  # the next replay overwrites it

    def _advance(self, tokens: torch.Tensor) -> torch.Tensor:
        self.unwritten = self.numbers > self.place
        return super()._advance(tokens)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm in one kernel."""
        return functional.rms_norm(x, weight.shape, weight, self.epsilon)

    def _gated(self, normed: torch.Tensor, layer: _Layer) -> torch.Tensor:
        """SwiGLU in two matrix products: a GPU is slow at halves of rows, which do not lie together in memory."""
        biases = (None, None) if layer.gate_up_bias is None else layer.gate_up_bias.chunk(2)
        gate, up = (
            functional.linear(normed, weight, bias) for weight, bias in zip(layer.gate_up.chunk(2), biases, strict=True)
        )
        return functional.silu(gate, inplace=True).mul_(up)

    def _write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.own[number][0].index_copy_(2, self.place, keys[:, :, None])
        self.own[number][1].index_copy_(2, self.place, values[:, :, None])

    def _scores(self, number: int, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.own[number]
        scores = torch.matmul(queries, keys.transpose(2, 3)).float()
        return scores.masked_fill_(self.unwritten, -torch.inf), values

    def _rotation(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For all steps of the buffer, so that none computes it anew."""
        positions = self.last_position + self.own[0].shape[3]
        if positions > len(self.table[0]):
            cosine, sine = self.base.rotary_emb(x, torch.arange(positions, device=x.device)[None])
            self.table = (cosine[0], sine[0])
        return self.table

    def _buffer(self, rows: int, steps: int) -> torch.Tensor:
        return super()._buffer(rows, steps).zero_()  # what is masked still must not be NaN
