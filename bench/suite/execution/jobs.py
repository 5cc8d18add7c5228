"""The words that a run, its executors and its workers share: a cell to work on, and who watches the work.

It lies below all of them and imports none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from thiefbench.limits import SHARED_GB
from thiefbench.suite.estimates.eta import RunOutline
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import CellDir, Record


class CellListener(Protocol):
    """Who watches the work on one cell."""

    def cell(self, spec: CellSpec, done: int, total: int) -> None:
        """A cell has finished `done` of `total` rounds."""

    def note(self, message: str) -> None:
        """Something the user should know."""


class Listener(CellListener, Protocol):
    """Who watches a run (the command line's progress bars)."""

    def plan(self, plan: RunOutline) -> None:
        """What is run."""

    def finished(self, spec: CellSpec, record: Record) -> None:
        """A cell has its record."""


class Stopping(Protocol):
    """Who says when to stop."""

    @property
    def asked(self) -> bool:
        """Whether to stop after the round under way."""


class JobListener(CellListener, Stopping, Protocol):
    """Who gave a worker its cell: it watches and says when to stop."""


@dataclass(frozen=True)
class Job:
    """One cell to work on, as plain data that another process can be given.

    Attributes:
        spec: the cell.
        directory: where it leaves its files.
        identity: everything that can change its outcome.
        recorded: rounds whose weights it keeps.
        retry_failed: run it again where its record is an error.
        servers: of judges to which the user's key may be sent, see `thiefbench.trust`.
        share: take over rounds of the store's finished cells, see `thiefbench.suite.execution.sharing.shared_rounds`.
        shared_bytes: that the weights which cells leave for one another may take in the store.
    """

    spec: CellSpec
    directory: CellDir
    identity: dict[str, Any]
    recorded: tuple[int, ...]
    retry_failed: bool
    servers: tuple[str, ...] = ()
    share: bool = True
    shared_bytes: int = int(SHARED_GB * 1e9)

    def to_json(self) -> str:
        """As text for a worker on another machine, which reaches the directory by the same path."""
        fields = {
            "spec": self.spec.as_dict(),
            "directory": str(self.directory.path.absolute()),
            "identity": self.identity,
            "recorded": self.recorded,
            "retry_failed": self.retry_failed,
            "servers": self.servers,
            "share": self.share,
            "shared_bytes": self.shared_bytes,
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        spec, directory = CellSpec.from_dict(fields["spec"]), CellDir(Path(fields["directory"]))
        recorded, servers = tuple(fields["recorded"]), tuple(fields["servers"])
        return cls(
            spec, directory, fields["identity"], recorded, fields["retry_failed"], servers, fields["share"],
            fields["shared_bytes"],
        )  # fmt: skip


Work = Callable[[Job, CellListener, Stopping, bool], Record]
"""Makes what a job lacks (see `thiefbench.suite.execution.runner.work_on`); a function that can be imported by name."""
