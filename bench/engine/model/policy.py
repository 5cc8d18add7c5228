"""The interface to transformers models: loading, prompts, and forward passes that share prompts.

Completions of one group share their prompt, so every pass runs each prompt once (`Policy.prefill`) and lets the
completion rows attend to its cached keys and values (`Policy.extend`). Training does the same: gradients that arrive
at the cached states of a prompt are summed over its rows and sent through the prompt once (`Prefix.backward`).
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError, safe_open
from torch.nn.attention import SDPBackend, sdpa_kernel

from thiefbench.errors import UserError
from thiefbench.tasks.base import Message

Dtype = Literal["float32", "bfloat16"]
# Logits between two batch shapes differ in their last bits; twice the largest difference seen on CPU, per dtype.
LOGIT_NOISE: dict[str, float] = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.7}
# On a GPU: all of PyTorch's kernels but cuDNN's, which has no deterministic gradient (`learning.repeatable`).
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Settings of transformers' models that change logits behind the output embeddings.
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class ModelError(UserError):
    """A model cannot be loaded or used. One sentence for the user."""


# Prompt tokens, padding included, that are run at once: few enough to stay in a processor's cache, or to fill a device.
PREFILL_TOKENS = {"cpu": 2048, "cuda": 32768}


@dataclass(frozen=True)
class Prefix:
    """Prompts after one forward pass, left-padded.

    Attributes:
        keys, values: per layer, shape (prompts, heads, prompt length, head size).
        last: the final hidden state of every prompt, shape (prompts, hidden): it predicts the first token.
        mask: True on real prompt tokens, shape (prompts, prompt length).
        lengths: real tokens per prompt, shape (prompts,).
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    last: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor

    def leaves(self) -> Self:
        """The same states cut off from their graph, as leaves that collect gradients."""
        leaves = self.detached()
        for tensor in leaves._tensors():
            tensor.requires_grad_()
        return leaves

    def detached(self) -> Self:
        """The same states without their graph."""
        cut = [[t.detach() for t in side] for side in (self.keys, self.values)]
        return type(self)(cut[0], cut[1], self.last.detach(), self.mask, self.lengths)

    def backward(self, leaves: Self) -> None:
        """Send the gradients that `leaves` collected through the prompts' own graph."""
        pairs = [
            (tensor, leaf.grad)
            for tensor, leaf in zip(self._tensors(), leaves._tensors(), strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.keys, *self.values, self.last]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Recorder:
    """A cache that keeps each layer's keys and values as they are."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        return keys, values

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


class _BehindPrompt:
    """A cache that puts each row's prompt states before its own."""

    def __init__(self, prefix: Prefix, prompt: torch.Tensor) -> None:
        self.prefix, self.prompt = prefix, prompt

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shared_keys = _repeated(self.prefix.keys[layer], self.prompt)
        shared_values = _repeated(self.prefix.values[layer], self.prompt)
        return torch.cat([shared_keys, keys], 2), torch.cat([shared_values, values], 2)

    def get_seq_length(self, layer: int = 0) -> int:
        return int(self.prefix.mask.shape[1])


def _repeated(states: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """The states of every row's prompt."""
    return states.index_select(0, prompt) if states.device.type == "cpu" else _Repeated.apply(states, prompt)  # type: ignore[no-any-return, no-untyped-call]


class _Repeated(torch.autograd.Function):
    """`states.index_select(0, prompt)`, whose gradient on a GPU is the same every time.

    There, PyTorch adds the rows of a prompt up in whatever order they come; a matrix product adds them in one order.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(prompt)
        ctx.prompts = len(states)
        return states.index_select(0, prompt)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (prompt,), (gradient,) = ctx.saved_tensors, gradients
        of_prompt = torch.arange(ctx.prompts, device=prompt.device)[:, None] == prompt
        summed = of_prompt.to(gradient.dtype) @ gradient.flatten(1)
        return summed.view(ctx.prompts, *gradient.shape[1:]), None


class Policy:
    """A causal language model with its tokenizer.

    Args:
        model: a transformers causal LM whose layers all use full attention, in evaluation mode.
        tokenizer: its tokenizer, with an EOS token.

    Attributes:
        before_use: called before any use of the model, because updates may be deferred until the weights are needed
            (see `thiefbench.engine.learning.deferred`). None if they never are.

    Raises:
        ModelError: its layers, its logits or its tokenizer are of a kind that is not supported.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or {"full_attention"})
        if kinds != {"full_attention"}:
            raise ModelError(f"this model uses {', '.join(sorted(kinds))} layers, and only full attention is supported")
        scaled = [name for name in _LOGIT_CHANGES if getattr(model.config, name, None) not in (None, 1.0)]
        if scaled or model.get_output_embeddings().bias is not None:
            raise ModelError(
                f"this model's logits are not a plain product of states and output embeddings "
                f"({', '.join(scaled) or 'a bias'}), and only such are supported"
            )
        if tokenizer.eos_token_id is None:
            raise ModelError(
                "this model's tokenizer names no EOS token, so no completion would end; put eos_token into its "
                "tokenizer_config.json"
            )
        self._model, self.tokenizer = model, tokenizer
        self.before_use: Callable[[], None] | None = None
        self.eos: int = tokenizer.eos_token_id
        self.pad: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.eos
        added = tokenizer.added_tokens_decoder
        control = {token_id for token_id, token in added.items() if token.special}
        self.special: frozenset[int] = frozenset(tokenizer.all_special_ids) | control | {self.eos, self.pad}
        self.vocabulary: int = model.config.vocab_size
        self._pieces: dict[int, str] = {}
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        """Most tokens of prompt and completion together; None if the model sets no limit."""
        window = getattr(model.config, "sliding_window", None)
        if window and not getattr(model.config, "layer_types", None):  # up to its length, attention is full
            self.context = window if self.context is None else min(window, self.context)
        written = sorted(tokenizer.convert_ids_to_tokens(sorted(self.special)), key=len, reverse=True)
        # transformers 5.24 has begun to rename the argument, model by model.
        arguments = inspect.signature(model.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._control = re.compile("|".join(re.escape(token) for token in written))

    @classmethod
    def load(cls, source: str | Path, device: str = "cpu", dtype: Dtype = "float32") -> Self:
        """Load weights (safetensors only) and tokenizer from a local directory or by a name on the Hub.

        Raises:
            ModelError: the directory has no config or no weights, or the model cannot be loaded from the Hub.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        check_directory(source)
        try:
            with _without_progress_bars():
                check_config(source)
                tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
                model, loading = AutoModelForCausalLM.from_pretrained(
                    source,
                    dtype=getattr(torch, dtype),
                    trust_remote_code=False,
                    use_safetensors=True,
                    attn_implementation="sdpa",
                    output_loading_info=True,
                )
        except ModelError:
            raise
        except Exception as error:  # whatever error a library raises for a damaged file, the user gets one sentence
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(f"the model {source} cannot be loaded: {reason}") from error
        if loading["missing_keys"]:  # transformers would fill them with random numbers
            first = min(loading["missing_keys"])
            raise ModelError(f"the model {source} lacks {len(loading['missing_keys'])} tensors, {first} among them")
        policy = cls(model.to(device).eval(), tokenizer)
        if wrong := policy._unusable():
            raise ModelError(f"the model {source} {wrong}")
        return policy

    def _unusable(self) -> str:
        """Why no swarm can learn with it, in a clause; empty if one can."""
        ids, known = self.encode(string.printable), self._model.get_input_embeddings().num_embeddings
        if not ids:
            return "has a tokenizer that makes no tokens of a text; its folder probably lacks the tokenizer's files"
        if (last := max(*ids, self.eos, self.pad)) >= known:
            return f"has {known} tokens, and its tokenizer gives the token {last}; the two do not belong together"
        strange = (name for name, weight in self._model.named_parameters() if not weight.isfinite().all())
        return f"has weights that are not finite, in {name}" if (name := next(strange, "")) else ""

    @property
    def model(self) -> Any:
        """The transformers model with its current weights."""
        if self.before_use is not None:
            self.before_use()
        return self._model

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An independent policy without deferred updates."""
        return type(self)(copy.deepcopy(self.model, memo), self.tokenizer)

    @property
    def config(self) -> Any:
        """The model's configuration, which no update changes."""
        return self._model.config

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._model.dtype  # type: ignore[no-any-return]

    def shares_tokens(self, other: Policy) -> bool:
        """Whether the two turn every text into the same tokens."""
        return self.tokenizer is other.tokenizer or self.lexicon == other.lexicon

    @cached_property
    def lexicon(self) -> str:
        """A value that is equal for two tokenizers if and only if they turn every text into the same tokens."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        whole = backend.to_str() if backend is not None else repr(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._model.device  # type: ignore[no-any-return]

    @property
    def logit_noise(self) -> float:
        """By how much a logit may differ between two batch shapes."""
        return LOGIT_NOISE[str(self.dtype).removeprefix("torch.")]

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat prompt; the bare contents, joined by newlines, if the tokenizer has no template."""
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer("\n".join(message["content"] for message in messages) + "\n")["input_ids"])

    def quoting_prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """As `prompt_ids`, for contents that quote strangers: control tokens written out in them are broken up."""
        broken = [self._control.sub(lambda at: f"{at[0][0]} {at[0][1:]}", message["content"]) for message in messages]
        return self.prompt_ids([one | {"content": text} for one, text in zip(messages, broken, strict=True)])

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion's text, without EOS."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of token id rows, special tokens kept visible."""
        if not rows:  # tokenizers make one text of no rows
            return []
        return list(
            self.tokenizer.batch_decode(
                [list(row) for row in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token when decoded alone."""
        new = [token for token in dict.fromkeys(ids) if token not in self._pieces]
        if new:
            self._pieces |= dict(zip(new, self.decode([[token] for token in new]), strict=True))
        return [self._pieces[token] for token in ids]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefix:
        """Run every prompt once. Gradients flow when grad mode is on."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.pad)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        mask = torch.arange(width)[None, :] >= width - lengths[:, None]
        positions = (torch.arange(width)[None, :] - (width - lengths[:, None])).clamp(min=0)
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        # A padded position sees only itself: an all-masked row would be NaN and poison gradients.
        visible = (causal & mask[:, None, :]) | torch.eye(width, dtype=torch.bool)
        caches, last = [], []
        rows = max(1, PREFILL_TOKENS["cpu" if self.device.type == "cpu" else "cuda"] // width)
        for start in range(0, len(prompts), rows):
            part, cache = slice(start, start + rows), _Recorder()
            last.append(self.forward(ids[part], positions[part], visible[part, None], cache)[:, -1])
            caches.append(cache)
        keys = [_joined(layer) for layer in zip(*(cache.keys for cache in caches), strict=True)]
        values = [_joined(layer) for layer in zip(*(cache.values for cache in caches), strict=True)]
        return Prefix(keys, values, _joined(last), mask.to(self.device), lengths.to(self.device))

    def extend(self, prefix: Prefix, prompt: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Hidden states that predict each target token.

        Args:
            prefix: prompts, from `prefill`.
            prompt: int64, which prompt each row follows, shape (rows,).
            targets: int64, right-padded completion tokens, shape (rows, length).

        Returns:
            shape (rows, length, hidden).
        """
        first = _repeated(prefix.last, prompt)[:, None]
        steps = targets.shape[1] - 1
        if steps == 0:
            return first
        positions = prefix.lengths.index_select(0, prompt)[:, None] + torch.arange(steps, device=self.device)
        behind = prefix.mask.index_select(0, prompt)[:, None, :].expand(-1, steps, -1)
        own_tokens = torch.ones(steps, steps, dtype=torch.bool, device=self.device).tril().expand(len(prompt), -1, -1)
        visible = torch.cat([behind, own_tokens], 2)[:, None]
        rest = self.forward(targets[:, :-1], positions, visible, _BehindPrompt(prefix, prompt))
        return torch.cat([first, rest], 1)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: Any) -> torch.Tensor:
        """Final hidden states, shape (rows, length, hidden), with keys and values passed through `cache.update`.

        Args:
            ids: token ids, shape (rows, length).
            positions: their positions, for the rotary embedding, same shape.
            visible: what each token may attend to, bool, shape (rows, 1, length, cached length).
            cache: an object with `update` and `get_seq_length` as transformers' caches have.
        """
        with nullcontext() if self.device.type == "cpu" else sdpa_kernel(_ATTENTION):
            return self.model.base_model(  # type: ignore[no-any-return]
                input_ids=ids.to(self.device),
                position_ids=positions.to(self.device),
                attention_mask=visible.to(self.device),
                use_cache=True,
                **{self._cache_argument: cache},
            ).last_hidden_state

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary from final hidden states, in float32 or better."""
        logits = hidden @ self.head_weight.T
        return logits.float() if logits.dtype.itemsize < 4 else logits

    @property
    def head_weight(self) -> torch.Tensor:
        """The output embeddings, shape (vocabulary, hidden)."""
        return self.model.get_output_embeddings().weight  # type: ignore[no-any-return]

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The trainable tensors by name, tied ones once."""
        return dict(self.model.named_parameters())


def check_directory(source: str | Path) -> None:
    """Raise ModelError if `source` is a local directory without a model, or a path that does not exist."""
    directory = Path(source).expanduser()
    if directory.is_dir():
        for needed, what in (("config.json", "config.json"), ("*.safetensors", "safetensors weights")):
            if not any(directory.glob(needed)):
                raise ModelError(f"the model directory {directory} has no {what}; give one that save_pretrained wrote")
        for weights in directory.glob("*.safetensors"):
            try:
                with safe_open(weights, "pt"):
                    pass  # opening compares the header with the file's size
            except (SafetensorError, OSError) as error:
                raise ModelError(f"the model {source} cannot be loaded: {weights.name} is damaged ({error})") from error
    elif str(source).startswith((".", "/", "~")):
        raise ModelError(f"there is no model directory {source}")


def check_config(source: str | Path) -> None:
    """Raise ModelError if a configuration makes transformers load code from a hub, or weights other than safetensors.

    Such a kernel is named as OWNER/NAME; it can be in the model's configuration as well as in `attn_implementation`.

    Raises:
        ModelError: it does.
    """
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(source)
    if kernel := next(_kernels(config), None):
        raise ModelError(f"the model {source} asks for the kernel {kernel}, which is code from a hub; it is not loaded")
    for index in Path(source).expanduser().glob("*.index.json"):
        shards = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        if other := next((shard for shard in shards if not str(shard).endswith(".safetensors")), None):
            raise ModelError(f"the model {source} names the weights {other}; only safetensors are read")


def _kernels(config: object, name: str = "") -> Iterator[str]:
    """Settings that choose an implementation from a hub, at every level of the configuration."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _kernels(value, name if "implementation" in name else str(key))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _kernels(value, name)
    elif isinstance(config, str) and "/" in config and ("implementation" in name or "kernel" in name):
        yield config


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hide progress bars: loading a model is quick, and they would garble the progress shown to the user."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
