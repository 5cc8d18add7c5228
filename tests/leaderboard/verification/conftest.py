"""What verifications share that run cells again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thiefbench.leaderboard.isolation.isolated import Isolated
from thiefbench.tasks.sandbox import SandboxUnavailable


@pytest.fixture(autouse=True)
def in_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are those of a machine that allows user namespaces, whatever this one allows."""
    monkeypatch.setattr("thiefbench.leaderboard.verification.rerunning.backend", lambda: "namespaces")


@pytest.fixture(scope="module")
def rerun_cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verifier's store, so that cells which several verifications run again are run once; some tests use none."""
    return tmp_path_factory.mktemp("rerun")


@pytest.fixture(scope="module")
def jail() -> Iterator[None]:
    """A working sandbox, with a warm worker."""
    try:
        warm = Isolated("none")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield
    warm.close()
