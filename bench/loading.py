"""Classes without entry points: in a file, or in a module that Python can import."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from thiefbench.error_messages import nearest
from thiefbench.errors import UserError
from thiefbench.regular_files import read_regular
from thiefbench.sources import OF_USER, is_of_package, source_files
from thiefbench.torch_settings import torch_settings_kept
from thiefbench.user_frames import where
from thiefbench.user_imports import UserModule, clashes, imported

_CLASS = re.compile(r"^class\s+(\w+)", re.MULTILINE)
_MOST_SOURCE = 1 << 20
_OFFERED = 5
"""Most bytes of a file that is searched for classes, and most classes of it that a message names."""
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class SpecStringError(UserError, ValueError):
    """A spec string names nothing or is malformed. One sentence for the user."""


def names_module(target: str) -> bool:
    """Whether a target with a colon names a module, as in ``package.module:Class``, and not a file."""
    place, colon, _ = target.rpartition(":")
    return bool(colon) and _DOTTED.fullmatch(place) is not None and not place.endswith(".py")


def class_at(kind: str, target: str) -> Any:
    """The class that ``path/to/file.py:Class`` or ``package.module:Class`` names.

    Args:
        kind: what it should be, for messages.
        target: the class comes after the last colon.

    Raises:
        SpecStringError: there is no such file, module or class, or loading it fails.
    """
    place, _, name = target.rpartition(":")
    module = _imported(kind, target, place) if names_module(target) else _module_of(file_of(kind, target).resolve())
    if not inspect.isclass(getattr(module, name, None)):
        raise SpecStringError(_no_class(module, place, name))
    return getattr(module, name)


def _no_class(module: ModuleType, place: str, name: str) -> str:
    """Why a name of a module is not that of a class, and which classes the module defines."""
    own = [key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__]
    known = f"; {nearest(name, own)}it has {', '.join(own)}" if own else "; it defines no class"
    if inspect.isfunction(getattr(module, name, None)):
        return f"{name} in {place} is a function, not a class{known}"
    return f"{place} has no class {name}{known}" if name else f"{place} is named without a class{known}"


def file_of(kind: str, target: str) -> Path:
    """The file of ``path/to/file.py:Class``; it is not loaded.

    Raises:
        SpecStringError: there is none, or it is no Python file.
    """
    place = target.rpartition(":")[0]
    path = _expanded(place)
    if not path.is_file():
        raise SpecStringError(f"{kind} {target}: there is no file {place}")
    if path.suffix != ".py":
        raise SpecStringError(f"{kind} {target}: {place} is no Python file; its name must end in .py")
    return path


def imports_contracts(target: str, package: str) -> bool:
    """Whether the file of ``path/to/file.py:Class`` imports from a package of contracts; it is not loaded."""
    imports = rf"^\s*(?:from|import)\s+{re.escape(package)}\b"
    return re.search(imports, _source(target.rpartition(":")[0]), re.MULTILINE) is not None


def unnamed_class(kind: str, name: str) -> str:
    """What to write where a spec string names a file without a class, as a sentence; empty if it seems to name none.

    The file is not loaded: classes are those whose definition begins a line.
    """
    file = name if name.endswith(".py") else f"{name}.py"
    if not (source := _source(file)):
        if file == name:
            is_there = _expanded(file).is_file()
            why = "the file defines no class, or cannot be read" if is_there else f"there is no file {file}"
            return f"{kind} {name}: {why}"
        folder = set(name) & {".", "/", "~"} and _expanded(name).is_dir()
        return f"{kind} {name}: this is a folder; write the file in it and its class: FILE.py:Class" if folder else ""
    classes = dict.fromkeys(_CLASS.findall(source))
    offered = " or ".join(f"{file}:{each}" for each in list(classes)[:_OFFERED])
    return f"{kind} {name}: a file is named with its class; write {offered or f'{file}:Class'}"


def _source(file: str) -> str:
    """The text of a file; empty where it cannot be read, or is too large for a source."""
    try:
        return read_regular(_expanded(file), _MOST_SOURCE).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _expanded(place: str) -> Path:
    """A path with ``~`` replaced, unless no user has the name that follows."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)


def _imported(kind: str, target: str, name: str) -> ModuleType:
    """A module by its name; modules in the current directory can be imported too, as with `python -m`."""
    top = name.partition(".")[0]
    here = Path.cwd()
    if not _can_be_found(top) and ((here / top).is_dir() or (here / f"{top}.py").is_file()):
        _look_in(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SpecStringError(
                f"{kind} {target}: there is no module {error.name} to import; install its package, run the "
                "command in the directory that holds it, or write path/to/file.py:Class"
            ) from error
        raise SpecStringError(
            f"{kind} {target}: ModuleNotFoundError while importing {name}: {error}{where(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise SpecStringError(
            f"{kind} {target}: {type(error).__name__} while importing {name}: {error}{where(error)}"
        ) from error


def _can_be_found(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:  # a module that was made without a spec, such as __main__
        return top in sys.modules


@cache
def _module_of(path: Path) -> ModuleType:
    """A user's file as a module; with an ``__init__.py`` in the same folder, as a module of that package.

    Other modules that lie beside the file can be imported.
    """
    try:
        others = imported((file for file in source_files(path) if file.suffix == ".py"), path.parent).modules
    except OSError as error:
        raise SpecStringError(f"{path}: what it imports cannot be read: {error}") from error
    if not is_of_package(path) and any(each.file.is_relative_to(path.parent) for each in others):
        _look_in(path.parent)
    _check_others(path, others)
    module = _loaded_alone_or_in_package(path)
    _check_others(path, others)
    return module


def _look_in(folder: Path) -> None:
    """Also find modules in a folder: permanently, because imports may come late, and last, so that it hides nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _check_others(path: Path, others: Iterable[UserModule]) -> None:
    """Check that the modules a file imports are those that count as its source.

    Raises:
        SpecStringError: another module of that name was imported.
    """
    for name, loaded, read in clashes(others):
        raise SpecStringError(
            f"{path}: it imports {name}, which may be {read}, but {loaded} has been imported under this name; "
            "give one of them another name"
        )


def _loaded_alone_or_in_package(path: Path) -> ModuleType:
    if not is_of_package(path):
        return _loaded(path, _alias(path, path.stem))
    init = path.with_name("__init__.py")
    package = _alias(init, path.parent.name)
    if package not in sys.modules:
        _loaded(init, package)
    if path == init:
        return sys.modules[package]
    name = f"{package}.{path.stem.replace('.', '_')}"  # the package may have imported it already
    return sys.modules[name] if name in sys.modules else _loaded(path, name)


def _alias(path: Path, name: str) -> str:
    marked = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two files may share a name
    return f"{OF_USER}{marked}_{name.replace('.', '_')}"


def _loaded(path: Path, name: str) -> ModuleType:
    folder = [str(path.parent)] if path.name == "__init__.py" else None
    located = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    assert located is not None
    assert located.loader is not None
    module = importlib.util.module_from_spec(located)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        with torch_settings_kept():  # else results would depend on what loaded it first
            located.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SpecStringError(f"{path}: {type(error).__name__} while loading it: {error}{where(error)}") from error
    return module
