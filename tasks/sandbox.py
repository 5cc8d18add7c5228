"""Run untrusted Python programs, such as completions of language models, where they can do no harm.

A program runs in its own process inside a jail that the kernel enforces. It sees a read-only standard library and
nothing else of the host. It cannot write files, open connections, start processes or threads, or send signals, and it
ends with its caller. There are two kinds of jail in which programs see the same: ``namespaces`` and, for hosts that
deny user namespaces to ordinary users, ``landlock``. Both use the seccomp filter in `_sandbox_jail`. Warm workers
inside the jail fork once per program, so that a small program takes a few milliseconds.

A program prints the same in every run, because the hash seed and the state of `random` are fixed. It cannot use
asyncio, which needs threads.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from thiefbench.tasks import _sandbox_worker
from thiefbench.tasks._sandbox_worker import GONE, JOB, OUT_OF_MEMORY, READY, REPORT
from thiefbench.tasks.errors import UserError

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

BACKENDS = ("namespaces", "landlock")
UNSAFE = "unsafe-none"
VARIABLE = "THIEFBENCH_SANDBOX"

MAX_PROGRAM = 16 << 20
"""Most characters of a program, its libraries and its standard input together; above that it is not run."""
MAX_SECONDS = 3600.0
MAX_ERROR = 500
"""Most characters of `RunResult.error`."""

_MAX_STDERR = 1 << 20
_GRACE = 10.0  # seconds that a worker may take to start, or beyond a program's time, before it counts as dead
_NOTHING: Mapping[str, str] = MappingProxyType({})


class SandboxUnavailable(UserError):  # noqa: N818  (a state of the machine, not an error of the caller)
    """This machine cannot run untrusted programs. One sentence that names what is missing."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        seconds: wall-clock time from start to end; processor time is limited to about the same.
        memory: bytes of address space on top of the interpreter's.
        output: bytes of standard output.
    """

    seconds: float = 2.0
    memory: int = 256 << 20
    output: int = 64 << 10

    def __post_init__(self) -> None:
        if (
            not 0 < self.seconds < MAX_SECONDS
            or not 1 << 20 <= self.memory <= 1 << 40
            or not 0 <= self.output <= 1 << 30
        ):
            raise ValueError(
                f"seconds must be in (0, {MAX_SECONDS:g}), memory at least 1 MiB and output at least 0 bytes, "
                f"got {self.seconds}, {self.memory} and {self.output}"
            )


DEFAULT = Limits()


@dataclass(frozen=True)
class RunResult:
    """How a program ended.

    Attributes:
        status: "ok" for exit code 0, "error" for any other; "timeout", "memory" and "output" for the limit that it
            exceeded; "killed" for a signal from elsewhere, such as a segmentation fault.
        stdout: what it printed, up to the limit, decoded as UTF-8 with replacement characters for invalid bytes.
        error: the last line of its traceback, at most `MAX_ERROR` characters; empty if the status is "ok".
    """

    status: Status
    stdout: str
    error: str


_TOO_LONG = RunResult("error", "", "the program is too long")


def run(
    program: str, *, libraries: Mapping[str, str] = _NOTHING, stdin: str = "", limits: Limits = DEFAULT
) -> RunResult:
    """Run one program.

    Args:
        program: its source text.
        libraries: importable modules, dotted name to source text; the standard library takes precedence over them.
        stdin: its standard input.
        limits: what it may use.

    Raises:
        SandboxUnavailable: this machine has no working jail.
        ValueError: `THIEFBENCH_SANDBOX` names no back end.
    """
    if _too_long(program, stdin, *libraries.values()):
        return _TOO_LONG
    request = {"role": "run", "program": program, "libraries": dict(libraries)}

    def attempt(worker: _Worker) -> RunResult:
        with _Job(worker, request, limits, stdin) as job:
            _follow([job], job)
            return job.result()

    return _attempt(attempt)


def run_many(
    programs: Sequence[str], *, libraries: Mapping[str, str] = _NOTHING, limits: Limits = DEFAULT
) -> list[RunResult]:
    """Run programs in parallel, at most one per processor; results are in the order of `programs`.

    Raises:
        SandboxUnavailable, ValueError: as `run`.
    """
    backend()
    with ThreadPoolExecutor(_processors()) as threads:
        return list(threads.map(lambda program: run(program, libraries=libraries, limits=limits), programs))


def check(
    candidate: str, entry_point: str, tests: str, *, libraries: Mapping[str, str] = _NOTHING, limits: Limits = DEFAULT
) -> RunResult:
    """Test a function of an untrusted program, the candidate.

    Candidate and tests run in the sandbox, in two processes. The function that the tests call sends its arguments to
    the candidate's process and returns the result, both as plain data: None, bool, int, float, complex, str, bytes,
    list, tuple, dict, set and frozenset, without their subclasses. So the candidate never sees the tests and can cheat
    only by what it returns. If it returns anything else, the tests get a TypeError. If it raises an exception, the
    tests get the nearest built-in one, except for StopIteration and StopAsyncIteration: these become a RuntimeError,
    because they would silently end a loop in the tests, such as one over ``map(candidate, ...)``. Changes that the
    candidate makes to its arguments stay in its process. If it exits or breaks the protocol, the tests fail.

    Args:
        candidate: source text of the untrusted program.
        entry_point: the name of its function.
        tests: source text of a trusted program that defines ``check(candidate)``, which raises if a test fails.
        libraries: modules that only the candidate can import.
        limits: what each of the two processes may use.

    Returns:
        status "ok" if and only if ``check`` returned; `stdout` is the candidate's.

    Raises:
        SandboxUnavailable: this machine has no working jail.
        ValueError: `THIEFBENCH_SANDBOX` names no back end.
    """
    if _too_long(candidate, tests, *libraries.values()):
        return _TOO_LONG
    candidate_request = {
        "role": "candidate",
        "program": candidate,
        "libraries": dict(libraries),
        "entry_point": entry_point,
    }
    tests_request = {"role": "tests", "program": tests, "libraries": {}}
    # The candidate's time limit ends first, so that the candidate and not the tests gets the status "timeout".
    tests_limits = Limits(min(limits.seconds + 1, MAX_SECONDS), limits.memory, limits.output)

    def attempt(worker: _Worker) -> RunResult:
        with ExitStack() as jobs:
            with ExitStack() as pipes:
                (questions, ask), (answers, answer) = _pipe(pipes, pipes), _pipe(pipes, pipes)
                tests_job = jobs.enter_context(_Job(worker, tests_request, tests_limits, pipes=(answers, ask)))
                candidate_job = jobs.enter_context(_Job(worker, candidate_request, limits, pipes=(questions, answer)))
            _follow([tests_job, candidate_job], tests_job)
            if tests_job.exit_code == GONE:
                _follow([candidate_job], candidate_job)
            return _verdict(tests_job, candidate_job)

    return _attempt(attempt)


def _verdict(tests_job: _Job, candidate_job: _Job) -> RunResult:
    tests_result, candidate_result = tests_job.result(), candidate_job.result()
    if tests_job.exit_code != GONE:
        return RunResult(tests_result.status, candidate_result.stdout, tests_result.error)
    if candidate_result.status != "ok":
        return candidate_result
    return RunResult("error", candidate_result.stdout, "the candidate left before its tests were over")


def backend() -> str:
    """The back end that programs run in: the one in `THIEFBENCH_SANDBOX`, or else the first of `BACKENDS` that works.

    A back end works if a small hostile program fails in it, which is tried once per process. "unsafe-none", which does
    not confine programs, is used only on explicit request, with a warning.

    Raises:
        SandboxUnavailable: the back end does not work here, or none does.
        ValueError: `THIEFBENCH_SANDBOX` names no back end.
    """
    requested = os.environ.get(VARIABLE, "")
    if requested not in ("", *BACKENDS, UNSAFE):
        raise ValueError(f"{VARIABLE} must be one of {', '.join((*BACKENDS, UNSAFE))}, got {requested!r}")
    working, reasons = _probe(requested)
    if not working:
        raise SandboxUnavailable(f"This machine cannot run untrusted programs: {reasons}.")
    return working


# Every attempt here must fail; the program prints how many did not.
_HOSTILE = """
import os
def attempts():
    yield lambda: __import__("socket").socket()
    yield lambda: open("/etc/passwd").read()
    yield lambda: open("/proc/self/environ").read()
    yield lambda: os.listdir("/etc")
    yield lambda: open("/tmp/written", "w")
    yield lambda: os.kill(os.getppid(), 0)
    yield lambda: os.fork() or os._exit(0)
escaped = 0
for attempt in attempts():
    try:
        attempt()
        escaped += 1
    except OSError:
        pass
print("escaped", escaped)
"""


@functools.cache
def _probe(requested: str) -> tuple[str, str]:
    """The back end that works and an empty string, or an empty string and why none works."""
    if sys.platform != "linux":
        return "", "the sandbox needs Linux"
    if requested == UNSAFE:
        warnings.warn(f"{VARIABLE}={UNSAFE}: untrusted programs run without a sandbox", RuntimeWarning, stacklevel=3)
        return UNSAFE, ""
    reasons = []
    for name in [requested] if requested else BACKENDS:
        try:
            worker = _Worker(name)
        except SandboxUnavailable as error:
            reasons.append(f"{name}: {error}")
            continue
        request = {"role": "run", "program": _HOSTILE, "libraries": {}}
        with closing(worker), _Job(worker, request, Limits(seconds=10)) as job:
            _follow([job], job)
            result = job.result()
        if result.stdout == "escaped 0\n":
            return name, ""
        reasons.append(f"{name}: the probe ended with {result.status}, {result.stdout.strip() or result.error}")
    return "", "; ".join(reasons)


# --- one program in a worker ---


class _WorkerError(Exception):
    """A worker has ended or does not report."""


class _Job:
    """A program in a worker, from its start to its report. Leaving the `with` block kills a program that still runs."""

    def __init__(
        self, worker: _Worker, request: Mapping[str, Any], limits: Limits, stdin: str = "", pipes: Sequence[int] = ()
    ) -> None:
        self.exit_code: int | None = None
        self.seconds = limits.seconds
        self._limits = limits
        self._timed_out = self._overflowed = False
        self._stdout, self._stderr, self._stderr_size = bytearray(), bytearray(), 0
        with ExitStack() as kept_files, ExitStack() as sent_files:
            self._leash, leash = socket.socketpair()
            kept_files.enter_context(self._leash)
            sent_files.enter_context(leash)
            files = [leash.fileno(), _sealed(json.dumps(request), sent_files), _sealed(stdin, sent_files)]
            self._files = []
            for _ in range(2):
                ours, theirs = _pipe(kept_files, sent_files)
                os.set_blocking(ours, False)
                self._files.append(ours)
                files.append(theirs)
            worker.start(JOB.pack(limits.seconds, limits.memory), [*files, *pipes])
            self._held = kept_files.pop_all()

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._leash.shutdown(socket.SHUT_RDWR)  # closing is not enough if the caller has forked meanwhile
        self._held.close()

    def files(self) -> list[int]:
        """The files on which the worker reports and the program prints."""
        return [self._leash.fileno(), *self._files]

    def take(self, file: int) -> bool:
        """Read what has arrived on one of `files`; False when there will be no more."""
        if file == self._leash.fileno():
            self._take_report()
            return False
        part = os.read(file, 1 << 16)
        if file == self._files[0]:
            self._stdout += part
        else:
            self._stderr = (self._stderr + part)[-4096:]
            self._stderr_size += len(part)
        if len(self._stdout) > self._limits.output or self._stderr_size > _MAX_STDERR:
            self._overflowed = True
            self._leash.shutdown(socket.SHUT_WR)  # the worker then kills the program and reports
            return False
        return bool(part)

    def _take_report(self) -> None:
        try:
            report = self._leash.recv(REPORT.size)
        except ConnectionError:
            report = b""
        if not report:
            raise _WorkerError
        self._timed_out, self.exit_code = REPORT.unpack(report)

    def result(self) -> RunResult:
        """How the program ended, as far as known, and everything that it has printed so far."""
        for file in self._files:
            with suppress(BlockingIOError):
                while not self._overflowed and self.take(file):
                    pass
        stdout = self._stdout[: self._limits.output].decode(errors="replace")
        lines = self._stderr.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:MAX_ERROR]
        if self._overflowed:
            return RunResult("output", stdout, "too much output")
        if self._timed_out:
            return RunResult("timeout", stdout, f"no end within {self._limits.seconds:g} seconds")
        if self.exit_code is None:
            return RunResult("killed", stdout, "still running")
        if self.exit_code < 0:
            return RunResult("killed", stdout, signal.strsignal(-self.exit_code) or f"signal {-self.exit_code}")
        if self.exit_code == OUT_OF_MEMORY:
            return RunResult("memory", stdout, "MemoryError")
        return RunResult("error", stdout, last) if self.exit_code else RunResult("ok", stdout, "")


def _follow(jobs: Sequence[_Job], until: _Job) -> None:
    """Read what `jobs` print until the job `until` has reported."""
    poll = select.poll()
    owners = {file: job for job in jobs for file in job.files()}
    for file in owners:
        poll.register(file, select.POLLIN)
    give_up = time.monotonic() + max(job.seconds for job in jobs) + _GRACE
    while until.exit_code is None:
        events = poll.poll(max(0.0, give_up - time.monotonic()) * 1000)
        if not events:
            raise _WorkerError
        for file, _ in events:
            if not owners[file].take(file):
                poll.unregister(file)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe; each end is closed with one of the two stacks."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _sealed(text: str, stack: ExitStack) -> int:
    """A file in memory that contains `text` and cannot be changed any more."""
    file = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, file)
    with open(file, "wb", closefd=False) as stream:
        stream.write(text.encode(errors="surrogatepass"))
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file


def _too_long(*texts: str) -> bool:
    return sum(map(len, texts)) > MAX_PROGRAM


# --- the workers ---


class _Worker:
    """A worker process and the socket over which it gets programs.

    Args:
        backend: its jail.
        script: the script that it runs, which ends in `_sandbox_worker.main`.
        arguments: the script's arguments after the name of the back end.
        environment: environment variables besides those that Python needs to start.
        patience: seconds that it may take to start.
    """

    def __init__(
        self,
        backend: str,
        script: str = _sandbox_worker.__file__,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] = _NOTHING,
        patience: float = _GRACE,
    ) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The base interpreter, because that of a virtual environment would know where its packages are. The environment
        # is empty except for what the interpreter needs to start.
        python = getattr(sys, "_base_executable", "") or sys.executable
        needed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            self.process = subprocess.Popen(
                [python, "-s", "-S", "-P", "-B", "-X", "utf8", script, backend, *arguments],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                env=needed | {"PYTHONHASHSEED": "0"} | dict(environment), start_new_session=True,
            )  # fmt: skip
        _workers.add(self)
        self.control.settimeout(patience)
        try:
            greeting = self.control.recv(1000)
        except OSError:
            greeting = b""
        self.control.settimeout(None)
        if greeting != READY:
            self.close()
            raise SandboxUnavailable(greeting.decode() or f"{python} did not start")

    def start(self, message: bytes, files: Sequence[int]) -> None:
        """Make it fork for a job; raises `_WorkerError` if it has ended."""
        try:
            socket.send_fds(self.control, [message], files)
        except OSError:
            raise _WorkerError from None

    def works(self) -> bool:
        """Whether it is running."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it, and with it all its programs."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        _workers.discard(self)


_workers: set[_Worker] = set()
_idle: dict[str, queue.LifoQueue[_Worker | None]] = {}
_lock = threading.Lock()


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _attempt(job: Callable[[_Worker], RunResult]) -> RunResult:
    """Do a job with an idle worker; retry once with a fresh one if the worker died."""
    for fresh in (False, True):
        with _borrowed(backend(), fresh=fresh) as worker:
            try:
                return job(worker)
            except _WorkerError:
                worker.close()
    return RunResult("killed", "", "the sandbox's worker died")


@contextmanager
def _borrowed(name: str, *, fresh: bool = False) -> Iterator[_Worker]:
    """An idle worker of a back end, started if necessary or if `fresh`; at most one per processor is in use."""
    with _lock:
        if name not in _idle:
            _idle[name] = queue.LifoQueue()
            for _ in range(_processors()):
                _idle[name].put(None)
        idle = _idle[name]
    worker = idle.get()
    try:
        if worker is not None and (fresh or not worker.works()):
            worker.close()
            worker = None
        worker = worker or _Worker(name)
        yield worker
    finally:
        idle.put(worker)


def _close() -> None:
    for worker in list(_workers):
        worker.close()


def _forget() -> None:
    """After a fork the workers belong to the parent; the child starts its own."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    for worker in _workers:
        worker.control.close()  # otherwise the workers would outlive the parent
        worker.process.returncode = 0  # it is no child of this process, which cannot wait for it
    _workers.clear()


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)
