"""Decoding and training on one device at the shape of Qwen2.5-1.5B with random weights, against transformers' generate.

    python tests/benchmarks/device.py                      # on a CUDA device, bfloat16
    python tests/benchmarks/device.py --shape tiny         # the same code on a small model, wherever

Printed are tokens per second, the share of the memory-bandwidth roofline in decoding (weights and keys and values read
once a step), model FLOP utilisation in training (6 * parameters * tokens over the peak rate) and peak memory. The peak
figures default to an H100 SXM's: 3.35 TB/s and 989 TFLOP/s in bfloat16 (NVIDIA's data sheet).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.keys import key
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.decoding import sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import SwarmSpec
from thiefbench.tasks.base import Sampling
from thiefbench.zoo.models import resolve

SHAPES = {
    "1.5b": Qwen2Config(
        vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, tie_word_embeddings=True,
    ),
    "tiny": Qwen2Config(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    ),
}  # fmt: skip


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of `repeats` runs after one that warms up."""
    taken = []
    for _ in range(repeats + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def peak() -> str:
    """Peak device memory since the last call."""
    if not torch.cuda.is_available():
        return "peak device memory: no CUDA device"
    used = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return f"peak device memory {used:.1f} GiB"


def main() -> None:
    """Build the model and time it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bandwidth", type=float, default=3.35e12, help="bytes per second")
    parser.add_argument("--flops", type=float, default=989e12, help="peak rate in bfloat16")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    config = SHAPES[asked.shape]
    with torch.device(device):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(resolve("micro-math"))
    policy = Policy(model, tokenizer)
    parameters = sum(weight.numel() for weight in policy.weights().values())
    rows = asked.prompts * asked.group
    print(f"{asked.shape}: {parameters / 1e6:.0f} M parameters, bfloat16, {device}")
    print(f"{rows} sequences of {asked.prompt_tokens} + {asked.new_tokens} tokens")

    prompts = torch.randint(10, 1000, (asked.prompts, asked.prompt_tokens)).tolist()
    which = [i for i in range(asked.prompts) for _ in range(asked.group)]
    keys = [key("row", i) for i in range(rows)]
    settings = Sampling(max_new_tokens=asked.new_tokens)
    done = sample(policy, prompts, which, keys, settings)
    made = sum(len(each.ids) + each.ended for each in done)
    took = seconds(lambda: sample(policy, prompts, which, keys, settings), asked.repeats)
    size = config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * size * 2  # keys and values, 2 bytes each
    own = rows * asked.new_tokens / 2 * per_token
    shared = asked.prompts * asked.prompt_tokens * per_token
    least = asked.new_tokens * (2 * parameters + own + shared) / asked.bandwidth
    print(f"decoding: {made / took:,.0f} tokens/s, {least / took:.1%} of the bandwidth roofline; {peak()}")

    ids = torch.tensor([prompts[i] for i in which], device=device)
    generate = lambda: model.generate(  # noqa: E731
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked.new_tokens,
        min_new_tokens=asked.new_tokens, do_sample=True, top_k=50, top_p=1.0, temperature=1.0, pad_token_id=0,
    )  # fmt: skip
    plain = seconds(generate, asked.repeats)
    theirs = rows * asked.new_tokens / plain
    print(f"transformers' generate: {theirs:,.0f} tokens/s; ours / theirs {made / took / theirs:.2f}; {peak()}")

    spec = SwarmSpec(prompts=asked.prompts, group=asked.group, sampling=settings)
    cohort = Cohort(policy, spec, AcceptAll())
    lessons = [TrainingRow(i, each.ids, float(n % 3 == 0)) for n, (i, each) in enumerate(zip(which, done, strict=True))]
    took = seconds(lambda: cohort.update(prompts, lessons), asked.repeats)
    read = made + asked.prompts * asked.prompt_tokens
    mfu = 6 * parameters * read / took / asked.flops
    print(f"training: {made / took:,.0f} completion tokens/s, MFU {mfu:.1%}; {peak()}")


if __name__ == "__main__":
    main()
