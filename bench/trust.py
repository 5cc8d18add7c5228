"""Which code may be loaded, and which servers may see the user's key: one rule for all spec strings.

A spec string names code in one of two ways. A *declared name* (``logit``) stands for a class that an installed package
declares by an entry point; whoever installed the package has trusted it. A *class after a colon*
(``mine.py:Mine``, ``package.module:Class``) is any code that this machine can reach, and to load it is to run it.

So whether it is loaded depends on where the name comes from:

- The user, by typing it as an option of the command line (`allow`) or by writing it in Python: it is loaded.
- A file, such as a record, a store's run or a suite in YAML: it is not loaded, at any level of nesting, unless the user
  gives ``--trust-plugins`` (`plugins`). Files may come from strangers, and no checksum in them proves who wrote them.
- An entry of the leaderboard: `thiefbench.leaderboard.named_code` has the rule. Its classes are loaded only in the
  sandbox.

By default, as in a Python program or a test, classes are loaded, because the program's author named them. The command
line enters `declared_only` before any command, and so does each function that reads a store and may create objects that
it names.

A spec string may also name a judge's server. OPENAI_API_KEY goes to OpenAI's own server, to the one in OPENAI_BASE_URL,
and to those whose addresses the user typed as options (`allow_server`). Any other gets a placeholder.

The trust belongs to the current context (`contextvars`). A new thread starts without it, so never resolve a spec string
from a file in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from thiefbench.loading import SpecStringError, names_module

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Trust:
    """Which classes after a colon may be loaded.

    Attributes:
        plugins: whether all of them may be loaded.
        places: otherwise, these files (by resolved path) and modules (by name).
        servers: addresses of judges that may see the user's key.
        flag: the option that means `plugins`.
    """

    plugins: bool = False
    places: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    flag: str = "--trust-plugins"


OPENAI = "https://api.openai.com/v1"
"""Where the key comes from."""

_TRUST: ContextVar[Trust | None] = ContextVar("thiefbench_trust", default=None)


@contextmanager
def declared_only(flag: str = Trust.flag) -> Iterator[None]:
    """Load only declared names and what `allow_place` allows; a trust that was already set is kept.

    Args:
        flag: the option that means `trust_plugins`, for messages.
    """
    trust = _TRUST.get()
    token = _TRUST.set(Trust(flag=flag) if trust is None else trust)
    try:
        yield
    finally:
        _TRUST.reset(token)


@contextmanager
def plugins() -> Iterator[None]:
    """Load any class that a spec string names."""
    token = _TRUST.set(replace(_TRUST.get() or Trust(), plugins=True))
    try:
        yield
    finally:
        _TRUST.reset(token)


@contextmanager
def checked_elsewhere(servers: Iterable[str]) -> Iterator[None]:
    """Load any class that a spec string names, because the sending process has checked it; see `allowed_servers`."""
    token = _TRUST.set(Trust(plugins=True, servers=frozenset(servers)))
    try:
        yield
    finally:
        _TRUST.reset(token)


def reads_strangers(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator for functions that read spec strings from files: only declared names load, unless more is trusted."""

    @wraps(function)
    def restricted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with declared_only():
            return function(*args, **kwargs)

    return restricted


def trust_plugins() -> None:
    """From here on, until the surrounding `declared_only` ends, load any class that a spec string names."""
    _TRUST.set(replace(_TRUST.get() or Trust(), plugins=True))


def allow_place(target: str) -> None:
    """Also load the classes of a file or module, named as in ``mine.py:Mine``; the user typed it."""
    trust = _TRUST.get()
    if trust is not None:
        _TRUST.set(replace(trust, places=trust.places | {_place(target)}))


def allow_server(endpoint: str) -> None:
    """Also send the user's key to the judge at this address; the user typed it."""
    trust = _TRUST.get()
    if trust is not None:
        _TRUST.set(replace(trust, servers=trust.servers | {_address(endpoint)}))


def allowed_servers() -> tuple[str, ...]:
    """The addresses that `allow_server` was called with, for another process."""
    return tuple(sorted((_TRUST.get() or Trust()).servers))


def may_see_key(endpoint: str) -> bool:
    """Whether OPENAI_API_KEY may be sent to the judge at this address."""
    address, named = _address(endpoint), os.environ.get("OPENAI_BASE_URL", "")
    return address in {OPENAI, *allowed_servers(), *([_address(named)] if named else [])}


def check(kind: str, target: str) -> None:
    """Raise an error for a class after a colon that only a file names.

    Raises:
        SpecStringError: the class is not allowed; the message has the flag that allows it.
    """
    trust = _TRUST.get()
    if trust is None or trust.plugins or _place(target) in trust.places:
        return
    raise SpecStringError(
        f"the {kind} {target} is named in what was read (a store, a suite file, an entry) and not on the command line, "
        f"and no installed package declares it, so its code was not loaded; add {trust.flag} if you wrote it or trust "
        "whoever did"
    )


def _address(endpoint: str) -> str:
    """A base URL in a canonical form, so that URLs of the same server are equal."""
    scheme, _, rest = endpoint.strip().partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}".rstrip("/")


def _place(target: str) -> str:
    """The module's name or the file's resolved path."""
    where = target.rpartition(":")[0].strip()
    if names_module(target):
        return f"module {where}"
    try:
        return str(Path(where).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise SpecStringError(f"{where!r} is not a path to a file") from error
