"""Programs per second through the sandbox, for every back end that works here.

    python tests/benchmarks/sandbox.py
    python tests/benchmarks/sandbox.py --rounds 2      # and their share of a round

Printed per back end: small programs through `run_many` (all processors), programs of `code_functions` with their calls
through its reward, the small ones one after the other, checks of a candidate against tests, and the time until a first
program has run in a new worker. Medians of the repeats [lowest, highest]; behind them the workers' processor time for
one program, which says more than the rate on a machine that others use.

With `--rounds`, that many rounds of `calls.yaml` under CODE are played (about six seconds of one core each), and as
many with `code_micro` and its model; printed is the share of programs in their processor time and on the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from thiefbench.tasks import sandbox
from thiefbench.tasks.base import Item
from thiefbench.tasks.code_functions import CodeFunctions

CALLS = "code_functions(levels=(2, 3, 1, 0))"
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


def functions(programs: list[str]) -> None:
    """As many distinct programs of `code_functions`, each called on its hidden inputs."""
    task = CodeFunctions(size=512)
    items = list(islice(cycle(Item.from_row(row) for row in task.items("train")), len(programs)))
    marked = [replace(item, id=f"{item.id} {number}") for number, item in enumerate(items)]  # equal ones run once
    assert set(task.rewards(marked, [task.oracle(item) for item in items])) == {1.0}


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


def workers_time() -> float:
    """Seconds of processor time of the living workers, and of the programs that have ended in them."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(") ")[2].split()
            stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))  # parent, clock ticks
    ours, found = {os.getpid()}, 0
    while len(ours) > found:
        found = len(ours)
        ours |= {process for process, (parent, _) in stats.items() if parent in ours}
    return sum(stats[process][1] for process in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def share_of_rounds(rounds: int, task_spec: str, model: str) -> str:
    """What programs take of rounds under CODE in the swarm of `calls.yaml`."""
    import torch

    from thiefbench import registry
    from thiefbench.engine.model.policy import Policy
    from thiefbench.engine.swarm import Swarm
    from thiefbench.suite.suite_yaml import load_suite
    from thiefbench.zoo.models import resolve

    torch.set_num_threads(1)
    suite = load_suite(str(Path(__file__).with_name("calls.yaml")))
    task, attack, defense = (
        registry.make("task", task_spec), registry.make("attack", "code_injection"), registry.make("defense", "none")
    )  # fmt: skip
    swarm = Swarm(suite.swarm, "attack", Policy.load(resolve(model)), task, attack, defense, seed=0)
    sandbox.run("print(1)")  # the workers' start is not the rounds'
    began, idle = time.process_time(), workers_time()
    seconds: dict[str, float] = {}
    for number in range(1, rounds + 1):
        for phase, taken in swarm.round(number).seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + taken
    own, workers = time.process_time() - began, workers_time() - idle
    clock = ", ".join(f"{phase} {taken / rounds:.2f}" for phase, taken in seconds.items())
    return (
        f"a round of {task_spec}: {own / rounds:.2f} s of processor time, and {workers / rounds:.2f} s of the "
        f"programs' workers: {workers / (own + workers):.1%} of both; on the clock {clock} s: "
        f"rewards {seconds['reward'] / sum(seconds.values()):.1%}"
    )


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
    parser.add_argument("--repeats", type=int, default=3, help="0: only the rounds")
    parser.add_argument("--rounds", type=int, default=0)
    asked = parser.parse_args()
    programs = [PROGRAM.format(number=number) for number in range(1, asked.programs + 1)]
    for backend in sandbox.BACKENDS if asked.repeats else ():
        os.environ[sandbox.VARIABLE] = backend
        try:
            many(programs[:20])
        except sandbox.SandboxUnavailable as error:
            print(f"{backend:12s} {error}")
            continue
        for work in (many, functions, serial, checks):
            before = workers_time()
            values = rates(work, programs, asked.repeats)
            each = (workers_time() - before) / (asked.repeats * len(programs))
            print(
                f"{backend:12s} {work.__name__:9s} {statistics.median(values):7.0f} "
                f"[{min(values):.0f}, {max(values):.0f}] programs a second, {1000 * each:.1f} ms of processor each",
                flush=True,
            )
        values = [1000 / rate for rate in rates(first, programs[:1], asked.repeats)]
        print(f"{backend:12s} {'first':9s} {statistics.median(values):7.0f} [{min(values):.0f}, {max(values):.0f}] ms")
    if asked.rounds:
        os.environ.pop(sandbox.VARIABLE, None)
        for task, model in ((CALLS, "micro-programs"), ("code_micro", "micro-code")):
            print(share_of_rounds(asked.rounds, task, model), flush=True)


if __name__ == "__main__":
    main()
