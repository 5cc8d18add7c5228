"""The process in which a submitted defense or attack runs: a sandbox's worker with numpy and the contracts.

Run as a script by an interpreter without packages; `main` receives the paths of the few that are allowed. Before the
sandbox closes, it imports only modules of the benchmark and numpy, and scipy where the guest's source names it, so that
forks start at once. A fork (`serve`, or `attack_guest.serve`) constructs the defense or attack and answers the parent
until the stream ends. Nothing that it sends is trusted: the parent accepts only plain data and checks it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thiefbench.defenses.base import Defense, PastRound, PoolCompletion
    from thiefbench.leaderboard.isolation.guest_stream import Stream
    from thiefbench.tasks._sandbox_jail import Instruction
    from thiefbench.tasks.answer_keys import AnswerKey
    from thiefbench.tasks.base import Message, Sampling

# Shared libraries of the system that extension modules of numpy and scipy look for, and that the jail does not hold.
_SHARED = ("libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1")
_WARM = (
    "numpy.linalg", "numpy.random", "safetensors.numpy", "thiefbench.registry",
    "thiefbench.leaderboard.isolation.frames", "thiefbench.leaderboard.isolation.guest_stream",
    "thiefbench.leaderboard.isolation.wire",
)  # fmt: skip


class Policy:
    """The policy as a defense may ask it (`thiefbench.defenses.base.PolicyView`): the parent answers."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.places: dict[int, int] = {}
        self.over = False

    def token_logprobs(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """Natural-log probability of every token."""
        return self._measured("token_logprobs", completions)

    def ranks(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """How many tokens have a strictly higher logit."""
        return self._measured("ranks", completions)

    def in_support(
        self, completions: Sequence[PoolCompletion], tolerance: float | None = None
    ) -> list[NDArray[np.bool_]]:
        """Whether the sampler's settings could have let each token through."""
        return self._measured("in_support", completions, tolerance=tolerance)

    def replay(self, completions: Sequence[PoolCompletion], tolerance: float | None = None) -> list[NDArray[np.bool_]]:
        """Whether each token is the one that the completion's seed draws."""
        return self._measured("replay", completions, tolerance=tolerance)

    def hidden(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.float32]]:
        """The states from which each token is predicted."""
        return self._measured("hidden", completions)

    def spans(self, completions: Sequence[PoolCompletion]) -> list[NDArray[np.int64]]:
        """Where in its text every token stands."""
        return self._measured("spans", completions)

    def generate(self, prompts: Sequence[Sequence[Message]], max_new_tokens: int = 128) -> list[str]:
        """One sampled completion text per chat prompt."""
        self._check_round()
        chats = [[dict(message) for message in prompt] for prompt in prompts]
        answer, _ = self._stream.ask({"ask": "generate", "prompts": chats, "max_new_tokens": max_new_tokens})
        return list(answer["texts"])

    def _check_round(self) -> None:
        from thiefbench.errors import UserError

        if self.over:
            raise UserError("a view's policy answers only during its round; keep what it answered, and not the policy")

    def _measured(self, measure: str, completions: Sequence[PoolCompletion], **more: Any) -> list[NDArray[Any]]:
        from thiefbench.leaderboard.isolation.wire import asked_out

        self._check_round()
        references = [asked_out(completion, self.places) for completion in completions]
        answer, (joined,) = self._stream.ask({"ask": measure, "completions": references, **more})
        measurements, start = [], 0
        for shape in answer["shapes"]:
            size = shape[0] * (shape[1] if len(shape) > 1 else 1)
            measurements.append(joined[start : start + size].reshape(shape).copy())
            start += size
        return measurements


class Judge:
    """The judge as a defense may ask it (`thiefbench.defenses.base.JudgeView`): the parent answers."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def ask(self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, votes: int = 1) -> list[list[str]]:
        """`votes` replies to each prompt."""
        from dataclasses import asdict

        chats = [[dict(message) for message in prompt] for prompt in prompts]
        answer, _ = self._stream.ask({"ask": "judge", "prompts": chats, "sampling": asdict(sampling), "votes": votes})
        return list(answer["replies"])


class Public:
    """The published items (`thiefbench.defenses.answer_keys.PublicSet`): the parent computes rewards.

    Args:
        stream: to the parent.
        items: answer, tests, a right and a wrong completion, by item id.
    """

    def __init__(self, stream: Stream, items: Mapping[str, Sequence[str]]) -> None:
        self._stream, self._items = stream, items

    def answer_key(self, item_id: str) -> AnswerKey | None:
        """The published answer and tests."""
        from thiefbench.tasks.answer_keys import AnswerKey

        return AnswerKey(*self._items[item_id][:2]) if item_id in self._items else None

    def right(self, item_id: str) -> str:
        """A completion that earns the full reward."""
        return self._items[item_id][2]

    def wrong(self, item_id: str) -> str:
        """A completion that earns nothing."""
        return self._items[item_id][3]

    def rewards(self, item_id: str, key: AnswerKey, texts: Sequence[str]) -> list[float]:
        """The parent's answer."""
        about = {"item": item_id, "answer": key.answer, "tests": key.tests, "texts": list(texts)}
        answer, _ = self._stream.ask({"ask": "rewards", **about})
        return list(answer["rewards"])


def serve(spec: str, most: int, file: int) -> None:
    """Construct the defense of a spec string, and answer the parent's requests until the stream ends.

    Args:
        spec: the defense.
        most: bytes of one answer.
        file: the stream.
    """
    from thiefbench.leaderboard.isolation.guest_stream import Stream, send

    stream, history = Stream(file, most), list[Any]()
    with suppress(EOFError, BrokenPipeError):
        defense, reply = _make(spec)
        while True:
            send(stream, reply)
            if defense is None:
                return
            request, arrays = stream.receive()
            if request["call"] == "renew":
                history.clear()
                defense, reply = _make(spec)
            else:
                reply = _answered(_CALLS[request["call"]], defense, stream, history, request, arrays)
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            reply |= {"number": request["number"], "memory": held}


def _make(spec: str) -> tuple[Defense | None, dict[str, Any]]:
    from thiefbench import registry
    from thiefbench.defenses.base import Defense
    from thiefbench.leaderboard.isolation.guest_stream import why_not_made

    try:
        defense = registry.make("defense", spec)
        if not isinstance(defense, Defense):
            raise TypeError(f"{type(defense).__name__} is not a subclass of thiefbench.defenses.base.Defense")
        judge = defense.judge
        return defense, {
            "number": 0,
            "name": defense.name,
            "requires": sorted(defense.requires),
            "sees_labels": bool(defense.sees_labels),
            "judge": None if judge is None else [judge.model, judge.endpoint],
        }
    except BaseException as error:  # also an exit
        return None, {"number": 0, "failed": why_not_made(error, spec)}


def _answered(
    call: Callable[..., dict[str, Any]],
    defense: Defense,
    stream: Stream,
    history: list[PastRound],
    request: Mapping[str, Any],
    arrays: Sequence[NDArray[Any]],
) -> dict[str, Any]:
    from thiefbench.leaderboard.isolation.guest_stream import describe

    try:
        return call(defense, stream, history, request, arrays)
    except EOFError:
        raise
    except BaseException as error:  # also an exit
        return {"failed": describe(error)}


def _inspect(defense: Defense, stream: Stream, history: list[PastRound], request: Any, _: Any) -> dict[str, Any]:
    from thiefbench.leaderboard.isolation import wire
    from thiefbench.leaderboard.isolation.guest_stream import deep_copy

    if request["anew"]:
        history.clear()
    history += map(wire.past_in, request["past"])
    policy = Policy(stream)
    view = wire.view_in(request["view"], history, policy, Judge(stream), lambda items: Public(stream, items))
    policy.places = {id(completion): place for place, completion in enumerate(view.completions)}
    try:
        asked = deep_copy(defense) if request["copied"] else defense
        verdicts = wire.given_verdicts(asked.inspect(view))
    finally:
        policy.over = True
    return {"verdicts": [wire.verdict_out(verdict) for verdict in verdicts], "rng": wire.rng_out(view.rng)}


def _state(defense: Defense, *_: Any) -> dict[str, Any]:
    from thiefbench.leaderboard.isolation import wire

    return {"state": wire.given_state(defense.state())}


def _restore(defense: Defense, stream: Stream, history: list[PastRound], request: Any, _: Any) -> dict[str, Any]:
    defense.restore(request["state"])
    return {}


def _prove(defense: Defense, stream: Stream, history: list[PastRound], request: Any, arrays: Any) -> dict[str, Any]:
    return {"proof": bytes(defense.prove(arrays[0])).hex()}


_CALLS: dict[str, Callable[..., dict[str, Any]]] = {
    "inspect": _inspect, "state": _state, "restore": _restore, "prove": _prove,
}  # fmt: skip


# --- before the jail closes ---


def main(backend: str, setup: Mapping[str, Any]) -> None:
    """Import what guests need, and serve as a worker of the sandbox.

    Args:
        backend: the jail.
        setup: `kind`, "defense", "aggregation", "stage_check" or "attack"; `guest`, the module whose `serve` answers,
            None for this one's; `packages`, where the benchmark's packages
            lie, by name; `search`, folders to import others from; `readable`, paths that a guest may read beside the
            standard library; `warm`, modules to import beside those that every guest needs; `shared`, libraries to
            load, which cannot start inside.
    """
    for name in (*_SHARED, *setup["shared"]):
        with suppress(OSError):
            ctypes.CDLL(name)
    library = [*sys.path]
    sys.path[:] = [*library, *setup["search"]]
    for name, folder in setup["packages"].items():
        _package(name, Path(folder))
    for name in (*_WARM, *setup["warm"]):
        importlib.import_module(name)
    from thiefbench import registry
    from thiefbench.leaderboard.isolation._nursery import Nursery
    from thiefbench.leaderboard.isolation._own_folders import pivot
    from thiefbench.tasks import _sandbox_jail, _sandbox_worker

    _sandbox_jail.system_call_filter = partial(_nameless, _sandbox_jail.system_call_filter)
    _sandbox_jail._pivot = partial(_from_any_number, pivot)
    sys.modules["_sandbox_jail"] = _sandbox_jail  # the name by which the worker imports it
    _sandbox_worker._Worker = Nursery  # type: ignore[misc]  # the class by which it serves
    serving = serve if setup["guest"] is None else importlib.import_module(setup["guest"]).serve
    kinds: tuple[registry.Kind, ...] = (
        "defense",
        "aggregation",
        "stage_check",
        "attack",
        "weight_attack",
        "stage_attack",
    )
    for kind in kinds:  # listed now: inside the sandbox, the installed distributions cannot be read
        registry.names(kind)
    sys.path[:] = library  # the paths that the sandbox shows by itself

    import numpy as np

    def live(spec: str, most: int, *files: int) -> None:
        sys.path += setup["search"]
        sys.meta_path[sys.meta_path.index(PathFinder)] = _Readable
        random.seed()  # forks would all draw the same, and what depends on it would seem to be determined
        np.random.seed()
        serving(spec, most, *files)

    _load([*_sandbox_jail._library(), *map(Path, setup["readable"])])
    os.chdir("/")  # Landlock forbids no path to be looked for, and this one tells nothing
    _sandbox_worker.main(backend, [Path(path) for path in setup["readable"]], {setup["kind"]: live})


_UNNUMBERED = ("getpid", "gettid")
_RETURNS_ZERO = 0x00050000
"""SECCOMP_RET_ERRNO without an error: the call is not made and returns 0 (seccomp(2))."""
_TIMED = ("clock_gettime", "clock_getres", "clock_nanosleep")
_CLOCKS = range(8)
"""Clocks of the system and of the caller itself, from CLOCK_REALTIME to CLOCK_BOOTTIME (linux/time.h)."""
_FUTEX = (0, 1, 3, 4, 5, 9, 10)
"""FUTEX_WAIT, WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, WAIT_BITSET and WAKE_BITSET (futex(2)), of one process alone. Locks
with priority inheritance would write the caller's number into its memory, and say which other ones there are."""
_PRIVATE, _REAL_TIME = 128, 256
_ADVICE = (0, 1, 2, 4, 8, 14, 15)
"""MADV_NORMAL, RANDOM, SEQUENTIAL, DONTNEED, FREE, HUGEPAGE and NOHUGEPAGE (madvise(2)), which allocators use. Others
load pages of a file into memory that all guests share, or drop them: what is there would be a message to the next."""
_TELLING = ("sysinfo", "readlink", "readlinkat")
"""Tell how many processes the machine has and, of a link in /proc, the caller's own number."""


def _nameless(filter_of: Callable[[str], list[Instruction]], machine: str) -> list[Instruction]:
    """The sandbox's filter, under which every process has the number 0 and reads the clock of no other one.

    A worker's forks are numbered in the order in which they start, and verification starts them in a fixed order. A
    guest that knew its number would know which cell it is in. So would one that knew which other processes are there
    and how long they have worked, as clocks tell whose numbers are made of a process's (clock_getcpuclockid(3)). In the
    Landlock jail, where every path can be looked for, a guest still finds in /proc which processes there are.
    """
    from thiefbench.tasks import _sandbox_jail as jail

    program, numbers = filter_of(machine), jail._SYSCALLS[machine]
    loaded = program.index((jail._LOAD, 0, 0, jail._NUMBER)) + 1
    denied = (jail._RETURN, 0, 0, jail._DENY)
    narrowed = {name: [(jail._RETURN, 0, 0, _RETURNS_ZERO)] for name in _UNNUMBERED}
    narrowed |= {name: [*jail._allow_values(0, _CLOCKS), denied] for name in _TIMED}
    private = [number | _PRIVATE | clock for number in _FUTEX for clock in (0, _REAL_TIME)]
    narrowed["futex"] = [*jail._allow_values(1, private), denied]
    narrowed["madvise"] = [*jail._allow_values(2, _ADVICE), denied]
    narrowed |= {name: [denied] for name in _TELLING}
    rules: list[Instruction] = []
    for name, rule in narrowed.items():
        if name not in numbers:  # aarch64 has no readlink
            continue
        rules += [(jail._JUMP_IF_EQUAL, 0, len(rule), numbers[name]), *rule]
    return [*program[:loaded], *rules, *program[loaded:]]


_READ_AHEAD = 128 << 10
"""Bytes that a device reads ahead at once, by default (posix_fadvise(2) takes no more of one call)."""


def _load(paths: Sequence[Path]) -> None:
    """Ask the kernel to hold the files that guests can read in memory, as far as it has room.

    Whether a page of a file is there can be found out, and reading brings it there: a message to later guests, if it
    was not there before.
    """
    for path in paths:
        files = (
            [path] if path.is_file() else (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        )
        for file in files:
            with suppress(OSError):
                opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    for start in range(0, os.fstat(opened).st_size, _READ_AHEAD):  # of more, it takes a beginning
                        os.posix_fadvise(opened, start, _READ_AHEAD, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(opened)


_LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")
_MOST_NUMBERS = Path("/proc/sys/kernel/pid_max")


def _from_any_number(pivot: Callable[[Sequence[Path]], None], readable: Sequence[Path]) -> None:
    """Number the processes of this jail from a random number on, and go on to change its root.

    The C library keeps a process's number in memory that the guest can read, and this number must not say how many
    guests there were before. A kernel without checkpoints has no such file (pid_namespaces(7)).
    """
    with suppress(OSError, ValueError):
        _LAST_NUMBER.write_text(str(random.SystemRandom().randrange(300, int(_MOST_NUMBERS.read_text()) // 2)))
    pivot(readable)


class _Readable(PathFinder):
    """Finds a module only if its file can be read.

    A library that does without another one expects that Python finds none, where Landlock would refuse the file.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.has_location and found.origin is not None:
            try:
                Path(found.origin).open("rb").close()
            except PermissionError:
                return None
        return found


def _package(name: str, folder: Path) -> None:
    """Import a package of the benchmark from where it lies, whatever the layout of its installation."""
    init = folder / "__init__.py"
    located = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
    assert located is not None
    assert located.loader is not None
    module: ModuleType = importlib.util.module_from_spec(located)
    sys.modules[name] = module
    located.loader.exec_module(module)
    above, _, own = name.rpartition(".")
    if above:
        setattr(sys.modules[above], own, module)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
