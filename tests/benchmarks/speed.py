"""Seconds a round, against a plain swarm program, in one run and in turn; and how cost, memory and learning behave.

    python tests/benchmarks/speed.py --baseline PATH/naive_swarm.py            # all four parts, about 40 minutes
    python tests/benchmarks/speed.py --baseline PATH/naive_swarm.py --part ratios
    python tests/benchmarks/speed.py --part growth --part memory               # these two need no baseline

ratios      Both programs get the same model, items and shape of round (32 prompts x 12 completions, 4 nodes, 1
            malicious), each in a process of its own and in turn; the first rounds of each, which warm up, are left out.
            Printed are seconds per round and ratios pair by pair: median [min, max]. "Best" is each program's fastest
            dtype, found first.
trajectory  Clean reward of both programs, no malicious node, three seeds: every round draws new items of 4,096, so a
            round's reward is measured before its items are learned from.
growth      Seconds a round as nodes grow: all honest nodes are one cohort, so only completions should count.
memory      Peak resident memory over 200 rounds.

The baseline is any program with the flags --model, --items, --rounds, --nodes, --malicious, --batched, --micro-batch,
--defense, --lr, --betas, --dtype and --seed that prints one JSON object with the lists `round_s` and `reward`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {"topology": "horizontal", "nodes": 4, "malicious": 1, "prompts": 32, "group": 12}
WARM_UP = 1
TRAJECTORY = {"rounds": 40, "lr": 3e-4, "seeds": 3, "last": 10}


def ours(asked: argparse.Namespace) -> None:
    """Run our swarm and print the same JSON as the baseline, with peak memory in MiB after every round."""
    import torch

    from thiefbench import registry
    from thiefbench.engine.learning.memory import keep_freed_memory
    from thiefbench.engine.model.policy import Policy
    from thiefbench.engine.spec import LearnerSpec, SwarmSpec
    from thiefbench.engine.swarm import Swarm
    from thiefbench.tasks.base import Sampling

    torch.set_num_threads(2)
    keep_freed_memory()
    spec = SwarmSpec(
        **{name: getattr(asked, name) for name in SHAPE},
        sampling=Sampling(max_new_tokens=96),
        learner=LearnerSpec(learning_rate=asked.lr),
    )
    swarm = Swarm(
        spec=spec,
        role="attack" if spec.malicious else "control",
        policy=Policy.load(asked.model, dtype=asked.dtype),
        task=registry.make("task", "gsm_micro"),
        attack=registry.make("attack", 'text(phrase="All hail to the thief", position="start")'),
        defense=registry.make("defense", asked.defense),
        seed=asked.seed,
    )
    log: dict[str, list[float]] = {"round_s": [], "reward": [], "peak_mib": []}
    for number in range(1, asked.rounds + 1):
        began = time.perf_counter()
        record = swarm.round(number)
        log["round_s"].append(time.perf_counter() - began)
        log["reward"].append(statistics.mean(row.reward for row in record.rows if not row.malicious))
        log["peak_mib"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(log))


def write_items(path: Path) -> None:
    """The same items for the baseline, as it reads them."""
    from thiefbench import registry

    rows = registry.make("task", "gsm_micro").items("train")
    path.write_text("\n".join(json.dumps({k: row[k] for k in ("question", "solution", "answer")}) for row in rows))


@dataclass(frozen=True)
class Programs:
    """How the two programs are started."""

    model: str
    baseline: str = ""
    items: str = ""

    def us(self, rounds: int, *flags: str) -> dict[str, list[float]]:
        """What our program logs."""
        return log_of([sys.executable, __file__, "--ours", "--model", self.model, "--rounds", str(rounds), *flags])

    def them(self, rounds: int, *flags: str) -> dict[str, list[float]]:
        """What the baseline logs."""
        shared = ["--model", self.model, "--items", self.items, "--rounds", str(rounds)]
        return log_of([sys.executable, self.baseline, *shared, *flags])


def log_of(command: list[str]) -> dict[str, list[float]]:
    """The JSON object that a program prints last."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    log: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return log


def show(name: str, values: list[float], unit: str) -> None:
    """One line: median [min, max]."""
    print(f"{name:66s} {statistics.median(values):8.3f} [{min(values):.3f}, {max(values):.3f}] {unit}", flush=True)


def ratios(programs: Programs, repeats: int, rounds: int) -> None:
    """Run every program in turn, `repeats` times, and print seconds and ratios."""

    def seconds(run: Callable[..., dict[str, list[float]]], *flags: str) -> float:
        # Our rounds are short, so more of them are needed for a median that one hiccup does not move.
        count = WARM_UP + rounds * (4 if run == programs.us else 1)
        return statistics.median(run(count, *flags)["round_s"][WARM_UP:])

    quick, bf16 = ("--batched", "--micro-batch", "96"), ("--dtype", "bfloat16")
    best_us = min((), bf16, key=lambda flags: programs.us(2, *flags)["round_s"][1])
    best_them = min((), bf16, key=lambda flags: programs.them(1, *quick, *flags)["round_s"][0])
    print(f"fastest dtype: ours {best_us[-1:] or 'float32'}, baseline {best_them[-1:] or 'float32'}", flush=True)
    runs: dict[str, tuple[Callable[..., dict[str, list[float]]], tuple[str, ...]]] = {
        "ours": (programs.us, ()),
        "baseline": (programs.them, ()),
        "ours, logit": (programs.us, ("--defense", "logit(reject='drop')")),
        "baseline --batched --micro-batch 96": (programs.them, quick),
        "ours, no attack": (programs.us, ("--malicious", "0")),
        "baseline --batched --micro-batch 96, no attack": (programs.them, (*quick, "--malicious", "0")),
    }
    if best_us or best_them:
        runs |= {"ours, best": (programs.us, best_us), "baseline, best": (programs.them, (*quick, *best_them))}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (run, flags) in runs.items():
            taken[name].append(seconds(run, *flags))
    for name, values in taken.items():
        show(name, values, "s a round")
    for name in (name for name in runs if name.startswith("baseline")):
        _, _, kind = name.partition(", ")
        mine = taken[f"ours, {kind}" if kind else "ours"]
        show(f"{name} / ours", [b / a for a, b in zip(mine, taken[name], strict=True)], "x")
    cost = [b / a - 1 for a, b in zip(taken["ours"], taken["ours, logit"], strict=True)]
    show("cost of the logit defense, share of a round", cost, "")


def trajectory(programs: Programs) -> None:
    """Clean reward of both programs over the same number of rounds."""
    rounds, last = TRAJECTORY["rounds"], int(TRAJECTORY["last"])
    learner = ("--malicious", "0", "--lr", str(TRAJECTORY["lr"]))
    quick = ("--batched", "--micro-batch", "96", "--nodes", "1", "--betas", "0.9", "0.95")
    ends: dict[str, list[float]] = {"ours": [], "baseline": []}
    for seed in range(int(TRAJECTORY["seeds"])):
        flags = (*learner, "--seed", str(seed))
        for name, log in (
            ("ours", programs.us(int(rounds), *flags)),
            ("baseline", programs.them(int(rounds), *flags, *quick)),
        ):
            tens = [statistics.mean(log["reward"][i : i + 10]) for i in range(0, int(rounds), 10)]
            print(f"{name:9s} seed {seed}: mean reward by tens of rounds", " ".join(f"{value:.3f}" for value in tens))
            ends[name].append(statistics.mean(log["reward"][-last:]))
    for name, values in ends.items():
        show(f"{name}: clean reward, last {last} of {rounds} rounds", values, "")


def growth(programs: Programs, rounds: int) -> None:
    """Seconds a round over nodes, in both topologies."""
    for topology, group in (("vertical", 12), ("horizontal", 32)):
        for nodes in (4, 8, 16, 32):
            flags = ("--topology", topology, "--nodes", str(nodes), "--group", str(group))
            seconds = programs.us(WARM_UP + 2 * rounds, *flags)["round_s"][WARM_UP:]
            show(f"{topology}, m = {nodes}, 1 malicious, 32 x {group} completions", seconds, "s a round")


def memory(programs: Programs, rounds: int = 200) -> None:
    """Peak resident memory as rounds go by."""
    peaks = programs.us(rounds, "--defense", "logit(reject='drop')")["peak_mib"]
    told = ", ".join(f"{peaks[i - 1]:.0f} after {i}" for i in (1, 10, 50, 100, 150, rounds))
    print(f"peak resident memory in MiB, logit defense: {told} rounds", flush=True)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", help="the other program")
    parser.add_argument("--model", default="micro-math")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=3, help="timed rounds of the baseline; ours runs four times as many"
    )
    parser.add_argument("--part", action="append", choices=["ratios", "trajectory", "growth", "memory"])
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    hidden = {**SHAPE, "defense": "none", "dtype": "float32", "lr": 3e-4, "seed": 0}
    for name, value in hidden.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    from thiefbench.zoo.models import resolve

    asked.model = resolve(asked.model)
    if asked.ours:
        ours(asked)
        return
    parts = asked.part or ["ratios", "trajectory", "growth", "memory"]
    if not asked.baseline and {"ratios", "trajectory"} & set(parts):
        parser.error("ratios and trajectory compare with another program: give --baseline PATH")
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder, "items.jsonl")
        write_items(items)
        programs = Programs(asked.model, asked.baseline or "", str(items))
        if "ratios" in parts:
            ratios(programs, asked.repeats, asked.rounds)
        if "trajectory" in parts:
            trajectory(programs)
        if "growth" in parts:
            growth(programs, asked.rounds)
        if "memory" in parts:
            memory(programs)


if __name__ == "__main__":
    main()
