"""The worker of the sandbox: a warm Python inside a jail that forks once per program.

It runs as a script, in an interpreter that cannot import this package. It never reads programs, tests or input itself,
but only forks: each fork reads its own sealed file, whose content was never in the memory of another process.

For each program the caller sends one message with six or eight open files (`JOB`). One of them, the leash, is a socket.
The worker reports on it how the program ended (`REPORT`), and kills the program when the caller closes it.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import fcntl
import gc
import importlib
import importlib.abc
import importlib.util
import json
import math
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

JOB = struct.Struct("<dQ")
"""Seconds and bytes of memory. Files: leash, request, stdin, stdout, stderr; for candidate and tests also two pipes."""
REPORT = struct.Struct("<?h")
"""Whether the program ran out of time, and its exit code, which is negative for a signal."""
READY = b"ready"

OUT_OF_MEMORY, GONE = 77, 78
"""Exit codes: an uncaught MemoryError; in a tests process, a candidate that exited or broke the protocol."""

MAX_MESSAGE = 4 << 20
"""Most bytes of one call or result between a candidate and its tests."""
MAX_DEPTH = 100
"""Deepest nesting of containers in a call or result."""
_VALUE = 24  # about the bytes that a number in a list takes

MAX_FILES = 1024

_WARM = [
    "abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "itertools", "json", "math", "numbers", "operator",
    "random", "re", "statistics", "string", "textwrap", "traceback", "types", "typing",
]  # fmt: skip
"""Modules that are already imported when a program starts."""
_EXTENSIONS = ["_bz2", "_ctypes", "_hashlib", "_lzma", "zlib"]
"""Extension modules that need shared libraries, which are not in the jail; not every Python has them."""


# --- plain data ---


def encode(value: object) -> Any:
    """`value` as JSON data, with a tag on every type that JSON does not distinguish.

    Only None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset are allowed.

    Raises:
        TypeError: a value of another type, including subclasses of these.
        ValueError: the value is nested too deeply or too large for a message.
    """
    return _encode(value, MAX_DEPTH, [MAX_MESSAGE])


def _encode(value: Any, depth: int, left: list[int]) -> Any:
    kind = type(value)
    left[0] -= _VALUE + (len(value) if kind in (str, bytes) else value.bit_length() // 4 if kind is int else 0)
    if depth < 0 or left[0] < 0:
        raise ValueError(_TOO_LARGE)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return ["int", hex(value)]  # not decimal: linear in its length
    if kind is float:
        return ["float", value.hex()]
    if kind is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, [_encode(item, depth - 1, left) for item in value]]
    if kind is dict:
        return ["dict", [[_encode(part, depth - 1, left) for part in pair] for pair in value.items()]]
    raise TypeError(f"{kind.__name__!r} objects cannot cross between a candidate and its tests")


_TOO_LARGE = "data too deep or too large to cross between a candidate and its tests"

_DECODERS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "bytes": bytes.fromhex,
    "list": lambda items: [decode(item) for item in items],
    "tuple": lambda items: tuple(decode(item) for item in items),
    "set": lambda items: {decode(item) for item in items},
    "frozenset": lambda items: frozenset(decode(item) for item in items),
    "dict": lambda pairs: {decode(key): decode(item) for key, item in pairs},
}


def decode(data: Any) -> Any:
    """The value that `encode` turned into `data`. May raise any exception if `data` is not from `encode`."""
    if data is None or type(data) in (bool, str):
        return data
    tag, *payload = data
    return _DECODERS[tag](*payload)


def _pack(data: Any) -> bytes:
    text = json.dumps(data).encode()
    if len(text) > MAX_MESSAGE:
        raise ValueError(_TOO_LARGE)
    return struct.pack("<I", len(text)) + text


def _send(pipe: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _receive(pipe: int) -> Any:
    (size,) = struct.unpack("<I", _read(pipe, 4))
    if size > MAX_MESSAGE:
        raise ValueError("message too long")
    return json.loads(_read(pipe, size))


def _read(pipe: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(pipe, size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# --- inside the fork: one program ---


class _Libraries(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from source texts. It comes last, so that it cannot hide modules of the standard library."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in self._sources else None

    def is_package(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in self._sources)

    def get_source(self, fullname: str) -> str:
        return self._sources[fullname]


def _execute(program: str, libraries: Mapping[str, str]) -> dict[str, Any]:
    """Run a program as `__main__`; returns its global variables."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.meta_path.append(_Libraries(libraries))
    exec(compile(program, "<program>", "exec", dont_inherit=True), main.__dict__)
    return main.__dict__


def _run(program: str, libraries: Mapping[str, str]) -> None:
    _execute(program, libraries)


def _run_candidate(program: str, libraries: Mapping[str, str], entry_point: str, calls: int, answers: int) -> None:
    names = _execute(program, libraries)
    if entry_point not in names:
        raise NameError(f"name {entry_point!r} is not defined")
    _answer_calls(names[entry_point], calls, answers)


def _run_tests(program: str, libraries: Mapping[str, str], answers: int, calls: int) -> None:
    try:
        _execute(program, libraries)["check"](_candidate(answers, calls))
    except SystemExit:  # only reaching the end counts as passed
        raise RuntimeError("the tests ended themselves") from None


_ROLES: dict[str, Callable[..., None]] = {"run": _run, "candidate": _run_candidate, "tests": _run_tests}


_END_OF_ITERATION = (StopIteration, StopAsyncIteration)
"""They end a loop over calls of the candidate, such as `map(candidate, ...)`, and with it the tests inside the loop."""

# Exceptions that are sent by name: those that can be constructed from a message alone.
_CROSSING: dict[str, type[Exception]] = {}
for _name, _class in vars(builtins).items():
    if (
        isinstance(_class, type)
        and issubclass(_class, Exception)
        and not issubclass(_class, _END_OF_ITERATION)
        and not _name.startswith("_")
    ):
        with suppress(TypeError):
            _class("")
            _CROSSING[_class.__name__] = _class


def _answer_calls(function: Callable[..., Any], calls: int, answers: int) -> None:
    """The candidate's side. It may manipulate everything here, and gains no more than by a wrong return value."""
    with suppress(EOFError, BrokenPipeError):  # the tests have ended
        while True:
            arguments, keywords = decode(_receive(calls))
            try:
                answer = _pack([True, encode(function(*arguments, **keywords))])
            except _END_OF_ITERATION as error:  # a generator turns them into the same error (PEP 479)
                answer = _pack([False, "RuntimeError", f"the program raised {type(error).__name__}"[:1000]])
            except Exception as error:
                name = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _CROSSING)
                answer = _pack([False, name, str(error)[:1000]])
            sys.stdout.flush()  # output must be written before the answer, which may end the tests
            _send(answers, answer)


def _candidate(answers: int, calls: int) -> Callable[..., Any]:
    """The tests' side: a function that sends its arguments to the candidate's process and returns the answer.

    Anything that is not an answer ends the tests at once, where no `except` in them can take it for one.
    """

    def candidate(*arguments: object, **keywords: object) -> object:
        call = _pack(encode((arguments, keywords)))
        try:
            _send(calls, call)
            answered, *answer = _receive(answers)
            if answered is True:
                (data,) = answer
                return decode(data)
            name, message = answer
            error = _CROSSING[name](str(message))
        except Exception:
            os._exit(GONE)
        raise error

    return candidate


def _limit(memory: int, seconds: float) -> None:
    """Set the kernel's limits. The system call filter limits processes and threads to one."""
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: math.ceil(seconds) + 1,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_STACK: 64 << 20,
    }
    for limit, value in limits.items():
        _set_limit(limit, value)


def _set_limit(limit: int, value: int) -> None:
    highest = resource.getrlimit(limit)[1]
    value = value if highest == resource.RLIM_INFINITY else min(value, highest)
    resource.setrlimit(limit, (value, value))


def _live(files: Sequence[int], seal: Callable[[], None], roles: Mapping[str, Callable[..., None]]) -> NoReturn:
    """Run a fork to its end. `files`: request, stdin, stdout, stderr and those of its role; unread before `seal`."""
    request, *streams = [fcntl.fcntl(file, fcntl.F_DUPFD, MAX_FILES // 2) for file in files]
    last = len(streams)
    for target, file in enumerate([*streams, request]):
        os.dup2(file, target)
    # Close everything that the worker has open, including its control socket and other leashes.
    os.closerange(last + 1, MAX_FILES)
    seal()
    random.seed(0)

    def run() -> None:
        request_fields = json.loads(os.read(last, os.fstat(last).st_size))
        os.close(last)
        role = roles[request_fields.pop("role")]
        role(*request_fields.values(), *range(3, last))

    os._exit(_exit_code(run))


def _exit_code(run: Callable[[], None]) -> int:
    """Run as an interpreter would and return its exit code; atexit functions are not called."""
    code = 0
    try:
        run()
    except SystemExit as stop:
        if isinstance(stop.code, int):
            code = stop.code & 0xFF
        elif stop.code is not None:
            code = 1
            print(stop.code, file=sys.stderr)
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException as error:
        code = 1
        sys.__excepthook__(type(error), error, error.__traceback__)
    with suppress(BaseException):
        sys.stdout.flush()
    return code


# --- outside the forks: the worker ---


@dataclass
class _Job:
    process: int
    handle: int
    leash: socket.socket
    deadline: float
    timed_out: bool = False

    def kill(self) -> None:
        """Kill the program. The report follows when the kernel announces its end."""
        os.kill(self.process, signal.SIGKILL)


class _Worker:
    """Forks a process for every message and reports how it ended. A fork calls `seal` to confine itself."""

    def __init__(
        self,
        control: socket.socket,
        own_memory: int,
        seal: Callable[[], None],
        roles: Mapping[str, Callable[..., None]],
    ) -> None:
        self._roles = roles
        self._control = control
        self._own_memory = own_memory
        self._seal = seal
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._by_handle: dict[int, _Job] = {}
        self._by_leash: dict[int, _Job] = {}

    def serve(self) -> None:
        """Serve until the caller closes the control socket or ends; then running programs end with this process."""
        while True:
            # The control socket was registered first and so comes first. A new job's files can therefore not get the
            # number of a file that is closed later in the same loop.
            for file, _ in self._poll.poll(self._milliseconds_left()):
                if file in self._by_handle:
                    self._report(self._by_handle[file])
                elif file in self._by_leash:
                    self._poll.unregister(file)
                    self._by_leash.pop(file).kill()
                elif file == self._control.fileno() and not self._take():
                    return
            for job in self._by_handle.values():
                if time.monotonic() >= job.deadline and not job.timed_out:
                    job.timed_out = True
                    job.kill()

    def _milliseconds_left(self) -> float | None:
        deadlines = [job.deadline for job in self._by_handle.values() if not job.timed_out]
        return max(0.0, min(deadlines) - time.monotonic()) * 1000 if deadlines else None

    def _take(self) -> bool:
        """Fork for the next message; False if the caller has closed the socket."""
        message, files, _, _ = socket.recv_fds(self._control, JOB.size, 8)
        if not message:
            return False
        seconds, memory = JOB.unpack(message)
        worker, deadline = os.getpid(), time.monotonic() + seconds
        process = os.fork()
        if not process:
            self._become(files[1:], worker, seconds, self._own_memory + memory)
        job = _Job(process, os.pidfd_open(process), socket.socket(fileno=files[0]), deadline)
        for file in files[1:]:
            os.close(file)
        self._by_handle[job.handle] = self._by_leash[job.leash.fileno()] = job
        self._poll.register(job.handle, select.POLLIN)
        self._poll.register(job.leash, select.POLLIN)
        return True

    def _become(self, files: Sequence[int], worker: int, seconds: float, memory: int) -> NoReturn:
        def seal() -> None:
            _limit(memory, seconds)
            self._seal()
            if os.getppid() != worker:  # the worker died before the fork asked to die with it
                os._exit(1)

        try:
            _live(files, seal, self._roles)
        finally:  # an exception must never return to the worker's loop
            os._exit(1)

    def _report(self, job: _Job) -> None:
        _, status = os.waitpid(job.process, 0)
        self._poll.unregister(job.handle)
        os.close(job.handle)
        del self._by_handle[job.handle]
        if self._by_leash.pop(job.leash.fileno(), None):
            self._poll.unregister(job.leash)
        with suppress(OSError):
            job.leash.send(REPORT.pack(job.timed_out, os.waitstatus_to_exitcode(status)))
        job.leash.close()


def main(backend: str, readable: Sequence[Path] = (), roles: Mapping[str, Callable[..., None]] = _ROLES) -> None:
    """Enter the jail, tell the caller on the control socket (standard input), and serve.

    Args:
        backend: the jail; "unsafe-none" enters none.
        readable: files and folders to show besides the standard library.
        roles: by the name in a request, the function to call with the request's other values and the files after
            stderr.
    """
    folder = str(Path(__file__).parent)
    sys.path.append(folder)  # last, where it cannot hide modules of the standard library
    jail: Any = importlib.import_module("_sandbox_jail")
    sys.path.remove(folder)
    for name in (*_WARM, *_EXTENSIONS):
        with suppress(ImportError):
            importlib.import_module(name)
    vars(builtins).update(exit=_sitebuiltins.Quitter("exit", "Ctrl-D"), quit=_sitebuiltins.Quitter("quit", "Ctrl-D"))
    os.environ.clear()
    os.umask(0o022)
    sys.argv[:] = [""]
    _set_limit(resource.RLIMIT_NOFILE, MAX_FILES)
    own_memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        stream.reconfigure(errors=errors)  # type: ignore[union-attr]  # forks use these objects with their own files
    seal = jail.die_with_parent
    if backend != "unsafe-none":
        try:
            jail.enter(backend, readable)
        except jail.JailError as error:
            control.send(str(error).encode())
            return
        filter_ = jail.Filter(jail.system_call_filter(platform.machine()))

        def seal() -> None:
            jail.die_with_parent()
            filter_.install()

    control.send(READY)
    gc.collect()
    gc.freeze()  # forks share the memory of these objects as long as no collection touches them
    _Worker(control, own_memory, seal, roles).serve()


if __name__ == "__main__":
    main(sys.argv[1])
