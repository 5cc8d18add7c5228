"""How much longer a completion of other settings takes than one of `smoke`: the ratios in `estimates/reference.py`.

    python tests/benchmarks/paces.py --rounds 2

Each setting plays a round that does not count, then the settings take turns, a round and a small evaluation each, on
one thread. Printed are processor seconds per unit of work, as a ratio to the first setting's: a machine that is busy
otherwise slows all of them alike.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

import torch

from thiefbench.engine.swarm import Swarm
from thiefbench.suite.estimates.eta import EVALUATED
from thiefbench.suite.estimates.reference import setting_of
from thiefbench.suite.execution.cell_run import build_swarm
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.suite_yaml import load_suite

SUITES = ("smoke", "standard-v1", "heterogeneous-v1", "standard-v2", "averaging-v1", "pipeline-v1", "truth-v1")
EVALUATION = 64


def undefended() -> dict[str, CellSpec]:
    """An undefended attacked cell of every setting of the shipped suites of built-in models."""
    cells = (cell for name in SUITES for cell in load_suite(name).cells("cpu", "float32", 1))
    plain = (cell for cell in cells if cell.role == "attack" and cell.defense == "none" and not cell.asks)
    first: dict[str, CellSpec] = {}
    for cell in plain:
        first.setdefault(setting_of(cell), replace(cell, seed=0))
    return first


def seconds_a_unit(swarm: Swarm, number: int) -> float:
    """Processor seconds of a round and an evaluation, per unit of work."""
    began = time.process_time()
    units = len(swarm.round(number).rows) + EVALUATED * len(swarm.evaluate(number, EVALUATION).rows)
    return (time.process_time() - began) / units


def main() -> None:
    """Print one line for every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count")
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    swarms = {name: build_swarm(cell) for name, cell in undefended().items()}
    for swarm in swarms.values():
        swarm.round(1)
    seconds: dict[str, list[float]] = {name: [] for name in swarms}
    for number in range(2, rounds + 2):
        for name, swarm in swarms.items():
            seconds[name].append(seconds_a_unit(swarm, number))
    first = median(next(iter(seconds.values())))
    for name, each in seconds.items():
        print(f"{name}: {median(each) / first:.2f} ({1e3 * median(each):.2f} ms)")


if __name__ == "__main__":
    main()
