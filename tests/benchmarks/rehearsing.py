"""Processor seconds of cells of `auto` under several defenses, played in full and with shared rehearsals.

    python -m tests.benchmarks.rehearsing [--rounds 2] [--candidates 8] [--evaluated 256] [--micro]

A swarm of the tests' tiny model and an attack with all of `auto`'s candidates; `--candidates` says how many rounds each
of them plays. With `--micro`, the model is `micro-math` with 8 prompts x 8 completions in vertical groups. Prints for
every cell the seconds both ways, and how many of the candidates' rounds it took over. All records must come out the
same.
"""

from __future__ import annotations

import argparse
import re
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.bench import tiny
from tests.bench.suite.execution.sharing.test_shared_rounds import TEXT, equal, of, records, until
from thiefbench.attacks import auto
from thiefbench.engine.spec import SwarmSpec
from thiefbench.suite.scenario import CellSpec, Suite
from thiefbench.suite.store.records import SHARED_REHEARSAL, Record, rounds_taken
from thiefbench.tasks.base import Sampling

DEFENSES = {
    "none": "none",
    "accepts everything": until(999),
    "rejects at random from round 2 on": until(2, then="some"),
}


class Ends(tiny.Watcher):
    """Notes the processor time at the end of every cell."""

    def __init__(self) -> None:
        super().__init__()
        self.times = [time.process_time()]

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A cell has ended."""
        self.times.append(time.process_time())


def seconds(suite: Suite, store: Path, share: bool) -> list[float]:
    """Processor seconds of every cell, in order."""
    ends = Ends()
    tiny.run(suite, store, ends, share=share)
    return [end - start for start, end in pairwise(ends.times)]


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--candidates", type=int, default=8)
    words.add_argument("--evaluated", type=int, default=256)
    words.add_argument("--micro", action="store_true")
    given = words.parse_args()
    auto.ROUNDS, auto.COMPLETIONS = given.candidates, given.evaluated
    torch.set_num_threads(1)
    goal, changes = TEXT, {}
    if given.micro:
        swarm = SwarmSpec(
            nodes=4, malicious=1, prompts=8, group=8, topology="vertical", sampling=Sampling(max_new_tokens=96)
        )
        goal, changes = "equations", {"task": "gsm_micro", "model": "micro-math", "swarm": swarm}
    suite = of(*DEFENSES.values(), attack=f"auto(attack={goal!r})", rounds=given.rounds, **changes)
    with TemporaryDirectory() as folder:
        alone, shared = Path(folder) / "alone", Path(folder) / "shared"
        of_alone, of_shared = seconds(suite, alone, share=False), seconds(suite, shared, share=True)
        equal(suite, shared, alone)
        for name, one, other, record in zip(DEFENSES, of_alone, of_shared, records(suite, shared), strict=True):
            spans = re.findall(r"(\d+)-(\d+) of", record.provenance.get(SHARED_REHEARSAL, ""))
            rehearsed = sum(int(last) - int(first) + 1 for first, last in spans)
            took_over = f"took over {rehearsed} rounds of the rehearsal and {len(rounds_taken(record))} others"
            print(f"{name}: {one:.1f} s alone, {other:.1f} s shared; {took_over}", flush=True)
        size = sum(path.stat().st_size for path in (shared / "shared").glob("*/rehearsals/*"))
        print(f"together {sum(of_alone):.1f} s and {sum(of_shared):.1f} s; {size / 1e6:.1f} MB of rehearsals")


if __name__ == "__main__":
    main()
