"""How much each part of the device benchmark runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import Qwen2Config

from thiefbench.zoo.recipe import RECIPES, Recipe

QWEN_1_5B = Qwen2Config(
    vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
TINY_SHAPE = Qwen2Config(
    vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip

# Chosen by its size alone; its start reward and its learning rate in swarms have not been measured. The batch is larger
# than that of the built-in models: with 32 texts, an H200 made 10 steps a second and was idle most of the time.
MEDIUM = replace(RECIPES["micro-math"], name="medium-math", hidden=512, layers=8, heads=8, feedforward=1408,
                 batch=128, learning_rate=1e-3, threads=1)  # fmt: skip
MEDIUM_SWARM_RATE = 2e-4


# By a part of the device's name: bytes per second and dense FLOP/s in bfloat16, from NVIDIA's data sheets of the SXM
# versions. Other devices get those of the H100.
DATA_SHEETS = {"H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12), "A100": (2.04e12, 312e12)}


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        config: the network whose speed is measured, with random weights.
        prompts, group, prompt_tokens, new_tokens: the sequences that are decoded and learned from.
        repeats: timed runs, after one that warms up.
        repeats_of_others: the same, of transformers' sampling.
        swarm_prompts, swarm_group: completions of a swarm's round.
        rounds: of every swarm.
        completions: held-out ones at a swarm's last evaluation.
        medium: the recipe of the larger model.
        bandwidth: the device's memory bandwidth, bytes per second.
        flops: its peak rate in bfloat16.
    """

    config: Qwen2Config
    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int
    repeats: int
    repeats_of_others: int
    swarm_prompts: int
    swarm_group: int
    rounds: int
    completions: int
    medium: Recipe
    bandwidth: float = DATA_SHEETS["H100"][0]
    flops: float = DATA_SHEETS["H100"][1]


FULL = Sizes(
    config=QWEN_1_5B, prompts=32, group=12, prompt_tokens=128, new_tokens=256, repeats=3, repeats_of_others=1,
    swarm_prompts=32, swarm_group=12, rounds=60, completions=2048, medium=MEDIUM,
)  # fmt: skip
TINY = Sizes(
    config=TINY_SHAPE, prompts=4, group=4, prompt_tokens=8, new_tokens=8, repeats=1, repeats_of_others=1,
    swarm_prompts=4, swarm_group=4, rounds=1, completions=8,
    medium=replace(MEDIUM, texts=320, hidden=32, layers=1, heads=2, feedforward=64),
)  # fmt: skip


def data_sheet(name: str) -> tuple[float, float]:
    """Memory bandwidth and peak rate of a device by its name."""
    return next((rates for part, rates in DATA_SHEETS.items() if part in name), DATA_SHEETS["H100"])


def device() -> str:
    """The device that is measured: CUDA where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
