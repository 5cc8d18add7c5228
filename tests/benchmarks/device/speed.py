"""Part `speed`: decoding and training at one shape with random weights, against transformers in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AutoTokenizer, ContinuousBatchingConfig, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from tests.benchmarks.device.sizes import Sizes, device
from thiefbench.defenses.anchors import AcceptAll
from thiefbench.engine.keys import key
from thiefbench.engine.learning.cohort import Cohort, TrainingRow
from thiefbench.engine.model.decoding import choose, sample
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.model.stepping import FusedStepper, GraphedStepper
from thiefbench.engine.spec import SwarmSpec
from thiefbench.tasks.base import Completion, Sampling
from thiefbench.zoo.models import resolve

NEEDS_CUDA = "needs a CUDA device"


@dataclass(frozen=True)
class Work:
    """What every program gets: a model, prompts, and how many tokens to write."""

    policy: Policy
    prompts: list[list[int]]
    rows: list[int]
    sizes: Sizes

    @classmethod
    def of(cls, sizes: Sizes) -> Work:
        """A model with random weights in bfloat16, and random prompts."""
        torch.manual_seed(0)
        with torch.device(device()):
            model = Qwen2ForCausalLM(sizes.config).to(torch.bfloat16).eval()
        policy = Policy(model, AutoTokenizer.from_pretrained(resolve("micro-math")))
        prompts = torch.randint(10, 1000, (sizes.prompts, sizes.prompt_tokens)).tolist()
        return cls(policy, prompts, [i for i in range(sizes.prompts) for _ in range(sizes.group)], sizes)

    @property
    def parameters(self) -> int:
        """Weights of the model, shared ones once."""
        return sum(weight.numel() for weight in self.policy.weights().values())

    @property
    def repeated(self) -> list[list[int]]:
        """The prompt of every sequence."""
        return [self.prompts[row] for row in self.rows]

    def sample(self) -> list[Completion]:
        """Our sampler's completions."""
        keys = [key("row", i) for i in range(len(self.rows))]
        return sample(self.policy, self.prompts, self.rows, keys, Sampling(max_new_tokens=self.sizes.new_tokens))


def measure_speed(sizes: Sizes, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All measurements, by name; reported after each, as what another library needs for one can take minutes."""
    work = Work.of(sizes)
    completions = work.sample()
    made = sum(len(each.ids) + each.ended for each in completions)
    told: dict[str, Any] = {
        "parameters": work.parameters,
        "sequences": f"{len(work.rows)} of {sizes.prompt_tokens} + {sizes.new_tokens} tokens",
    }
    measurements: dict[str, Callable[[], dict[str, Any]]] = {
        "decoding": partial(_decoding, work, made),
        "one decoding step": partial(_one_step, work),
        "training": partial(_training, work, completions, made),
        "generate": partial(_generate, work),
        "continuous batching": partial(_on_cuda, partial(_continuous, work, graphs=False)),
        "continuous batching, CUDA graphs": partial(_on_cuda, partial(_continuous, work, graphs=True)),
        "generate, CUDA graphs": partial(_on_cuda, partial(_generate, work, cache_implementation="static")),
    }
    for name, measure in measurements.items():
        told[name] = _or_error(measure)
        report(told)
    return told


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of `repeats` runs after one that warms up; a device's queued work is waited for."""
    taken = []
    for _ in range(repeats + 1):
        _finish()
        began = time.perf_counter()
        run()
        _finish()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def least_seconds(config: Qwen2Config, parameters: int, sizes: Sizes) -> float:
    """The roofline of decoding in bfloat16: the larger of two times for all steps.

    One is that of reading weights, keys and values once a step at the memory bandwidth; the other is that of two
    operations per parameter and completion at the peak rate.

    Every completion has its full length; a prompt's keys and values are read once for all of its completions, and a
    completion is on average half as long as in the end.
    """
    size = config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * size * 2  # keys and values, 2 bytes each
    own = sizes.prompts * sizes.group * sizes.new_tokens / 2 * per_token
    shared = sizes.prompts * sizes.prompt_tokens * per_token
    reading = (2 * parameters + own + shared) / sizes.bandwidth
    computing = 2 * parameters * sizes.prompts * sizes.group / sizes.flops
    return sizes.new_tokens * max(reading, computing)


def _decoding(work: Work, made: int) -> dict[str, float]:
    took = seconds(work.sample, work.sizes.repeats)
    least = least_seconds(work.sizes.config, work.parameters, work.sizes)
    return {"tokens a second": made / took, "share of the roofline": least / took} | _peak_memory()


def _training(work: Work, completions: list[Completion], made: int) -> dict[str, float]:
    """One update on the pool; MFU is 6 * parameters * tokens (prompts once) over the peak rate."""
    sizes = work.sizes
    spec = SwarmSpec(prompts=sizes.prompts, group=sizes.group, sampling=Sampling(max_new_tokens=sizes.new_tokens))
    cohort = Cohort(work.policy, spec, AcceptAll())
    answers = zip(work.rows, completions, strict=True)
    lessons = [TrainingRow(prompt, each.ids, float(n % 3 == 0)) for n, (prompt, each) in enumerate(answers)]
    took = seconds(lambda: cohort.update(work.prompts, lessons), sizes.repeats)
    read = made + sizes.prompts * sizes.prompt_tokens
    return {
        "completion tokens a second": made / took,
        "MFU": 6 * work.parameters * read / took / sizes.flops,
    } | _peak_memory()


@torch.inference_mode()
def _one_step(work: Work) -> dict[str, Any]:
    """One step halfway through the completions, launched kernel by kernel and replayed from a CUDA graph, and what
    follows on it: the logits, and the choice of a token from them."""
    policy, repeats = work.policy, 10 * work.sizes.repeats
    prompt = torch.tensor(work.rows, device=policy.device)
    tokens = torch.full_like(prompt, 10)

    def halfway(batch: FusedStepper) -> FusedStepper:
        for _ in range(work.sizes.new_tokens // 2):
            batch.step(tokens)
        return batch

    prefix = policy.prefill(work.prompts)
    launched = halfway(FusedStepper(policy, prefix, prompt))
    hidden = launched.step(tokens)
    logits = policy.head(hidden)
    milliseconds: dict[str, Any] = {
        "launched, ms": 1000 * seconds(lambda: launched.step(tokens), repeats),
        "logits, ms": 1000 * seconds(lambda: policy.head(hidden), repeats),
        "choice, ms": 1000 * seconds(lambda: choose(logits, prompt, 0, Sampling()), repeats),
    }
    if policy.device.type != "cuda":
        return milliseconds | {"replayed from a CUDA graph": NEEDS_CUDA}
    replayed = halfway(GraphedStepper(policy, prefix, prompt))
    return milliseconds | {"replayed from a CUDA graph, ms": 1000 * seconds(lambda: replayed.step(tokens), repeats)}


def _settings(work: Work) -> dict[str, Any]:
    """How transformers samples the same number of tokens."""
    return {"max_new_tokens": work.sizes.new_tokens, "do_sample": True, "top_k": 50, "top_p": 1.0, "temperature": 1.0}


def _generate(work: Work, **how: str) -> dict[str, float]:
    ids = torch.tensor(work.repeated, device=work.policy.device)
    wanted = {**_settings(work), "min_new_tokens": work.sizes.new_tokens, "pad_token_id": 0, **how}
    run = partial(work.policy.model.generate, input_ids=ids, attention_mask=torch.ones_like(ids), **wanted)
    took = seconds(run, work.sizes.repeats_of_others)
    return {"tokens a second": len(ids) * work.sizes.new_tokens / took} | _peak_memory()


def _continuous(work: Work, graphs: bool) -> dict[str, float]:
    """Continuous batching; how many tokens it wrote is counted, as it may end a completion early."""
    written: list[int] = []

    def run() -> None:
        outputs = work.policy.model.generate_batch(
            work.repeated,
            generation_config=GenerationConfig(**_settings(work), pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(use_cuda_graph=graphs),
        )
        written.append(sum(len(output.generated_tokens) for output in outputs.values()))

    took = seconds(run, work.sizes.repeats_of_others)
    return {"tokens a second": statistics.median(written[1:]) / took} | _peak_memory()


def _on_cuda(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return run() if torch.cuda.is_available() else {"not run": NEEDS_CUDA}


def _or_error(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The measurement, or why there is none: what another library cannot do ends no other measurement."""
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak_memory() -> dict[str, float]:
    """Peak device memory since the last call, in GiB; nothing without a device."""
    if not torch.cuda.is_available():
        return {}
    used = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return {"peak device memory, GiB": used}
