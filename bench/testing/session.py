"""The parts of one pytest session: its store, and the object that runs cells on it. Loads nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from thiefbench import trust

if TYPE_CHECKING:
    from thiefbench.testing.runs import Runs

STORE = ".thiefbench"
PYTEST = ("python", "-m", "pytest")
"""How a command that repeats a test begins: `pytest` alone finds no modules in the current folder."""
USED = pytest.StashKey[bool]()
_RUNS: pytest.StashKey[Runs] = pytest.StashKey()


def store_of(config: pytest.Config) -> Path:
    """The directory that keeps results: that of the option, relative to where pytest was called, or one in the root."""
    option: str | None = config.getoption("thiefbench_store")
    return config.rootpath / STORE if option is None else from_here(config, option)


def from_here(config: pytest.Config, path: str) -> Path:
    """A path relative to the directory where pytest was called, made absolute."""
    return Path(os.path.normpath(config.invocation_params.dir / Path(path).expanduser()))


def runs_of(config: pytest.Config) -> Runs:
    """The object that runs cells, the same for all tests of the session."""
    from thiefbench.suite.store.records import Store
    from thiefbench.testing.runs import Runs

    if _RUNS not in config.stash:
        config.stash[USED] = True
        threads: int = config.getoption("thiefbench_threads")

        def tell(message: str) -> None:
            _tell(config, message)

        config.stash[_RUNS] = Runs(Store(store_of(config)), threads, tell)
    return config.stash[_RUNS]


TRUST = "--thiefbench-trust-plugins"


@contextmanager
def trusting(config: pytest.Config, written: Iterable[object] = ()) -> Iterator[None]:
    """In the `with` block, load of what files name declared names alone, unless the user trusts plugins.

    What the user wrote is loaded: as an option, or as a spec string in a test (`written`; what is not text names
    nothing). See `thiefbench.trust`.
    """
    from thiefbench import registry

    with trust.declared_only(TRUST):
        if _trusts_plugins(config):
            trust.trust_plugins()
        for spec in (*config.getoption("thiefbench_defense"), *written):
            if isinstance(spec, str):
                registry.allow(spec)
        yield


def _trusts_plugins(config: pytest.Config) -> bool:
    in_environment = os.environ.get("THIEFBENCH_TRUST_PLUGINS", "").lower()
    return bool(config.getoption("thiefbench_trust_plugins")) or in_environment in ("1", "true", "yes", "on")


def shown_path(path: Path, config: pytest.Config) -> str:
    """A path as a user types it in the directory where pytest was called."""
    here = config.invocation_params.dir
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def options(config: pytest.Config) -> list[str]:
    """The options with which another session finds the same cells.

    With =, as pytest looks for its root directory in every word that is a path before it knows our options.
    """
    threads: int = config.getoption("thiefbench_threads")
    chosen = [f"--thiefbench-store={shown_path(store_of(config), config)}"]
    chosen += [TRUST] if config.getoption("thiefbench_trust_plugins") else []
    return chosen if threads == 1 else [*chosen, f"--thiefbench-threads={threads}"]


def _tell(config: pytest.Config, message: str) -> None:
    """Write to the terminal at once, past the capture; a worker process of pytest-xdist has no terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    if capture is None:
        reporter.write_line(message)
        return
    with capture.global_and_fixture_disabled():
        reporter.write_line(f"\n{message}")
