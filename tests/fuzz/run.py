"""Runs cases in forked processes with little time and memory, and judges how each one ends.

A case may end with a result or with a `UserError`, the package's one sentence for its user. Everything else is a
finding: another exception, more than `SECONDS`, more than `MEMORY`, a process that ends, a program that is started, a
module that is imported although only the data names it, and the marker that the data's code would leave.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Mutator, evil_specs
from tests.fuzz.targets import TARGETS, Bases, chosen, odd_specs, surroundings
from thiefbench.cli import _UNUSABLE
from thiefbench.errors import UserError
from thiefbench.regular_files import NotRegularError

SECONDS = 10
MEMORY = 2 << 30
CANARY = Path(__file__).with_name("canary.py")
_STARTS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
    "os.startfile",
)
_NEVER = {"antigravity", "this", "canary", "tests.fuzz.canary", "idlelib", "turtle"}
_CHUNK = 100


class ForbiddenError(BaseException):
    """Data started a program or imported a module; not an Exception, so that nobody swallows it."""


class TooLongError(BaseException):
    """A case took more than `SECONDS`."""


@dataclass
class Findings:
    """How cases ended.

    Attributes:
        cases, results, errors: how many there were, how many of them ended with a result, and with a `UserError`.
        findings: what else happened: target, number of the case, and what.
        slowest: seconds of the slowest case, by target.
    """

    cases: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[str, int, str]] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)

    def add(self, target: str, number: int, outcome: str, seconds: float) -> None:
        """One more case."""
        self.cases[target] += 1
        self.slowest[target] = max(self.slowest.get(target, 0.0), seconds)
        if outcome == "result":
            self.results[target] += 1
        elif outcome == "error":
            self.errors[target] += 1
        else:
            self.findings.append((target, number, outcome))


def fuzz(
    examples: Bases, seed: int, numbers: Sequence[int], targets: Sequence[str], until: float = float("inf")
) -> Findings:
    """Run cases.

    Args:
        examples: the examples.
        seed: with a case's number, all that its changes depend on.
        numbers: of the cases.
        targets: names of `TARGETS`.
        until: the time (`time.monotonic`) after which no further chunk is begun.
    """
    known = Findings()
    with surroundings(examples):
        _warm(examples, list(targets))
        _odd()  # so that every forked process has them
        gc.freeze()
        for first in range(0, len(numbers), _CHUNK):
            if time.monotonic() > until:
                break
            left = list(numbers[first : first + _CHUNK])
            while left:
                done = _chunk(examples, seed, left, list(targets), known)
                left = left[done:]
    return known


def target_of(seed: int, number: int, targets: Sequence[str]) -> str:
    """Which target a case is for."""
    return chosen(random.Random(f"{seed} {number}"), list(targets))


def case(examples: Bases, seed: int, number: int, target: str, folder: Path, marker: Path) -> Callable[[], object]:
    """A case: its folder is filled, and what is returned reads it."""
    rng = random.Random(f"{seed} {number} {target}")
    mutator = Mutator(rng, [*evil_specs(str(marker), str(CANARY)), *rng.sample(_odd(), 20)])
    return TARGETS[target][0](examples, mutator, folder)


@cache
def _odd() -> list[str]:
    return odd_specs()


def _chunk(examples: Bases, seed: int, numbers: list[int], targets: list[str], known: Findings) -> int:
    """Run cases in one process; returns how many were judged, all of them or as many as the process survived."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            _run(examples, seed, numbers, targets, write)
        finally:
            os._exit(0)
    os.close(write)
    done = 0
    with os.fdopen(read, "r", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            target, number, seconds, outcome = line.rstrip("\n").split("\t", 3)
            known.add(target, int(number), outcome.replace("\\n", "\n"), float(seconds))
            done += 1
    _, status = os.waitpid(child, 0)
    if done < len(numbers):
        number = numbers[done]
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        known.add(target_of(seed, number, targets), number, f"the process ended with {how}", 0.0)
        done += 1
    return done


def _run(examples: Bases, seed: int, numbers: list[int], targets: list[str], write: int) -> None:
    """The child: every case with a line on what became of it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGALRM, _stop)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY, base + MEMORY))
    watch = _Watch()
    sys.addaudithook(watch)
    with os.fdopen(write, "w", encoding="utf-8", errors="replace") as out:
        for number in numbers:
            target = target_of(seed, number, targets)
            folder = Path(tempfile.mkdtemp(prefix="thiefbench-fuzz-"))
            began = time.monotonic()
            try:
                outcome = _outcome(examples, seed, number, target, folder, watch)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            seconds = time.monotonic() - began
            print(target, number, f"{seconds:.3f}", outcome.replace("\n", "\\n"), sep="\t", file=out, flush=True)


def _outcome(examples: Bases, seed: int, number: int, target: str, folder: Path, watch: _Watch) -> str:
    marker = folder / "marker"
    os.environ["THIEFBENCH_FUZZ_MARKER"] = str(marker)
    os.chdir(folder)
    read = case(examples, seed, number, target, folder, marker)
    watch.seen = []
    signal.alarm(SECONDS)
    watch.on = True
    try:
        read()
        outcome = "result"
    except UserError as error:
        outcome = "error" if str(error).strip() else f"a {type(error).__name__} that says nothing"
    except OSError as error:  # the command line has a sentence for these
        outcome = (
            "error"
            if isinstance(error, NotRegularError) or error.errno in {*_UNUSABLE, errno.ENOSPC}
            else _traceback(error)
        )
    except (Exception, ForbiddenError, TooLongError, SystemExit) as error:
        outcome = _traceback(error)
    finally:
        watch.on = False
        signal.alarm(0)
    if watch.seen:
        outcome = f"{watch.seen[0]}; {outcome}"
    if marker.exists():
        outcome = f"the marker was left; {outcome}"
    return outcome


def _stop(number: int, frame: Any) -> None:
    raise TooLongError


def _traceback(error: BaseException) -> str:
    """The exception, and where it was raised in the package."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests/fuzz" not in f.filename]
    own = [f for f in frames if "thiefbench" in f.filename]
    where = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in own[-4:]]
    return f"{type(error).__name__}: {str(error)[:200]} at {' > '.join(where)}"


class _Watch:
    """An audit hook that refuses what no reader of data does."""

    def __init__(self) -> None:
        self.on, self.seen = False, []  # type: bool, list[str]
        self.known = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "import":
            name = str(args[0])
            bad = name in _NEVER or name.partition(".")[0] not in self.known
        else:
            bad = event in _STARTS
        if bad:
            self.seen.append(f"{event} {args[0]!r:.100}")
            raise ForbiddenError(event)


def _warm(examples: Bases, targets: list[str]) -> None:
    """Load what the readings load, so that every forked process starts with it."""
    for target in targets:
        folder = Path(tempfile.mkdtemp(prefix="thiefbench-fuzz-"))
        try:
            _untouched(examples, target, folder)
        finally:
            shutil.rmtree(folder)


class _Unchanged(Mutator):
    """Changes nothing, so that the readings must succeed: cases that end in errors alone would find nothing."""

    def tree(self, data: Any, where: Any = None) -> Any:
        return data

    def data(self, data: bytes) -> bytes:
        return data

    def parquet(self, content: bytes) -> bytes:
        return content


def _untouched(examples: Bases, target: str, folder: Path) -> None:
    class Calm(random.Random):
        """Takes the branch that changes least."""

        def random(self) -> float:
            return 0.94

    TARGETS[target][0](examples, _Unchanged(Calm(0), []), folder)()


def summary(known: Findings) -> Iterator[str]:
    """What came out, a line each."""
    yield f"{'target':10}{'cases':>9}{'results':>9}{'errors':>9}{'findings':>10}{'slowest':>10}"
    for target in sorted(known.cases):
        found = sum(each[0] == target for each in known.findings)
        yield (
            f"{target:10}{known.cases[target]:9,}{known.results[target]:9,}{known.errors[target]:9,}{found:10,}"
            f"{known.slowest[target]:9.2f}s"
        )
    kinds: dict[str, list[tuple[str, int, str]]] = {}
    for each in known.findings:
        kinds.setdefault(f"{each[0]} {each[2].partition(':')[0]} {each[2].rpartition(' at ')[2]}", []).append(each)
    for group in sorted(kinds.values(), key=len, reverse=True):
        target, number, what = group[0]
        yield f"\n{target}, {len(group)} cases, such as --target {target} --case {number}:\n  {what}"
