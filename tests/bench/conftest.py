"""What several tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench import tiny
from tests.bench.nursery import Nursery
from thiefbench import trust


@pytest.fixture(scope="session", autouse=True)
def trusting_commands() -> Iterator[None]:
    """Commands in processes of their own load the plug-ins that these tests' suites and stores name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THIEFBENCH_TRUST_PLUGINS", "1")
        yield


@pytest.fixture(autouse=True)
def trusting(trusting_commands: None) -> Iterator[None]:
    """So do commands and functions in this process."""
    with trust.plugins():
        yield


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Commands that start at once."""
    folder = tmp_path_factory.mktemp("nursery")
    words = ("run", tiny.suite_file(folder, rounds=1), "--store", folder / "store", "--threads", 1)
    made = Nursery(folder, *words)
    yield made
    made.close()
