"""What several tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench import tiny
from tests.bench.nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Commands that start at once."""
    folder = tmp_path_factory.mktemp("nursery")
    words = ("run", tiny.suite_file(folder, rounds=1), "--store", folder / "store", "--threads", 1)
    made = Nursery(folder, *words)
    yield made
    made.close()
