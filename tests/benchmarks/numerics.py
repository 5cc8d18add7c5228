"""What a defense rejects of honest work that nodes of other precision, thread counts or batches have done.

    python tests/benchmarks/numerics.py
    python tests/benchmarks/numerics.py --defense logit --defense "toploc" --dtype float32

Nodes of a homogeneous swarm hold equal weights, but their last bits differ: two machines, another number of threads,
another batch, bfloat16. Each line takes two rounds of honest completions sampled in one setting, all of a cohort or
each node's own together, and lets a node in another setting judge them: the share rejected among the rewarded ones,
with a 95 % interval clustered by sender and item. Models are the built-in ones at their start weights.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np
import torch

from thiefbench import registry
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.spec import Batches, SwarmSpec
from thiefbench.leaderboard.checking.samples import Sample, SampleRecipe, sample_of
from thiefbench.suite.analysis.clustered import clustered_rate, numbered
from thiefbench.suite.store.records import Score
from thiefbench.tasks.base import Sampling
from thiefbench.zoo.models import resolve

DEFENSES = ("logit", "seed_replay", "toploc", "likelihood", "termination", "guard(beacon=False)", "guard")
RECIPES = (
    SampleRecipe("gsm_micro", "micro-math", "text"),
    SampleRecipe("code_micro", "micro-code", "text", max_new_tokens=128),
)

BATCHES: tuple[Batches, ...] = ("cohort", "node")
Dtype = Literal["float32", "bfloat16"]
Setting = tuple[Dtype, int]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defense", action="append", help="repeat for several; default: those that ask the policy")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"), help="default: both")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and 2")
    parser.add_argument("--batches", action="append", choices=BATCHES, help="default: both")
    parser.add_argument("--prompts", type=int, default=64, help="prompts a round, with 8 completions each")
    asked = parser.parse_args()
    settings: list[Setting] = list(product(asked.dtype or ("float32", "bfloat16"), asked.threads or (1, 2)))
    for recipe, sampler, batches in product(RECIPES, settings, asked.batches or BATCHES):
        sample = honest(recipe, sampler, batches, asked.prompts)
        for verifier, defense in product(settings, asked.defense or DEFENSES):
            rate = false_rejection(sample, recipe, verifier, defense)
            print(
                f"{recipe.task:10}  sampled {told(sampler)} by {batches:6}  judged {told(verifier)}  {defense:20}"
                f"  {rate.value:.4f} [{rate.low:.4f}, {rate.high:.4f}] of {rate.count}",
                flush=True,
            )


def honest(recipe: SampleRecipe, setting: Setting, batches: Batches, prompts: int) -> Sample:
    """Two rounds, played in a setting; a quarter of the pool is poison, which is not counted."""
    task = registry.make("task", recipe.task)
    spec = SwarmSpec(prompts=prompts, group=8, sampling=Sampling(max_new_tokens=recipe.max_new_tokens))
    return sample_of(recipe, spec, loaded(recipe, setting), task, batches)


def loaded(recipe: SampleRecipe, setting: Setting) -> Policy:
    """The model as a node in a setting holds it."""
    dtype, threads = setting
    torch.set_num_threads(threads)
    return Policy.load(resolve(recipe.model), dtype=dtype)


def false_rejection(sample: Sample, recipe: SampleRecipe, setting: Setting, spec: str) -> Score:
    """The share that a defense rejects of the honest rewarded completions."""
    defense = registry.make("defense", spec)
    judged = replace(sample, policy=loaded(recipe, setting))
    cases: list[tuple[bool, str, str]] = []
    for number, (pool, poison) in enumerate(zip(sample.rounds, sample.poison, strict=True), 1):
        view = judged.view(defense, number)
        # Proofs are the sampler's: they are made of the states that the sampling node had.
        shown = sample.view(defense, number).completions if "proofs" in defense.requires else view.completions
        verdicts = defense.inspect(replace(view, completions=shown))
        cases += [
            (verdict.action != "accept", offered.sender, offered.item_id)
            for offered, poisoned, verdict in zip(pool, poison, verdicts, strict=True)
            if offered.reward > 0 and not poisoned
        ]
    rejected, senders, items = zip(*cases, strict=True) if cases else ((), (), ())
    return clustered_rate(np.array(rejected, bool), numbered(senders), numbered(items))


def told(setting: Setting) -> str:
    """A setting in words."""
    dtype, threads = setting
    return f"{dtype:8} x{threads}"


if __name__ == "__main__":
    main()
