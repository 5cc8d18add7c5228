"""Mistakes of the user: which errors they are."""

from __future__ import annotations

import pytest

from thiefbench.console import BAD_USE
from thiefbench.engine.model.policy import ModelError
from thiefbench.engine.spec import SpecError
from thiefbench.errors import UsageError, UserError
from thiefbench.leaderboard.entry import EntryError
from thiefbench.pools.export import ExportError
from thiefbench.pools.files import PoolFileError
from thiefbench.registry import SpecStringError
from thiefbench.suite.analysis.matrix import MatrixError
from thiefbench.suite.analysis.recorded_rounds import ReplayError
from thiefbench.suite.execution.executors import WorkerError
from thiefbench.suite.store.merging import MergeError
from thiefbench.suite.suite_yaml import SuiteError
from thiefbench.tasks.base import TaskError
from thiefbench.tasks.sandbox import SandboxUnavailable
from thiefbench.testing.bounds import MisuseError

MISTAKES = [
    EntryError, ExportError, MatrixError, MergeError, MisuseError, ModelError, PoolFileError, ReplayError,
    SandboxUnavailable, SpecError, SpecStringError, SuiteError, TaskError, UsageError, WorkerError,
]  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_of_the_user_ends_in_one_sentence(
    kind: type[Exception], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from thiefbench import cli

    def app() -> None:
        raise kind("this is wrong\x1b[2J [red]; write that")

    assert issubclass(kind, UserError)
    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == BAD_USE
    assert capfd.readouterr().err == "error: this is wrong<U+001B>[2J [red]; write that\n"


def test_any_other_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from thiefbench import cli

    def app() -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(RuntimeError):
        cli.main()
