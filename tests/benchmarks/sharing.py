"""Processor seconds for attacked cells of several defenses, each trained from its start, and with shared rounds.

    python tests/benchmarks/sharing.py [--suite trial] [--rounds 8] [--evaluated 64] [--threads 1] [--defense SPEC ...]

Trains the attacked swarms of a suite (seed 0) for a few rounds under every defense, both ways, in fresh stores, and
prints the processor seconds under each defense, how many rounds were shared, the sums, and what the stores take on
disk. All records must come out the same. `trial` has one attack (32 prompts x 12 completions, 4 nodes of which 1 is
malicious) and takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.execution.runner import run_suite
from thiefbench.suite.scenario import CellSpec, Evaluation, Suite
from thiefbench.suite.store.records import Record, Store, rounds_taken
from thiefbench.suite.suite_yaml import load_suite

DEFENSES = (
    "none", 'oracle(reject="drop")', "guard", "seed_replay", 'logit(reject="drop")', 'similarity(reject="drop")',
    "blacklist", "static_code",
)  # fmt: skip


class Timed:
    """A listener that notes the processor time at the end of every cell."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._last = time.process_time()

    def plan(self, plan: RunOutline) -> None:
        """Nothing."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """Nothing."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A failed cell is no measurement."""
        if record.status == "error":
            raise SystemExit(f"{spec.label} failed: {record.error}")
        now = time.process_time()
        print(f"  {spec.label}: {now - self._last:.1f} s, {len(rounds_taken(record))} rounds shared", flush=True)
        self.seconds[spec.defense] += now - self._last
        self._last = now

    def note(self, message: str) -> None:
        """Say it."""
        print(f"  {message}", flush=True)


def timed(suite: Suite, threads: int, share: bool) -> tuple[dict[str, float], list[Record], int]:
    """Processor seconds of the suite's attacked cells by defense, their records, and the bytes of their store."""
    cells = [cell for cell in suite.cells("cpu", "float32", threads) if cell.role == "attack" and cell.seed == 0]
    with TemporaryDirectory() as folder:
        listener = Timed()
        records = run_suite(suite, cells, Store(Path(folder)), listener, share=share)
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return listener.seconds, records, stored


def main() -> None:
    """Train both ways, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="trial")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--evaluated", type=int, default=64, help="completions of every evaluation")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--defense", action="append", help="in place of the eight; none is always there")
    asked = parser.parse_args()
    evaluation = Evaluation(every=4, completions=asked.evaluated, final=asked.evaluated)
    defenses = tuple(dict.fromkeys(("none", *(asked.defense or DEFENSES))))
    shortened = load_suite(asked.suite).override("shortened", rounds=asked.rounds, evaluation=evaluation)
    suite = replace(shortened, defenses=defenses)

    alone, records_alone, bytes_alone = timed(suite, asked.threads, share=False)
    shared, records, bytes_shared = timed(suite, asked.threads, share=True)
    rounds: dict[str, list[int]] = defaultdict(list)
    for record, other in zip(records, records_alone, strict=True):
        same = record.completions_sha256 == other.completions_sha256 and record.curves == other.curves
        if record.cell != other.cell or not same:
            raise SystemExit(f"{record.cell['attack']} x {record.cell['defense']} came out otherwise")
        rounds[str(record.cell["defense"])].append(len(rounds_taken(record)))
    for defense, taken in rounds.items():
        of = asked.rounds * len(taken)
        print(f"{defense:28} {alone[defense]:7.1f} s  {shared[defense]:7.1f} s   {sum(taken)} of {of} rounds shared")
    before, after = sum(alone.values()), sum(shared.values())
    print(f"{'all':28} {before:7.1f} s  {after:7.1f} s   {before / after:.1f} times as fast; all records are the same")
    print(f"{'store':28} {bytes_alone / 1e6:7.1f} MB {bytes_shared / 1e6:7.1f} MB")


if __name__ == "__main__":
    main()
