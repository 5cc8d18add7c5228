"""Seconds a round on two threads while other processes keep the processor busy, with and without early sleep.

    python -m tests.benchmarks.waiting [--busy 0 --busy 2 --busy 4] [--repeats 5] [--rounds 4]

`thiefbench` lets torch's threads sleep after 10,000 looks for each other in place of 300,000, the default of the OpenMP
library. The two are run in turn, each in a process of its own; the first round, which warms up, is left out. Printed
are seconds a round and ratios pair by pair: median [min, max]. About twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.speed import WARM_UP, Programs, show
from thiefbench.torch_settings import SPINS


@contextmanager
def busy(count: int) -> Iterator[None]:
    """As many processes that compute without pause."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds(rounds: int, **environment: str) -> float:
    """Median seconds of a round, the first left out."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    return statistics.median(Programs("micro-math").us(WARM_UP + rounds)["round_s"][WARM_UP:])


def main() -> None:
    """Compare the two for every number of busy processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, action="append", help="other processes; may be given several times")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    for count in asked.busy or [0, 2, 4]:
        with busy(count):
            pairs = [(seconds(asked.rounds), seconds(asked.rounds, GOMP_SPINCOUNT=SPINS)) for _ in range(asked.repeats)]
        default, ours = (list(values) for values in zip(*pairs, strict=True))
        show(f"{count} busy: the default", default, "s a round")
        show(f"{count} busy: ours", ours, "s a round")
        show(f"{count} busy: the default to ours", [one / other for one, other in pairs], "")


if __name__ == "__main__":
    main()
