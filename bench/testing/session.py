"""What belongs to one pytest session: its store, and whoever runs cells on it. Loads nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from thiefbench.testing.runs import Runs

STORE = ".thiefbench"
USED = pytest.StashKey[bool]()
_RUNS: pytest.StashKey[Runs] = pytest.StashKey()


def store_of(config: pytest.Config) -> Path:
    """Where the session keeps records: what was asked for, seen from where pytest was called, or one in the root."""
    asked: str | None = config.getoption("thiefbench_store")
    return config.rootpath / STORE if asked is None else from_here(config, asked)


def from_here(config: pytest.Config, path: str) -> Path:
    """A path as seen from where pytest was called."""
    return Path(os.path.normpath(config.invocation_params.dir / Path(path).expanduser()))


def runs_of(config: pytest.Config) -> Runs:
    """Whoever runs cells, the same for all tests of the session."""
    from thiefbench.suite.store.records import Store
    from thiefbench.testing.runs import Runs

    if _RUNS not in config.stash:
        config.stash[USED] = True
        threads: int = config.getoption("thiefbench_threads")

        def tell(message: str) -> None:
            _tell(config, message)

        config.stash[_RUNS] = Runs(Store(store_of(config)), threads, tell)
    return config.stash[_RUNS]


def written(path: Path, config: pytest.Config) -> str:
    """A path as it is typed where pytest was called."""
    here = config.invocation_params.dir
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def options(config: pytest.Config) -> list[str]:
    """What to type so that another session finds the same cells.

    With =, as pytest looks for its root directory in every word that is a path before it knows our options.
    """
    threads: int = config.getoption("thiefbench_threads")
    chosen = [f"--thiefbench-store={written(store_of(config), config)}"]
    return chosen if threads == 1 else [*chosen, f"--thiefbench-threads={threads}"]


def _tell(config: pytest.Config, message: str) -> None:
    """Write on the terminal at once, past the capture; a worker process of pytest-xdist has none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    if capture is None:
        reporter.write_line(message)
        return
    with capture.global_and_fixture_disabled():
        reporter.write_line(f"\n{message}")
