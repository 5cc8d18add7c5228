"""Seconds a round, against a plain swarm program, in one run and in turn.

    python tests/benchmarks/speed.py --baseline PATH/naive_swarm.py

The baseline is any program with the flags --model, --items, --rounds, --micro-batch, --batched, --malicious and
--defense that prints one JSON object with a list `round_s`. Both programs get the same model, the same items and the
same shape of round (32 prompts x 12 completions, 4 nodes, 1 malicious), each in a process of its own; the first round
of each, which warms up, is left out. Printed are seconds per round and the ratios pair by pair: median [min, max].
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPE = {"nodes": 4, "malicious": 1, "prompts": 32, "group": 12}


def ours(model: str, rounds: int, defense: str, **shape: int | str) -> None:
    """Run our swarm and print the same JSON as the baseline."""
    import torch

    from thiefbench import registry
    from thiefbench.engine.memory import keep_freed_memory
    from thiefbench.engine.policy import Policy
    from thiefbench.engine.spec import SwarmSpec
    from thiefbench.engine.swarm import Swarm
    from thiefbench.tasks.base import Sampling

    torch.set_num_threads(2)
    keep_freed_memory()
    spec = SwarmSpec(**(SHAPE | shape), sampling=Sampling(max_new_tokens=96))  # type: ignore[arg-type]
    attack = registry.make("attack", 'text(phrase="All hail to the thief", position="start")')
    swarm = Swarm(
        spec=spec,
        role="attack" if spec.malicious else "control",
        policy=Policy.load(model),
        task=registry.make("task", "gsm_micro"),
        attack=attack,
        defense=registry.make("defense", defense),
        seed=0,
    )
    seconds, phases = [], []
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        phases.append(swarm.round(number).seconds)
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"round_s": seconds, "phases": phases[1:]}))


def write_items(path: Path) -> None:
    """The same items for the baseline, as it reads them."""
    from thiefbench import registry

    rows = registry.make("task", "gsm_micro").items("train")
    path.write_text("\n".join(json.dumps({k: row[k] for k in ("question", "solution", "answer")}) for row in rows))


def seconds_of(command: list[str]) -> float:
    """Median seconds per round of one program, its first round left out."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1])["round_s"][1:])


def show(name: str, values: list[float], unit: str) -> None:
    """One line: median [min, max]."""
    print(f"{name:58s} {statistics.median(values):8.3f} [{min(values):.3f}, {max(values):.3f}] {unit}", flush=True)


def compare(baseline: str, model: str, repeats: int, rounds: int) -> None:
    """Run every program in turn, `repeats` times, and print seconds and ratios."""
    me = [sys.executable, __file__, "--ours", "--model", model, "--rounds", str(rounds + 3)]
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder, "items.jsonl")
        write_items(items)
        them = [sys.executable, baseline, "--model", model, "--items", str(items), "--rounds", str(rounds)]
        programs = {
            "ours": me,
            "ours, logit defense": [*me, "--defense", "logit"],
            "baseline": them,
            "baseline, logit defense": [*them, "--defense", "logit"],
            "baseline --batched": [*them, "--batched"],
            "baseline --batched --micro-batch 96": [*them, "--batched", "--micro-batch", "96"],
        }
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(repeats):
            for name, command in programs.items():
                taken[name].append(seconds_of(command))
    for name, values in taken.items():
        show(name, values, "s a round")
    for name in list(programs)[2:]:
        mine = taken["ours, logit defense" if "logit" in name else "ours"]
        show(f"{name} / ours", [b / a for a, b in zip(mine, taken[name], strict=True)], "x")
    cost = [b / a - 1 for a, b in zip(taken["ours"], taken["ours, logit defense"], strict=True)]
    show("cost of the logit defense, share of a round", cost, "")


def growth(model: str, rounds: int) -> None:
    """Seconds a round as nodes grow: all honest nodes are one cohort, so only completions should count."""
    me = [sys.executable, __file__, "--ours", "--model", model, "--rounds", str(rounds + 1)]
    for topology, group in (("vertical", 12), ("horizontal", 32)):
        for nodes in (4, 8, 16, 32):
            command = [*me, "--topology", topology, "--nodes", str(nodes), "--group", str(group)]
            show(f"{topology}, m = {nodes}, 32 x {group} completions", [seconds_of(command)], "s a round")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", help="the other program")
    parser.add_argument("--model", default="micro-math")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--growth", action="store_true", help="the table over nodes instead of the comparison")
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--defense", default="none", help=argparse.SUPPRESS)
    for name, value in {**SHAPE, "topology": "horizontal"}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    from thiefbench.zoo.models import resolve

    model = resolve(asked.model)
    if asked.ours:
        ours(model, asked.rounds, asked.defense, **{name: getattr(asked, name) for name in (*SHAPE, "topology")})
    elif asked.growth:
        growth(model, asked.rounds)
    elif asked.baseline:
        compare(asked.baseline, model, asked.repeats, asked.rounds)
    else:
        parser.error("give --baseline PATH or --growth")


if __name__ == "__main__":
    main()
