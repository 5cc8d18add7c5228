"""Seconds for attacked cells of several defenses when each is trained from its start, and when they share rounds.

    python tests/benchmarks/sharing.py [--rounds 8] [--evaluated 64] [--threads 1] [--defense SPEC ...]

Trains the swarm of `trial` (32 prompts x 12 completions, 4 nodes of which 1 is malicious) for a few rounds under every
defense, both ways, in fresh stores, and prints the seconds of each cell, how many of its rounds were shared, the sums,
and what the stores take on disk. All records must come out the same. About five minutes on one core.
"""

from __future__ import annotations

import argparse
import time
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
    """A listener that notes when every cell ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def plan(self, plan: RunOutline) -> None:
        """Nothing."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """Nothing."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A failed cell is no measurement."""
        if record.status == "error":
            raise SystemExit(f"{spec.label} failed: {record.error}")
        now = time.perf_counter()
        self.seconds[spec.defense], self._last = now - self._last, now
        taken = len(rounds_taken(record))
        print(f"  {spec.defense}: {self.seconds[spec.defense]:.1f} s, {taken} rounds shared", flush=True)

    def note(self, message: str) -> None:
        """Say it."""
        print(f"  {message}", flush=True)


def timed(suite: Suite, threads: int, share: bool) -> tuple[dict[str, float], dict[str, Record], int]:
    """Seconds and records of the suite's attacked cells, by defense, and the bytes of their store."""
    cells = [cell for cell in suite.cells("cpu", "float32", threads) if cell.role == "attack"]
    with TemporaryDirectory() as folder:
        listener = Timed()
        records = run_suite(suite, cells, Store(Path(folder)), listener, share=share)
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return listener.seconds, {str(record.cell["defense"]): record for record in records}, stored


def main() -> None:
    """Train both ways, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--evaluated", type=int, default=64, help="completions of every evaluation")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--defense", action="append", help="in place of the eight; none is always there")
    asked = parser.parse_args()
    evaluation = Evaluation(every=4, completions=asked.evaluated, final=asked.evaluated)
    defenses = tuple(dict.fromkeys(("none", *(asked.defense or DEFENSES))))
    suite = replace(load_suite("trial"), defenses=defenses, rounds=asked.rounds, evaluation=evaluation)

    alone, records_alone, bytes_alone = timed(suite, asked.threads, share=False)
    shared, records, bytes_shared = timed(suite, asked.threads, share=True)
    for defense, record in records.items():
        other = records_alone[defense]
        same = record.completions_sha256 == other.completions_sha256 and record.curves == other.curves
        if not same:
            raise SystemExit(f"{defense} came out otherwise")
        taken = len(rounds_taken(record))
        print(
            f"{defense:28} {alone[defense]:7.1f} s  {shared[defense]:7.1f} s   {taken} of {asked.rounds} rounds shared"
        )
    before, after = sum(alone.values()), sum(shared.values())
    print(f"{'all':28} {before:7.1f} s  {after:7.1f} s   {before / after:.1f} times as fast; all records are the same")
    print(f"{'store':28} {bytes_alone / 1e6:7.1f} MB {bytes_shared / 1e6:7.1f} MB")


if __name__ == "__main__":
    main()
