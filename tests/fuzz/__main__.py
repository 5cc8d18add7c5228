"""`python -m tests.fuzz --cases N --seed S [--target T] [--case NUMBER] [--seconds S]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}

import torch

from tests.fuzz.run import fuzz, summary
from tests.fuzz.targets import TARGETS, bases


def main() -> int:
    """Run cases, print counts and findings; 1 where there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads data from strangers.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="repeat it for several; default: all"
    )
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--examples", type=Path, help="folder that keeps the valid examples for the next call")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cases after so long")
    options = parser.parse_args()
    began = time.monotonic()
    torch.set_num_threads(1)
    numbers = range(options.first, options.first + options.cases) if options.case is None else [options.case]
    with tempfile.TemporaryDirectory(prefix="thiefbench-fuzz-") as folder:
        examples = bases(options.examples or Path(folder))
        known = fuzz(examples, options.seed, numbers, options.target or sorted(TARGETS), began + options.seconds)
    for line in summary(known):
        print(line)
    print(f"\n{sum(known.cases.values()):,} cases with seed {options.seed} in {time.monotonic() - began:.0f} s")
    return 1 if known.findings else 0


if __name__ == "__main__":
    sys.exit(main())
