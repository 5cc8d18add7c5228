"""Which files define a class: its module, what it imports from its own package, and data files beside these.

A user's file with an ``__init__.py`` beside it is a module of that folder, all of which counts.
`thiefbench.user_imports` finds what a user's files import from the user's other modules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from thiefbench.package_meaning import DATA, needed_by

OF_USER = "thiefbench_user_"
"""The prefix of names of modules that are loaded from users' files."""


def is_of_user(module: ModuleType) -> bool:
    """Whether a module was loaded from a user's file."""
    return module.__name__.startswith(OF_USER)


def is_of_package(file: Path) -> bool:
    """Whether a user's file is a module of its folder, all of which then counts."""
    return file.with_name("__init__.py").is_file()


def source_files(file: Path) -> list[Path]:
    """A user's file, or all Python and data files of the package whose module it is, sorted.

    Data that this package has written into the folder, such as the store of a run that was started there, are left out.
    """
    if not is_of_package(file):
        return [file]
    return sorted(path for path in _files_of_package(file) if path.suffix in {".py", *DATA})


def sources(module: ModuleType) -> set[Path]:
    """The module's file, the modules of its own package that it imports, and the data files beside these."""
    if is_of_user(module):
        return set(source_files(Path(str(sys.modules[module.__name__.partition(".")[0]].__file__))))
    needed = needed_by(module)
    return {each.file for each in needed.modules} | {path for folder in needed.data() for path in folder}


def package_files(module: ModuleType) -> set[Path]:
    """All files of the folder of the module's package, and what `sources` finds elsewhere; without a package its file.

    Compiled and hidden files are left out, and data that this package has written there.
    """
    found = sources(module)
    if not module.__package__:
        return found
    return found | set(_files_of_package(Path(str(module.__file__))))


def import_root(module: ModuleType) -> Path:
    """The folder in which Python found the module, or the outermost package around it."""
    file = Path(str(module.__file__)).resolve()
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    return file.parents[depth]


def _files_of_package(file: Path) -> list[Path]:
    """All files of a module's folder but compiled and hidden ones, and data that this package has written there.

    Links to files are followed, links to folders are not. Data that this package has written lie in stores and in
    entries of defenses and attacks; code counts wherever it lies.
    """
    shown = [path for path in file.parent.rglob("*") if path.is_file() and _is_shown(path, file)]
    written = {path.parent for path in shown if path.parent != file.parent and _is_written(path)}
    return [path for path in shown if path.suffix == ".py" or written.isdisjoint(path.parents)]


_WRITTEN = {
    "run.json": ("cells", b'"fingerprint"'),
    "entry.json": ("scores.json.gz", b'"source_sha256"'),
    "attack.json": ("scores.json.gz", b'"source_sha256"'),
}
"""Files that a store, an entry of a defense and one of an attack have: what lies beside them, and what they say."""


def _is_written(path: Path) -> bool:
    """Whether a file marks its folder as a store or an entry."""
    if path.name not in _WRITTEN:
        return False
    beside, says = _WRITTEN[path.name]
    try:
        return path.with_name(beside).exists() and says in path.read_bytes()
    except OSError:
        return False


def _is_shown(path: Path, beside: Path) -> bool:
    inside = path.relative_to(beside.parent).parts
    compiled = "__pycache__" in inside and path.suffix != ".py"
    return not compiled and not any(part.startswith(".") for part in inside)
