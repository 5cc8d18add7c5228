"""The fused decoding step against transformers' own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from thiefbench.engine.keys import key
from thiefbench.engine.model import decoding
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import FusedStepper, GraphedStepper, PlainStepper, stepper
from thiefbench.tasks.base import Sampling
from thiefbench.zoo.models import resolve

SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.15,
}  # fmt: skip


def models() -> dict[str, Callable[[], Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    llama3 = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    return {
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "llama with biases and long-context rotation": lambda: LlamaForCausalLM(
            LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, head_dim=16, rope_parameters=llama3)
        ),
    }


@pytest.fixture(params=["qwen2", "llama", "llama with biases and long-context rotation"])
def random_policy(request: pytest.FixtureRequest, policy: Policy) -> Policy:
    torch.manual_seed(1)
    model = models()[request.param]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero and norms at one, which would hide them
            parameter += 0.1 * torch.randn_like(parameter)
    return Policy(model, policy.tokenizer)


class Ungraphed(GraphedStepper):
    """The work of a GPU's step, on a processor, which has no graphs."""

    captures = 0

    def _capture(self, tokens: torch.Tensor) -> None:
        self.captures += 1
        self.graph = torch.cuda.CUDAGraph.__new__(torch.cuda.CUDAGraph)

    def _replayed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._advance(tokens)


@pytest.mark.parametrize("kind", [FusedStepper, Ungraphed])
@torch.inference_mode()
def test_states_equal_the_plain_step(kind: type[FusedStepper], random_policy: Policy, prompts: list[list[int]]) -> None:
    """Steps over ragged groups with rows dropped on the way: past two buffer blocks."""
    prompt = torch.tensor([0, 0, 0, 1, 2, 2, 5, 5, 5, 5, 5, 11, 3, 3, 7, 0, 0])
    prefix = random_policy.prefill(prompts)
    fused, plain = kind(random_policy, prefix, prompt), PlainStepper(random_policy, prefix, prompt)
    assert type(stepper(random_policy, prefix, prompt)) is FusedStepper
    rows, generator = len(prompt), torch.Generator().manual_seed(2)
    for step in range(150):
        if step in (3, 30, 50):
            kept = torch.randperm(rows, generator=generator)[: rows - 3]
            rows -= 3
            fused.keep(kept)
            plain.keep(kept)
        tokens = torch.randint(0, 300, (rows,), generator=generator)
        torch.testing.assert_close(fused.step(tokens), plain.step(tokens), rtol=2e-4, atol=2e-4)
    if isinstance(fused, Ungraphed):
        assert fused.captures == 5, "one for each set of shapes: three times rows went, and three buffers"


def test_other_models_take_the_plain_step(policy: Policy, prompts: list[list[int]]) -> None:
    policy.model.config.model_type = "something_else"
    prefix = policy.prefill(prompts)
    assert type(stepper(policy, prefix, torch.tensor([0, 1]))) is PlainStepper


@pytest.mark.parametrize("name", ["tiny", "micro-math"])
def test_tokens_equal_those_of_the_plain_step(
    name: str, policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same keys draw the same tokens; rows that differ are near-ties, and counted."""
    if name == "micro-math":
        policy = Policy.load(resolve(name))
        prompts = [policy.prompt_ids([{"role": "user", "content": f"Tom has {n} pens."}]) for n in range(2, 26)]
    rows = [i % len(prompts) for i in range(96)]
    settings = Sampling(max_new_tokens=48)

    def drawn() -> list[tuple[int, ...]]:
        return [made.ids for made in sample(policy, prompts, rows, [key("row", i) for i in range(96)], settings)]

    fused = drawn()
    monkeypatch.setattr(decoding, "stepper", PlainStepper)
    plain = drawn()
    differing = sum(one != other for one, other in zip(fused, plain, strict=True))
    assert differing <= 1, f"{differing} of 96 completions differ, more than near-ties explain"
    assert len({len(ids) for ids in fused}) > 5


def test_memory_follows_the_lengths_drawn(policy: Policy, prompts: list[list[int]]) -> None:
    """Buffers for own keys and values grow with the steps and shrink with the rows."""
    prefix = policy.prefill(prompts)
    batch = FusedStepper(policy, prefix, torch.arange(12))

    def floats(tensors: Sequence[torch.Tensor]) -> int:
        return sum(tensor.numel() for tensor in tensors)

    assert floats(batch.own) == 0, "nothing is held before the first step"
    with torch.inference_mode():
        batch.step(torch.zeros(12, dtype=torch.long))
        one = floats(batch.own)
        for _ in range(40):
            batch.step(torch.zeros(12, dtype=torch.long))
        assert floats(batch.own) == 2 * one
        batch.keep(torch.tensor([3]))
    assert floats(batch.own) < 2 * one / 12
    assert all(len(keys) == 1 for keys in batch.keys), "prompts nobody answers any more are let go"
