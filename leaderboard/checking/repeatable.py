"""Where a submitted file uses what no verifier can repeat, read off its source; nothing is run.

What is written plainly is found, and no more: names that are put together while the file runs are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from thiefbench.leaderboard.imported_names import aliases_of, full_name
from thiefbench.sources import source_files

SHOWN = 3
"""So many places are named."""

_NO_VALUE = "whose values no verifier can repeat"
_CLOCKS_AND_SYSTEM: Mapping[str, tuple[str, ...]] = {
    "time": (
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime",
        "clock_gettime", "clock_gettime_ns",
    ),
    "datetime.datetime": ("now", "utcnow", "today"),
    "datetime.date": ("today",),
    "uuid": ("uuid1", "uuid4", "getnode"),
    "os": ("urandom", "getrandom", "getpid", "getppid", "times", "getloadavg", "cpu_count", "environ", "getenv"),
    "random": ("SystemRandom",),
    "signal": ("alarm", "setitimer"),
    "timeit": ("default_timer",),
    "platform": ("node",),
    "socket": ("gethostname",),
}  # fmt: skip
_ENTIRELY = ("secrets", "tempfile")
_GLOBAL = ("random", "numpy.random")
"""Modules whose functions draw from one generator."""
_STAR = (*_GLOBAL, "time", *_ENTIRELY)
"""Modules whose names nothing tells apart once all of them are imported."""
_SEEDED = (
    "random.Random",
    *(
        f"numpy.random.{name}"
        for name in ("default_rng", "RandomState", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    ),
)
"""What makes a generator, with a seed if one is given."""
_OF_TORCH = tuple(
    f"torch.{name}"
    for name in ("rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli", "poisson",
                 "rand_like", "randn_like", "randint_like")
)  # fmt: skip
"""What draws from the generator of the whole process unless it is given one as `generator`."""
_WRITING = (
    "numpy.savetxt", "os.makedirs", "os.mkdir", "os.rename", "os.replace", "os.remove", "shutil.copy",
    "shutil.copyfile", "shutil.move", "sqlite3.connect", "shelve.open", "logging.FileHandler",
)  # fmt: skip
_SAVING = ("numpy.save", "numpy.savez", "numpy.savez_compressed")
_WRITING_METHODS = ("write_text", "write_bytes", "tofile", "touch")


def unrepeatable(file: Path) -> str:
    """Where a submitted file uses clocks, randomness without a seed, or writes files, and why not; empty if nowhere.

    A file that is a module of a package counts with all files of the package.
    """
    places = list(_places(file))
    more = f"; and {len(places) - SHOWN} more such places" if len(places) > SHOWN else ""
    return "; ".join(places[:SHOWN]) + more


def _places(file: Path) -> Iterator[str]:
    for path in source_files(file):
        if path.suffix != ".py":
            continue
        try:
            tree = ast.parse(path.read_bytes(), path.name)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # told as a wrong import
        aliases = aliases_of(tree)
        found = ((getattr(node, "lineno", 0), why) for node in ast.walk(tree) if (why := _unrepeatable(node, aliases)))
        for line, why in sorted(dict.fromkeys(found)):
            yield f"line {line} of {path.name} uses {why}"


def _unrepeatable(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """What a node uses that cannot be repeated, with the reason; empty for all other nodes."""
    if isinstance(node, ast.ImportFrom):
        star = any(each.name == "*" for each in node.names) and node.module in _STAR
        return f"all of {node.module}, {_NO_VALUE}" if star else ""
    if isinstance(node, ast.Call):
        return _unrepeatable_call(node, full_name(node.func, aliases))
    name = full_name(node, aliases) if isinstance(node, ast.Attribute | ast.Name) else ""
    module, _, last = name.rpartition(".")
    if last in _CLOCKS_AND_SYSTEM.get(module, ()) or module in _ENTIRELY:
        return f"{name}, {_NO_VALUE}"
    if module in _GLOBAL and name not in _SEEDED and last[:1].islower() and last not in ("seed", "bit_generator"):
        return f"{name}, whose generator the whole process shares; draw from view.rng"
    return ""


def _unrepeatable_call(call: ast.Call, name: str) -> str:
    if name in _SEEDED and all(isinstance(each, ast.Constant) and each.value is None for each in _given(call)):
        return f"{name}() without a seed; draw from view.rng"
    if name in _OF_TORCH and not any(keyword.arg == "generator" for keyword in call.keywords):
        return (
            f"{name}, whose generator the whole process shares; pass one by name, as "
            "generator=torch.Generator().manual_seed(view.rng.getrandbits(63))"
        )
    if name == "numpy.datetime64" and [getattr(each, "value", "") for each in call.args[:1]] in (["now"], ["today"]):
        return f"{name}, {_NO_VALUE}"
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "rvs" and not any(keyword.arg == "random_state" for keyword in call.keywords):
        return "rvs() without a random_state; pass view.rng"
    if _writes(call, name, method):
        return f"{name or ast.unparse(call.func)[:60]}, and the sandbox refuses to write files"
    return ""


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _writes(call: ast.Call, name: str, method: str) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    own = isinstance(owner, ast.Name) and owner.id == "self"
    if name in _WRITING or (method in _WRITING_METHODS and not own):
        return True
    if name in _SAVING:  # a variable may be a buffer in memory
        into = call.args[:1]
        return bool(into) and not isinstance(into[0], ast.Name) and "BytesIO" not in ast.unparse(into[0])
    is_open = name == "open" or method == "open"
    by_place = call.args[1:2] if name else call.args[:1]  # a path's own method has no path before the mode
    modes = [*by_place, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [each.value for each in modes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return is_open and any(re.fullmatch(r"[rwaxbt+]{1,4}", text) and set(text) & set("wax+") for text in texts)
