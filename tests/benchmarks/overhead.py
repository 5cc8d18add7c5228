"""What a defense adds to a round: undefended and defended swarms played in turn, round by round, in one process.

    python tests/benchmarks/overhead.py guard "guard(beacon=False)" "logit(reject='drop')" [--rounds 12] [--seed 0]

Without an attack, and under each attack named by --attack, as `standard-v1` has it (seed, payload, topology). Printed
is the share that a defended round takes longer than the undefended one of the same number: the median over rounds,
which no single disturbance moves, and the range of the middle half. Swarms that learn other things come to write
answers of other lengths, which is part of the cost. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles

import torch

from thiefbench import registry
from thiefbench.engine.learning.memory import keep_freed_memory
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite


def costs(cell: CellSpec, defenses: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """By defense: how much longer than undefended each round took, as a share."""
    swarms = {defense: build_swarm(replace(cell, defense=defense)) for defense in ("none", *defenses)}
    made: dict[str, list[float]] = {defense: [] for defense in defenses}
    for number in range(1, rounds + 1):
        names = list(swarms)
        turn = number % len(names)  # nobody is always first
        taken = {name: sum(swarms[name].round(number).seconds.values()) for name in names[turn:] + names[:turn]}
        if number > 1:
            for defense in defenses:
                made[defense].append(taken[defense] / taken["none"] - 1)
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defense", nargs="+")
    parser.add_argument("--attack", action="append", default=None, help="repeat for several; default: all of the suite")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    keep_freed_memory()
    defenses = [registry.canonical("defense", defense) for defense in asked.defense]
    suite = replace(load_suite("standard-v1"), seeds=(asked.seed,), defenses=("none",))
    wanted = {registry.canonical("attack", attack) for attack in asked.attack or ()}
    seen = set()
    for cell in suite.cells("cpu", "float32", asked.threads):
        part = suite.part_of(cell)
        alone = cell.role == "control" and part not in seen
        if not alone and (cell.role != "attack" or (wanted and cell.attack not in wanted)):
            continue
        seen.add(part)
        for defense, shares in costs(cell, defenses, asked.rounds).items():
            low, _, high = quantiles(shares, n=4)
            where = f"{part}: {'no attack' if alone else cell.attack}"
            print(f"{where:70} {defense:30} {median(shares):+.0%} [{low:+.0%}, {high:+.0%}]", flush=True)


if __name__ == "__main__":
    main()
