"""Cells run by a verifier: the submitted defense is isolated, everything else is as in any run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from thiefbench import provenance, registry
from thiefbench.attacks.base import Attack
from thiefbench.averaging.exchange import ExchangeRow
from thiefbench.console import waiting_for
from thiefbench.defenses.base import Defense
from thiefbench.errors import UserError
from thiefbench.leaderboard.isolation.isolated import Isolated
from thiefbench.pipeline.report import StageRow
from thiefbench.suite.execution.cell_identity import RegistryFactory, failed_record, identity
from thiefbench.suite.execution.cell_run import Progress, run_cell
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import ANSWER_KEY, ROWS, Record, Store, identify
from thiefbench.tasks.sandbox import backend

temporary_folder = partial(TemporaryDirectory, prefix="thiefbench-verify-")
"""For what a verification needs while it runs."""
SURROUNDINGS = (
    "torch", "transformers", "numpy", "python", "platform", "capability", "processor_model", *provenance.MACHINE,
)  # fmt: skip
"""The parts of a record's provenance that must be equal for bits to be promised equal."""
MOST_SAID = 60
"""Letters of a name or version that are shown; a record may come from a stranger."""


def weaker_sandbox(spec: str) -> list[str]:
    """Why running code again here shows too little: a sentence if it came in a file and this machine's sandbox is the
    one by Landlock, else nothing.

    There, a guest sees which processes the machine has and how many files they have open, and the kernel keeps what it
    looks for. So it may find out which cell it is in, and act otherwise in each.
    """
    if backend() != "landlock" or not any(registry.classes_in(spec)):
        return []
    return [
        "its code ran in the sandbox by Landlock, which lets it find out which cell it is in; only where the kernel "
        "allows user namespaces does running cells again show that its results are true"
    ]


@dataclass
class IsolatedFactory:
    """Makes the submitted defense in the sandbox, and all others in this process
    (`thiefbench.suite.execution.cell_identity.CellFactory`).

    Attributes:
        defense: its spec string as cells name it.
        spec: its spec string here, with the path of its files.
        sha256: of its source.
        make_guest: spec string -> the isolated defense.
    """

    defense: str
    spec: str
    sha256: str
    make_guest: Callable[[str], Defense] = Isolated
    _others: RegistryFactory = field(default_factory=RegistryFactory)

    def make(self, spec: str) -> Defense:
        """A fresh defense; raises DefenseError, SandboxUnavailable."""
        return self.make_guest(self.spec) if spec == self.defense else self._others.make(spec)

    def source_hash(self, spec: str) -> str:
        """As the cell's identity has it."""
        return self.sha256 if spec == self.defense else self._others.source_hash(spec)

    def make_attack(self, spec: str) -> Attack:
        """An attack of the suite."""
        return self._others.make_attack(spec)

    def attack_hash(self, spec: str) -> str:
        """As the cell's identity has it."""
        return self._others.attack_hash(spec)


def run(spec: CellSpec, store: Store, guest: IsolatedFactory, progress: Progress) -> Record:
    """The record of a cell: from the store if it is finished there, otherwise run; a failure gives an error's record.

    Raises:
        SandboxUnavailable, ModelError, TaskError, OSError: this machine lacks what the cell needs.
        DefenseError: the defense cannot be made.
    """
    what = identity(spec, guest)
    directory = store.cell(identify(what))

    def read_or_run() -> Record:
        record = directory.read()
        if record is not None and record.status == "ok":
            return record
        return run_cell(spec, what, directory, progress, maker=guest)

    with directory.locked(waiting=waiting_for(directory.path)):
        try:
            return directory.from_intact(read_or_run)
        except (UserError, OSError):
            raise  # this machine's, not the defense's
        except Exception as error:
            return failed_record(spec, what, error)


def surroundings_apart(record: Record) -> tuple[str, ...]:
    """What differs here from where a record was made, in words; empty where equal bits are promised.

    Of a GPU, too little is recorded to promise any.
    """
    if record.cell["device"] != "cpu":
        return ("a GPU, of which no bits are promised",)
    here = provenance.provenance("cpu", record.cell["threads"])
    there = {name: record.provenance.get(name, "nothing") for name in SURROUNDINGS}
    return tuple(
        f"{name} {str(here[name])[:MOST_SAID]} in place of {str(there[name])[:MOST_SAID]}"
        for name in SURROUNDINGS
        if there[name] != here[name]
    )


def first_difference(one: pa.Table, other: pa.Table) -> str:
    """Where two tables of completions first differ, in words that follow "they differ"; empty if they are equal."""
    if len(one) != len(other):
        return f"in number, {len(one):,} instead of {len(other):,}"
    names = [
        name for name in (*ROWS.names, *ANSWER_KEY.names) if name in one.column_names and name in other.column_names
    ]
    differing = [place for name in names if (place := _differs(one[name], other[name])) is not None]
    if not differing:
        return ""
    at = min(differing)
    phase, number = other["phase"][at].as_py(), other["round"][at].as_py()
    return f"from round {number} on" if phase == "train" else f"from the evaluation after round {number} on"


def first_exchange_apart(one: Sequence[ExchangeRow], other: Sequence[ExchangeRow]) -> str:
    """Where two cells' exchanges first differ, in words that follow "its"; empty if they are equal."""
    pairs = zip(one, other, strict=True)  # every cell of a spec has as many
    return next((f"exchanges differ from number {a.exchange} on" for a, b in pairs if a != b), "")


def first_stage_apart(one: Sequence[StageRow], other: Sequence[StageRow]) -> str:
    """Where two cells' stages first differ, in words that follow "its"; empty if they are equal."""
    pairs = zip(one, other, strict=True)  # every cell of a spec has as many
    return next((f"stages differ from round {a.round} on, stage {a.stage}" for a, b in pairs if a != b), "")


def _differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int | None:
    def plain(column: pa.ChunkedArray) -> Sequence[Any]:
        return [None if value != value else value for value in column.to_pylist()]  # NaN is equal to itself here

    pairs = zip(plain(one), plain(other), strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), None)
