"""Cells per hour on a Ray cluster of two CPUs against one of one CPU, each cell with one thread: pairs, run in turn.

    python tests/benchmarks/ray_scaling.py [--pairs 5] [--cells 4] [--rounds 20] [--suite smoke]

Every measurement starts a Ray of its own on this machine, lets it run one cell for each CPU, so that its processes have
imported and loaded everything, and then times as many cells as asked for in a fresh store. Printed are both paces and
the median ratio within pairs with its range; it needs two idle cores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import ray

from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.execution.ray_executor import OBJECT_STORE_BYTES, RayExecutor, Share
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import Record, Store
from thiefbench.suite.suite_yaml import load_suite


class Silent:
    """A listener that hears nothing but failures."""

    def plan(self, plan: RunOutline) -> None:
        """Nothing."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """Nothing."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A failed cell is no measurement."""
        if record.status == "error":
            raise SystemExit(f"{spec.label} failed: {record.error}")

    def note(self, message: str) -> None:
        """Say it."""
        print(message)


def cells_per_hour(suite: Suite, cells: int, cpus: int) -> float:
    """The pace of a Ray of so many CPUs over so many undefended cells, which differ in their seed."""
    of = [replace(suite.cells("cpu", "float32", 1)[1], seed=seed) for seed in range(cells + cpus)]
    ray.init(
        address="local", num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    try:
        with TemporaryDirectory() as folder, RayExecutor(Share(1)) as executor:
            store = Store(Path(folder))
            run_suite(suite, of[cells:], store, Silent(), executor=executor)
            began = time.perf_counter()
            run_suite(suite, of[:cells], store, Silent(), executor=executor)
            return 3600 * cells / (time.perf_counter() - began)
    finally:
        ray.shutdown()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cells", type=int, default=4, help="timed in each measurement; even, so that none is idle")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--suite", default="smoke")
    asked = parser.parse_args()
    short = Evaluation(every=asked.rounds, completions=64, final=64)
    suite = load_suite(asked.suite).override("ray_scaling", rounds=asked.rounds, evaluation=short, recorded=())
    ratios = []
    for number in range(asked.pairs):
        order = (1, 2) if number % 2 else (2, 1)
        pace = {cpus: cells_per_hour(suite, asked.cells, cpus) for cpus in order}
        ratios.append(pace[2] / pace[1])
        print(
            f"pair {number + 1}: {pace[1]:.1f} cells an hour on one CPU, {pace[2]:.1f} on two, ratio {ratios[-1]:.2f}"
        )
    print(f"ratio in {asked.pairs} pairs: median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
