"""Tests that a sender wrote: in which forms they may come, and whether they can be used at all.

They are hostile input. Cases are data, and a program's tests are a program that runs only in the sandbox.
"""

from __future__ import annotations

import json
import keyword
from functools import lru_cache
from typing import Any

from thiefbench.tasks import sandbox
from thiefbench.tasks.programs import is_program

MOST_CASES = 64
"""Most cases in an item's tests; every program of its group is run on each of them."""

_NETWORK = "reached for the network"
_NO_CHECK = "no check"
# The tests run in a namespace of their own, with a function that returns None in place of a candidate's. A test may
# well fail on it, but it must end, print little and leave the network alone.
_PROBE = """
import os, sys

def _leave(reason, write=os.write, leave=os._exit):
    write(2, b"\\n" + reason.encode() + b"\\n")
    leave(1)

sys.addaudithook(lambda event, arguments, leave=_leave: event.startswith("socket.") and leave({network!r}))
_tests = {{"__name__": "__main__"}}
exec(compile({tests!r}, "tests", "exec"), _tests)
if not callable(_tests.get("check")):
    _leave({no_check!r})
try:
    _tests["check"](lambda *arguments, **keywords: None)
except MemoryError:
    raise
except Exception:
    pass
"""


def name_fault(name: str) -> str:
    """Why no function can have a name that a sender wrote; empty if it can."""
    return "" if name.isidentifier() and not keyword.iskeyword(name) else "its answer is no function's name"


@lru_cache(maxsize=4096)
def cases_of(tests: str) -> tuple[tuple[list[Any], Any], ...] | None:
    """The cases in tests whose every line is the JSON of a list of arguments and the answer; None for other tests."""
    lines = tests.splitlines()
    if not 0 < len(lines) <= MOST_CASES:
        return None
    try:
        cases = [json.loads(line, parse_constant=_refused) for line in lines]
    except (ValueError, RecursionError):
        return None
    sound = all(isinstance(case, list) and len(case) == 2 and isinstance(case[0], list) for case in cases)
    return tuple((arguments, answer) for arguments, answer in cases) if sound else None


@lru_cache(maxsize=4096)
def program_fault(tests: str, limits: sandbox.Limits) -> str:
    """Why tests that are a program, which defines ``check(candidate)``, cannot be used; empty if they can.

    They run once in the sandbox, with a candidate that always returns None.

    Raises:
        SandboxUnavailable: this machine cannot run untrusted programs.
    """
    if not is_program(tests):
        return "its tests cannot be parsed"
    probe = _PROBE.format(tests=tests, network=_NETWORK, no_check=_NO_CHECK)
    result = sandbox.run(probe, limits=limits)
    if result.status == "error":
        known = {_NETWORK: f"its tests {_NETWORK}", _NO_CHECK: "its tests do not define check"}
        return known.get(result.error, "its tests fail before they call a program")
    return {
        "timeout": f"its tests do not end within {limits.seconds:g} seconds",
        "output": f"its tests print more than {limits.output:,} bytes",
        "memory": f"its tests need more than {limits.memory >> 20} MiB",
        "killed": "its tests were killed",
    }.get(result.status, "")


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
