"""Which of the user's own modules a user's file imports, and which data files it names, found by reading the file.

A module is the user's own unless it belongs to the standard library, to an installed package or to this one. It is
searched for beside the named file, and in `sys.path` as it was before any user's file was loaded. If both places have a
module of the same name, both count. So the answer does not depend on whether the file was loaded, which may change
`sys.path`; `clashes` finds modules that were imported from somewhere else.

Nothing is imported. Import statements count anywhere in a file. In a file that uses `import_module` or `__import__`,
strings that are names of modules count too, and so does a relative name with the package that the call names. Not found
are names that are only computed when the file runs, names that no `import` statement could have, and modules in zip
files and in folders that the file itself adds to `sys.path`.

A data file counts where its path, relative to the folder of the Python file, is one whole string in that Python file,
as in ``Path(__file__).with_name("words.txt")`` or ``Path(__file__).parent / "data/words.txt"``. What a Python file that
is named in this way imports counts too. Not found are paths that are put together from several strings, absolute ones,
ones that lead out of the folder, and ones whose last part has no suffix.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path, PurePosixPath

from thiefbench.regular_files import read_regular

MOST_SOURCE_BYTES = 16 << 20
"""Of a file whose imports are read."""
MOST_PATH_LETTERS = 512
"""A longer string is not taken for the path of a data file."""
MOST_REMEMBERED_BYTES = 1 << 18
"""Of a file whose syntax is remembered; a longer one is read anew each time."""
MOST_NAME_BYTES = 240
"""No file system has room for a module of a longer name; a string that reads like a name may be longer."""

_SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
_IMPORT_BY_NAME = frozenset({"__import__", "import_module"})
_NAMED_AFTER_CONTENT = re.compile(r"-[0-9a-f]{64}\.safetensors$")  # weights of a submission: the name covers them
_DOTTED = re.compile(r"[^\W\d]\w*([.][^\W\d]\w*)*")
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_EDITABLE = "__editable__"  # how setuptools begins the names of modules that find packages installed with `pip -e`
_search_path: tuple[str, ...] = tuple(sys.path)
_Listing = Callable[[Path], frozenset[str] | None]


@dataclass(frozen=True, order=True)
class UserModule:
    """A module that a user's file imports, perhaps by way of others.

    Attributes:
        name: in full, as import statements have it.
        file: its path, with links resolved.
        place: where it was found, in the order in which Python looks: 0 beside the named file, 1 in the search path, 2
            in an editable installation. One that is found in two of these counts as found in the first.
    """

    name: str
    file: Path
    place: int = field(default=0, compare=False)

    @property
    def package(self) -> str:
        """The package from which its relative imports start."""
        return self.name if self.file.name.startswith("__init__.") else self.name.rpartition(".")[0]


def search_path() -> tuple[str, ...]:
    """The search path of this process before it loaded any user's file."""
    return _search_path


def set_search_path(places: Iterable[str]) -> None:
    """Use another process's search path: a worker takes over its parent's `sys.path`, including changes by plugins."""
    global _search_path
    _search_path = tuple(places)


@dataclass(frozen=True, order=True)
class NamedData:
    """A data file that a user's file names.

    Attributes:
        name: its path as the Python file has it, relative to the folder of that.
        file: its path.
        namer: the Python file: its path in the plugin's folder, or the name of the module.
    """

    name: str
    file: Path
    namer: str


@dataclass(frozen=True)
class Imported:
    """The imports of files, directly or through the user's own modules, and the data files that these name.

    Attributes:
        modules: the user's own modules, sorted, without the files themselves.
        names: of everything that import statements name, such as ``torch.nn``.
        data: the data files, sorted, without the files themselves and the modules.
    """

    modules: tuple[UserModule, ...]
    names: frozenset[str]
    data: tuple[NamedData, ...]


def imported(files: Iterable[Path], folder: Path) -> Imported:
    """What files import.

    Args:
        files: those of one plugin; relative imports among them are left out, because they stay within its package.
        folder: the plugin's folder.

    Raises:
        OSError: one of `files` cannot be read, or is not a regular file, or is a very large one. A module that cannot
            be read cannot be imported either, so what it imports is left out.
    """
    own = {file.resolve(): name_within(folder, file) for file in files}
    modules, names, data = set[UserModule](), set[str](), set[NamedData]()
    waiting = [(file, name, "") for file, name in own.items()]
    listed = cache(_listed)  # a question to the file system for every name in every folder takes long
    while waiting:
        file, namer, package = waiting.pop()
        try:
            syntax = _syntax(file)
        except OSError:
            if file in own:
                raise
            continue
        named = set(_named_data(syntax, file.parent, namer))
        waiting += [(each.file, each.name, "") for each in named - data if each.file.suffix in SOURCE_SUFFIXES]
        data |= named
        for name in set(_imported_names(syntax, package)) - names:
            names.add(name)
            new = {module for module in _located(name, folder, listed) if module.file not in own} - modules
            modules |= new
            waiting += [(module.file, module.name, module.package) for module in new]
    counted = own.keys() | {module.file for module in modules}
    return Imported(
        tuple(sorted(modules)), frozenset(names), tuple(sorted(each for each in data if each.file not in counted))
    )


def clashes(modules: Iterable[UserModule]) -> Iterator[tuple[str, Path, Path]]:
    """Modules that Python imported from a different user's file than was read: name, imported file, file read."""
    files: dict[str, list[Path]] = {}
    for module in modules:
        files.setdefault(module.name, []).append(module.file)
    for name, places in files.items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded and (file := Path(loaded).resolve()) not in places and is_user_s(file):
            yield name, file, places[0]


def name_within(folder: Path, file: Path) -> str:
    """The path of a plugin's file relative to the plugin's folder, whatever links lead to either."""
    for path, root in ((file, folder), (file.resolve(), folder.resolve())):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


@dataclass(frozen=True)
class _Syntax:
    """What a Python file says of other files.

    Attributes:
        imported: names of modules that its `import` statements give in full.
        taken: of its `from` statements, the number of leading dots, the module's name, and the names taken from it.
        strings: all whole strings, if it imports modules by name; else none.
        paths: strings that may be the path of a data file.
    """

    imported: frozenset[str] = frozenset()
    taken: frozenset[tuple[int, str, tuple[str, ...]]] = frozenset()
    strings: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()


def _syntax(file: Path) -> _Syntax:
    """What a file says; nothing if it is no Python, which cannot be loaded either.

    Raises:
        OSError: see `read_regular`.
    """
    if file.suffix not in SOURCE_SUFFIXES:
        return _Syntax()
    content = read_regular(file, MOST_SOURCE_BYTES)
    try:
        return (_remembered if len(content) <= MOST_REMEMBERED_BYTES else _parsed)(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Syntax()


def _parsed(content: bytes) -> _Syntax:
    with warnings.catch_warnings():  # about an escape sequence, which a filter could make an error
        warnings.simplefilter("ignore")
        nodes = list(ast.walk(ast.parse(content)))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    by_name = any(_word(node) in _IMPORT_BY_NAME for node in nodes)
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    if by_name:
        imported |= {name for node in nodes if isinstance(node, ast.Call) and (name := _from_named_package(node))}
    return _Syntax(
        imported=frozenset(imported),
        taken=frozenset(
            (node.level, node.module or "", tuple(alias.name for alias in node.names))
            for node in nodes
            if isinstance(node, ast.ImportFrom)
        ),
        strings=frozenset(strings) if by_name else frozenset(),
        paths=frozenset(filter(_may_be_data, strings)),
    )


def _from_named_package(call: ast.Call) -> str:
    """What a call such as ``import_module(".name", "package")`` imports, in full; empty for any other call."""
    given = dict(zip(("name", "package"), call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    name, package = (getattr(given.get(of), "value", None) for of in ("name", "package"))
    if not isinstance(name, str) or not isinstance(package, str):
        return ""
    relative = name.lstrip(".")
    if relative == name or not _DOTTED.fullmatch(relative) or not _DOTTED.fullmatch(package):
        return ""
    return _absolute(len(name) - len(relative), relative, package)


_remembered = lru_cache(maxsize=64)(_parsed)


def _may_be_data(string: str) -> bool:
    path = PurePosixPath(string)
    if len(string) > MOST_PATH_LETTERS or path.is_absolute() or ".." in path.parts or not path.suffix:
        return False
    return not _NAMED_AFTER_CONTENT.search(path.name)


def _named_data(syntax: _Syntax, folder: Path, namer: str) -> Iterator[NamedData]:
    """The plain files in a folder whose paths relative to it are strings in the syntax of a file there, the namer."""
    for path in map(PurePosixPath, syntax.paths):
        try:
            if (file := folder / path).is_file():
                yield NamedData(path.as_posix(), file.resolve(), namer)
        except OSError:  # such as a name that is too long for one
            continue


def _imported_names(syntax: _Syntax, package: str) -> Iterator[str]:
    """Names of all modules that a file may import; ``package.*`` stands for every module in a package."""
    yield from syntax.imported
    for level, module, names in syntax.taken:
        if path := _absolute(level, module, package):
            yield path
            yield from (f"{path}.{name}" for name in names)
    for string in syntax.strings:
        name = string.lstrip(".")
        if _DOTTED.fullmatch(name) and (path := _absolute(len(string) - len(name), name, package)):
            yield path


def _absolute(level: int, module: str, package: str) -> str:
    """The full name of the module that something is imported from; empty where it is in the plugin's own package."""
    if not level:
        return module
    try:
        return importlib.util.resolve_name("." * level + module, package) if package else ""
    except ImportError:  # it would leave the package, and fails when it runs
        return ""


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else ""


def _listed(folder: Path) -> frozenset[str] | None:
    """The names of all that is in a folder, none if there is no such folder; None if they cannot be told."""
    try:
        with os.scandir(folder) as found:
            return frozenset(each.name for each in found)
    except PermissionError:  # one may still be allowed to enter it
        return None
    except OSError:
        return frozenset()


def _located(name: str, folder: Path, listed: _Listing) -> Iterator[UserModule]:
    """The user's modules of a name, with the packages around them."""
    first, *rest = name.split(".")
    if first == "thiefbench" or len(max((first, *rest), key=len).encode()) > MOST_NAME_BYTES:
        return
    everywhere: tuple[list[Path], ...] = ([folder], [Path(each) for each in _search_path], list(_editable(first)))
    for place, places in enumerate(everywhere):
        for length in range(len(rest) + 1):
            last = rest[length - 1] if length else first
            within = ".".join((first, *rest[:length]))
            if last == "*":
                yield from _inside(".".join((first, *rest[: length - 1])), places, place, listed)
                break
            file, places = _find(last, places, listed)
            if file is not None and not is_user_s(file):
                break
            if file is not None:
                yield UserModule(within, file, place)


def _find(name: str, places: Iterable[Path], listed: _Listing) -> tuple[Path | None, list[Path]]:
    """The file of a module as Python would find it, and where the modules in it lie.

    A folder without `__init__` has no file, and counts only where no place has a file of its name.
    """
    portions = []
    for place in places:
        names = listed(place)
        inside = names is None or name in names
        for file in (
            *(place / name / f"__init__{suffix}" for suffix in _SUFFIXES if inside),
            *(place / f"{name}{suffix}" for suffix in _SUFFIXES if names is None or f"{name}{suffix}" in names),
        ):
            if os.path.isfile(file):  # noqa: PTH113 - false, as for Python, in a folder that cannot be entered
                return file.resolve(), [place / name] if file.parent != place else []
        if inside and os.path.isdir(place / name):  # noqa: PTH112
            portions.append(place / name)
    return None, portions


def _inside(package: str, portions: Iterable[Path], place: int, listed: _Listing) -> Iterator[UserModule]:
    """The modules that ``from package import *`` may import, of a package in these folders."""
    for portion in portions:
        for name in {each.partition(".")[0] for each in listed(portion) or ()} - {"", "__init__"}:
            file, _ = _find(name, [portion], listed)
            if file is not None and is_user_s(file):
                yield UserModule(f"{package}.{name}", file, place)


def _editable(name: str) -> Iterator[Path]:
    """Folders in which a package lies that was installed with `pip -e` and no folder in `sys.path`."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith(_EDITABLE):
            found = finder.find_spec(name, None)
            if found is not None:
                places = found.submodule_search_locations or ([found.origin] if found.origin else [])
                yield from (Path(place).parent for place in places)


def is_user_s(file: Path) -> bool:
    """Whether a file, its links resolved, is of neither the standard library, an installed package nor this one."""
    # By name as well: a sandbox's Python has not the environment's folders for its own.
    return not _PACKAGES & set(file.parts) and not any(file.is_relative_to(place) for place in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    """Where the standard library, installed packages and this package lie."""
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parent)}
    return tuple(Path(place).resolve() for place in sorted(places))
