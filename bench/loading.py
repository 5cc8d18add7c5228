"""Classes that are no entry points: in a file, or in a module that Python can import."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class SpecStringError(ValueError):
    """A spec string names nothing or is malformed. One sentence for the user."""


def names_module(target: str) -> bool:
    """Whether a target with a colon names a module, as in ``package.module:Class``, and not a file."""
    where, colon, _ = target.rpartition(":")
    return bool(colon) and _DOTTED.fullmatch(where) is not None and not where.endswith(".py")


def class_at(kind: str, target: str) -> Any:
    """The class that ``path/to/file.py:Class`` or ``package.module:Class`` names.

    Args:
        kind: what it should be, for messages.
        target: behind the last colon the class.

    Raises:
        SpecStringError: there is no such file, module or class, or loading it fails.
    """
    where, _, name = target.rpartition(":")
    if names_module(target):
        module = _imported(kind, target, where)
    else:
        path = Path(where).expanduser()
        if not path.is_file():
            raise SpecStringError(f"{kind} {target}: there is no file {where}")
        module = _module_of(path.resolve())
    if not inspect.isclass(getattr(module, name, None)):
        classes = [
            n for n, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise SpecStringError(f"{kind} {target}: {where} has no class {name}; it has {', '.join(classes) or 'none'}")
    return getattr(module, name)


def _imported(kind: str, target: str, name: str) -> ModuleType:
    """A module by its name; what lies where one stands can be imported too, as with `python -m`."""
    top = name.partition(".")[0]
    here = Path.cwd()
    if not _can_be_found(top) and ((here / top).is_dir() or (here / f"{top}.py").is_file()):
        sys.path.append(str(here))  # to stay, as its own imports may come late; last, so that it hides nothing
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SpecStringError(
                f"{kind} {target}: there is no module {error.name} to import; install its package, stand in the folder "
                "that holds it, or write path/to/file.py:Class"
            ) from error
        raise SpecStringError(f"{kind} {target}: ModuleNotFoundError while importing {name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise SpecStringError(f"{kind} {target}: {type(error).__name__} while importing {name}: {error}") from error


def _can_be_found(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except ValueError:  # a module that was made without a spec, such as __main__
        return top in sys.modules


def _module_of(path: Path) -> ModuleType:
    marked = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two files may share a name
    name = f"thiefbench_user_{marked}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    located = importlib.util.spec_from_file_location(name, path)
    assert located is not None
    assert located.loader is not None
    module = importlib.util.module_from_spec(located)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        located.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SpecStringError(f"{path}: {type(error).__name__} while loading it: {error}") from error
    return module
