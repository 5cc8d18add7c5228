"""The paths that an isolated guest may read: its own files, the packages it may import, and two of ThiefBench's.

A guest is a defense, an aggregation, a stage check or an attack; a spec string is one of that kind.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal, TypeVar

from thiefbench import registry
from thiefbench.leaderboard.imported_names import aliases_of, full_name
from thiefbench.leaderboard.isolation.limits import DEPENDENCIES, TENSOR_DEPENDENCIES
from thiefbench.loading import names_module
from thiefbench.sources import is_of_package, source_files

_PACKAGES = ("thiefbench", "thiefbench.tasks", "thiefbench.attacks", "thiefbench.defenses", "thiefbench.leaderboard")
_SHOWN = {
    "defense": ("thiefbench.tasks", "thiefbench.defenses"),
    "aggregation": ("thiefbench.tasks", "thiefbench.defenses"),
    "stage_check": ("thiefbench.tasks", "thiefbench.defenses"),
    "attack": ("thiefbench.tasks", "thiefbench.attacks"),
}
Guests = Literal["defense", "aggregation", "stage_check", "attack"]
"""Kinds of guests."""
AttackKind = Literal["attack", "weight_attack", "stage_attack"]
"""Kinds of attacks: by what nodes exchange in the swarms that they are for."""
CALLED_ATTACKS: dict[AttackKind, str] = {
    "attack": "an attack on completions", "weight_attack": "an attack on exchanged weights",
    "stage_attack": "an attack on a pipeline",
}  # fmt: skip
"""What messages call one of a kind."""
IMPORTED: dict[AttackKind, str] = {
    "attack": "thiefbench.attacks.base", "weight_attack": "thiefbench.attacks.exchange.base",
    "stage_attack": "thiefbench.attacks.stages.base",
}  # fmt: skip
"""The module of the contract of each kind."""
_CONTRACTS: dict[AttackKind, str] = {
    "weight_attack": "thiefbench.attacks.exchange", "stage_attack": "thiefbench.attacks.stages",
}  # fmt: skip
"""What the source of such an attack imports: the package of the class that it derives from, or of one around it."""
_Narrower = TypeVar("_Narrower", bound=registry.Kind)
_SCIPY = ("scipy.special", "scipy.stats")
_COMPILER = ("torch._dynamo",)
"""What `torch.optim`, `torch.func` and `torch.utils.checkpoint` import when they are first used, which the sandbox
would not let them."""
_VECTORS = "thiefbench.leaderboard.isolation.guest_vectors"
_USES_COMPILER = re.compile(rb"\b(optim|func|functorch|checkpoint)\b")

_NAME = re.compile(r"[\w.-]+")
_MODULE = re.compile(r"\w+(\.\w+)+")


def setup(spec: str, kind: Guests = "defense") -> str:
    """The setup of `_isolated_worker.main` for a guest, as JSON.

    Raises:
        SpecStringError: the spec string is malformed, or names something that is not there.
    """
    packages = {name: _folder(name) for name in _PACKAGES}
    tensors = given_tensors(spec, kind)
    installed = [*_libraries(TENSOR_DEPENDENCIES if tensors else DEPENDENCIES), *_plugins(spec, kind)]
    paths = [*installed, *(packages[name] for name in _SHOWN[kind])]
    for file in files(spec, kind):
        paths += [file.parent] if is_of_package(file) else [file, *weights(file)]
    # Not `sys.path`, which may hold a stranger's folder; the last one is where the built-in names are declared.
    search = [*(path.parent for path in installed), Path(str(distribution("thiefbench").locate_file("")))]
    guest = f"thiefbench.leaderboard.isolation.{'tensor_' if tensors and kind == 'attack' else ''}{kind}_guest"
    setup_data = {
        "kind": kind,
        "guest": None if kind == "defense" else guest,
        "packages": {name: str(folder) for name, folder in packages.items()},
        "search": [str(path) for path in dict.fromkeys(path.resolve() for path in search)],
        "readable": [str(path) for path in _outermost(paths)],
        "warm": _warm(spec, kind, guest if tensors else ""),
        "shared": [str(file) for path in installed if path.name == "scipy.libs" for file in sorted(path.glob("*.so*"))],
    }
    return json.dumps(setup_data)


def given_tensors(spec: str, kind: Guests) -> bool:
    """Whether what a spec string names is given tensors, and may import torch.

    Raises:
        SpecStringError: it is malformed, or there is no such file or name.
    """
    if kind == "attack":
        return attack_kind(spec) != "attack"
    return kind != "defense"


def attack_kind(spec: str) -> AttackKind:
    """Which kind of attack a spec string names, as far as can be told without loading a user's file.

    Raises:
        SpecStringError: it is malformed, there is no such file or name, or its files have attacks of two kinds.
    """
    found = kinds_named(spec, "attack", _CONTRACTS)
    if len(found) > 1:
        raise registry.SpecStringError(
            f"attack {spec}: its files have attacks on exchanged weights and on pipelines; write them into separate "
            "files"
        )
    return found[0] if found else "attack"


def kinds_named(spec: str, wider: Guests, contracts: Mapping[_Narrower, str]) -> list[_Narrower]:
    """The narrower kinds that a spec string names, as far as can be told without loading a user's file.

    A declared name has its kind. A file has one if it or another file of its package imports the kind's contract.

    Args:
        spec: the spec string.
        wider: the kind that it is read as.
        contracts: the package that each narrower kind imports.

    Raises:
        SpecStringError: it is malformed, or there is no such file or name.
    """
    targets = {registry.parse(wider, part).target for part in registry.parts(wider, spec)}
    found = [kind for kind in contracts if targets & set(registry.names(kind))]
    if ":" in "".join(targets):
        sources = [path for file in files(spec, wider) for path in source_files(file) if path.suffix == ".py"]
        found += contracts_in(sources, contracts)
    return list(dict.fromkeys(found))


def contracts_in(sources: Iterable[Path], contracts: Mapping[_Narrower, str]) -> list[_Narrower]:
    """The kinds whose package one of some sources imports; of a file that is not valid Python, its text decides."""
    named: set[str] = set()
    for path in sources:
        found = path.stat()
        names = modules_named(path, found.st_mtime_ns, found.st_size)
        named |= (
            {package for package in contracts.values() if package in path.read_text("utf-8", "replace")}
            if names is None
            else names
        )
    return [kind for kind, package in contracts.items() if any(f"{name}.".startswith(f"{package}.") for name in named)]


@lru_cache(maxsize=256)
def modules_named(source: Path, modified: int, size: int) -> frozenset[str] | None:
    """The modules that a file imports, or names in a text of their own; None where it is not valid Python.

    For ``from a import b``, both ``a`` and ``a.b`` are there, as either may be a module, and so is ``a.b.c`` where the
    file uses that.

    Args:
        source: the file.
        modified, size: of the file, for the cache.
    """
    try:
        tree = ast.parse(source.read_bytes(), source.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    aliases, named = aliases_of(tree), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            named.add(full_name(node, aliases))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            named.add(node.value)
    return frozenset(named)


def may_import(file: Path, kind: Guests) -> tuple[str, ...]:
    """The distributions that a submitted file may import."""
    if kind == "attack":
        sources = [path for path in source_files(file) if path.suffix == ".py"]
        return TENSOR_DEPENDENCIES if contracts_in(sources, _CONTRACTS) else DEPENDENCIES
    return DEPENDENCIES if kind == "defense" else TENSOR_DEPENDENCIES


def _warm(spec: str, kind: Guests, tensor_guest: str) -> list[str]:
    """Modules to import before the sandbox closes, beside those that every guest needs.

    To import scipy takes three times as long as all else that a guest's process imports, and torch's compiler nearly as
    long as torch. Who uses scipy without naming it, as by another module, imports it inside.

    Args:
        spec, kind: of the guest.
        tensor_guest: the module whose `serve` answers, where the guest is given tensors.
    """
    sources = _sources(spec, kind)
    modules = [*_SCIPY] if sources is None or b"scipy" in sources else []
    if tensor_guest:
        compiler = _COMPILER if sources is None or _USES_COMPILER.search(sources) else ()
        modules += ["torch", *compiler, _VECTORS, tensor_guest]
    return modules


def _sources(spec: str, kind: Guests) -> bytes | None:
    """The sources of what a spec string names, one after the other; None where another distribution declares it."""
    targets = [registry.parse(kind, part).target for part in registry.parts(kind, spec)]
    declared = [registry.entry(kind, target) for target in targets if ":" not in target]
    if foreign(spec, kind):
        return None
    found = [importlib.util.find_spec(each.module) for each in declared]
    own = [Path(each.origin) for each in found if each is not None and each.origin is not None]
    given = [path for file in files(spec, kind) for path in source_files(file) if path.suffix == ".py"]
    return b"\n".join(path.read_bytes() for path in (*own, *given))


def files(spec: str, kind: Guests = "defense") -> list[Path]:
    """The files that a spec string names, including .py files in its arguments; none of them is loaded.

    What stands in arguments counts by the same rule as in `registry.named_in`, by which an entry's files are checked:
    no other file comes into the sandbox.

    Raises:
        SpecStringError: the spec string is malformed, or there is no such file or name.
    """
    paths: list[Path] = []
    for part in registry.parts(kind, spec):
        parsed = registry.parse(kind, part)
        if ":" in parsed.target:
            paths.append(_regular(parsed.target, kind))
        else:
            registry.entry(kind, parsed.target)
        for value in parsed.arguments.values():
            paths += [_regular(target, kind) for target in registry.classes_in(value) if _in_py_file(target)]
    return list(dict.fromkeys(paths))


def _in_py_file(target: str) -> bool:
    """Whether what stands in an argument is a class in a .py file."""
    return registry.reads_like_class(target) and target.rpartition(":")[0].endswith(".py")


def _regular(target: str, kind: Guests) -> Path:
    file, _, name = target.rpartition(":")
    if names_module(target):
        module = Path(file.replace(".", "/"))
        package = module.is_dir() and not module.with_suffix(".py").is_file()
        written = f"{module / '__init__.py' if package else module.with_suffix('.py')}:{name}"
        raise registry.SpecStringError(
            f"{kind} {target}: the leaderboard takes a class by its file, because an entry contains the file; write "
            f"{written} instead"
        )
    path = Path(file).expanduser()
    if not path.is_file():
        raise registry.SpecStringError(f"{kind} {target}: there is no file {file}")
    return path.resolve()


def missed_file(why: str) -> Path | None:
    """The file that an error says is missing or must not be read; None if it says nothing like that."""
    missed = re.search(r"(?:FileNotFoundError|PermissionError).*'([^']+)'", why)
    return Path(missed[1]) if missed else None


def left_behind(name: str) -> str:
    """What to do about a file beside a submitted one that was not submitted with it, in a clause."""
    return (
        f"; {name} exists, but a single file is submitted alone: put an empty __init__.py beside it, and the folder is "
        "submitted"
    )


def absolute(spec: str, kind: Guests = "defense") -> str:
    """A spec string with absolute paths, for a process with another working directory.

    Raises:
        SpecStringError: it is malformed.
    """
    return relocated(spec, lambda file: str(Path(file).expanduser().resolve()), kind)


def relocated(spec: str, place: Callable[[str], str], kind: Guests = "defense") -> str:
    """A spec string with other paths; nothing is loaded.

    Args:
        spec: of a guest.
        place: old path -> new path, also for paths in arguments.
        kind: of the guest.

    Raises:
        SpecStringError: the spec string is malformed.
    """
    return _relocated(spec, place, lambda target: ":" in target, kind)


def _relocated(spec: str, place: Callable[[str], str], counts: Callable[[str], bool], kind: Guests) -> str:
    moved = []
    for part in registry.parts(kind, spec):
        parsed = registry.parse(kind, part)
        file, _, name = parsed.target.rpartition(":")
        target = f"{place(file)}:{name}" if counts(parsed.target) else parsed.target
        nested = {
            key: _relocated(value, place, _in_py_file, "defense")
            if isinstance(value, str) and any(map(_in_py_file, registry.classes_in(value)))
            else value
            for key, value in parsed.arguments.items()
        }
        moved.append(str(registry.ParsedSpec(target, nested)))
    return "+".join(moved)


def foreign(spec: str, kind: Guests = "defense") -> list[EntryPoint]:
    """The names in a spec string that another installed distribution declares.

    Raises:
        SpecStringError: the spec string is malformed, or there is no such name.
    """
    targets = [registry.parse(kind, part).target for part in registry.parts(kind, spec)]
    declared = [registry.entry(kind, target) for target in targets if ":" not in target]
    return [each for each in declared if each.dist is not None and each.dist.name != "thiefbench"]


def weights(file: Path) -> list[Path]:
    """The safetensors files beside a submitted file."""
    return sorted(path.resolve() for path in file.parent.glob("*.safetensors") if path.is_file())


@cache
def _libraries(allowed: tuple[str, ...]) -> tuple[Path, ...]:
    """The paths of the allowed distributions and of those that they need: modules, packages and shared libraries."""
    libraries: dict[str, tuple[Path, ...]] = {}
    waiting = list(allowed)
    while waiting:
        name = waiting.pop()
        if name in libraries:
            continue
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue  # an extra's, or a marker's for another platform
        libraries[name] = _tops(dist)
        plain = [need for need in dist.requires or () if "extra ==" not in need]
        waiting += [match.group() for need in plain if (match := _NAME.match(need))]
    return tuple(path for paths in libraries.values() for path in paths)


def _tops(dist: Distribution) -> tuple[Path, ...]:
    """The top-level files and folders of a distribution that can be imported or that hold its shared libraries."""
    tops = {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}
    paths = (Path(str(dist.locate_file(top))).resolve() for top in tops)
    return tuple(path for path in paths if path.exists() and path.suffix not in (".dist-info", ".pth"))


def _plugins(spec: str, kind: Guests) -> list[Path]:
    """The paths of the distributions that declare names which a spec string uses."""
    return [path for declared in foreign(spec, kind) if declared.dist is not None for path in _tops(declared.dist)]


def _folder(package: str) -> Path:
    return Path(str(importlib.import_module(package).__file__)).parent.resolve()


def _outermost(paths: list[Path]) -> list[Path]:
    """Each path once, and none that lies inside another one."""
    chosen = set(paths)
    return [path for path in dict.fromkeys(paths) if not chosen & set(path.parents)]
