"""Programs per second through the sandbox, for every back end that works here.

    python tests/benchmarks/sandbox.py

Printed per back end: small programs through `run_many` (all processors), the same one after the other, checks of a
candidate against tests, and the time until a first program has run in a new worker. Medians of the repeats
[lowest, highest].
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from thiefbench.tasks import sandbox

PROGRAM = """
from math import gcd
def steps(n):
    count = 0
    while n != 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count
print(steps({number}) + gcd(12, 18))
"""
TESTS = (
    "def check(candidate):\n    assert candidate(27) == 111\n    assert [candidate(n) for n in (1, 2, 3)] == [0, 1, 7]"
)


def many(programs: list[str]) -> None:
    """All of them through `run_many`."""
    assert all(ran.status == "ok" for ran in sandbox.run_many(programs))


def serial(programs: list[str]) -> None:
    """One after the other."""
    assert all(sandbox.run(program).status == "ok" for program in programs)


def checks(programs: list[str]) -> None:
    """Tests of a function, one candidate after the other."""
    assert all(sandbox.check(program, "steps", TESTS).status == "ok" for program in programs)


def first(programs: list[str]) -> None:
    """A program in a new worker."""
    sandbox._close()
    serial(programs[:1])


def rates(work: Callable[[list[str]], None], programs: list[str], repeats: int) -> list[float]:
    """Programs per second, once per repeat."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work(programs)
        taken.append(len(programs) / (time.perf_counter() - began))
    return taken


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    programs = [PROGRAM.format(number=number) for number in range(1, asked.programs + 1)]
    for backend in sandbox.BACKENDS:
        os.environ[sandbox.VARIABLE] = backend
        try:
            many(programs[:20])
        except sandbox.SandboxUnavailable as error:
            print(f"{backend:12s} {error}")
            continue
        for work in (many, serial, checks):
            values = rates(work, programs, asked.repeats)
            print(
                f"{backend:12s} {work.__name__:8s} {statistics.median(values):7.0f} "
                f"[{min(values):.0f}, {max(values):.0f}] programs a second",
                flush=True,
            )
        values = [1000 / rate for rate in rates(first, programs[:1], asked.repeats)]
        print(f"{backend:12s} {'first':8s} {statistics.median(values):7.0f} [{min(values):.0f}, {max(values):.0f}] ms")


if __name__ == "__main__":
    main()
