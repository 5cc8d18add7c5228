"""Runs the cells of an attack's entry: the attack is isolated, and so is a defense that comes with files of its entry.

Whoever runs them, the submitter or a verifier, runs them alike. What the attack used is kept beside the cell as it is
used, so before the round's checkpoint: a stopped cell goes on counting. In the end it stands in the record.

A verifier also keeps hashes of what the attack said in a cell and after what, in `said.bin` beside its record, and lets
a stopped cell begin again, as no part of what is said may be missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from thiefbench.attacks.base import Attack
from thiefbench.console import waiting_for
from thiefbench.defenses.base import Defense
from thiefbench.engine.learning.cohort import DivergedError
from thiefbench.engine.spec import Role
from thiefbench.errors import UserError
from thiefbench.leaderboard.defense_kinds import DefenseKind
from thiefbench.leaderboard.isolation.attack_services import Cost
from thiefbench.leaderboard.isolation.guest import HASH_BYTES, Said
from thiefbench.leaderboard.isolation.isolated import DefenseError, Isolated
from thiefbench.leaderboard.isolation.isolated_attack import AttackError, IsolatedAttack
from thiefbench.leaderboard.isolation.isolated_rules import isolated_rule
from thiefbench.leaderboard.isolation.isolated_tensor_attacks import isolated_attack
from thiefbench.leaderboard.made_with import COST
from thiefbench.suite.execution.cell_identity import RegistryFactory, failed_record, identity
from thiefbench.suite.execution.cell_run import LocalRuntime, Progress, run_cell
from thiefbench.suite.scenario import CellSpec
from thiefbench.suite.store.records import Record, Store, identify, write_atomically

_USED: Final = "asked.json"
_SAID: Final = "said.bin"
_COSTS: Final = TypeAdapter(dict[int, Cost])


@dataclass(frozen=True)
class Guarded:
    """A listed defense as it is made here.

    Attributes:
        defense: its spec string as cells name it.
        spec: its spec string here, with the path of its files.
        sha256: of its source.
        isolated: whether it is a stranger's; the benchmark's own run in this process.
        kind: what it inspects, by its suite.
    """

    defense: str
    spec: str
    sha256: str
    isolated: bool
    kind: DefenseKind = "defense"


@dataclass
class AttackFactory:
    """Makes the isolated attack and the defense that it is run against
    (`thiefbench.suite.execution.cell_identity.CellFactory`).

    Attributes:
        attack: its spec string as cells name it.
        spec: its spec string here, with the path of its file.
        sha256: of its source.
        target: the defense; None in cells without one.
        make_guest: spec string -> the isolated attack.
        made: the attack that was made last.
        noted: called whenever an attack that it made has used something.
        said: what an attack that it made said while it poisoned, if that is to be kept.
    """

    attack: str
    spec: str
    sha256: str
    target: Guarded | None = None
    make_guest: Callable[[str], IsolatedAttack] = isolated_attack
    made: IsolatedAttack | None = None
    noted: Callable[[], None] = lambda: None
    said: set[Said] | None = None
    _others: RegistryFactory = field(default_factory=RegistryFactory)

    def make(self, spec: str) -> Defense:
        """A fresh defense; raises DefenseError, SandboxUnavailable."""
        if self.target is None or spec != self.target.defense:
            return self._others.make(spec)
        if not self.target.isolated:
            return self._others.make(self.target.spec)
        kind = self.target.kind
        return Isolated(self.target.spec) if kind == "defense" else isolated_rule(self.target.spec, kind)

    def source_hash(self, spec: str) -> str:
        """As the cell's identity has it."""
        if self.target is None or spec != self.target.defense:
            return self._others.source_hash(spec)
        return self.target.sha256

    def make_attack(self, spec: str) -> Attack:
        """The isolated attack; raises AttackError, SandboxUnavailable."""
        assert spec == self.attack, "an entry's cells are all of its attack"
        self.made = self.make_guest(self.spec)
        self.made.noted, self.made.said = self.noted, self.said
        return self.made

    def attack_hash(self, spec: str) -> str:
        """As the cell's identity has it."""
        return self.sha256

    def against(self, target: Guarded | None) -> AttackFactory:
        """The same attack against another defense."""
        return AttackFactory(self.attack, self.spec, self.sha256, target, self.make_guest)


def run_attack_cell(spec: CellSpec, store: Store, factory: AttackFactory, progress: Progress) -> Record:
    """The record of a cell: from the store if it is finished there, otherwise run.

    An error of the defense ends up in the record, which then has the status "error": it is no success of the attack.
    Where the factory keeps what the attack says, that has to be known from the cell's first round on: a cell that was
    stopped begins again, and one that is finished counts as such only with what was said in it.

    Raises:
        AttackError: the attack fails, misbehaves or ends the training.
        DefenseError: the defense cannot be made.
        SandboxUnavailable, ModelError, TaskError, SpecError, OSError: this machine lacks what the cell needs.
    """
    what = identity(spec, factory)
    directory = store.cell(identify(what))
    said, used = directory.path / _SAID, directory.path / _USED

    def read_or_run() -> Record:
        record = directory.read()
        if record is not None and record.status == "ok":
            if factory.said is None:
                return record
            if said.is_file():
                factory.said |= _read_said(said)
                return record
        if factory.said is not None:
            factory.said.clear()
            shutil.rmtree(directory.checkpoint, ignore_errors=True)
            for kept in (used, said):
                kept.unlink(missing_ok=True)
        if factory.made is not None:
            factory.made.close()
        counting = _Counting(factory, used, spec.role)
        factory.noted = counting.keep
        record = run_cell(spec, what, directory, progress, maker=factory, runtime=counting)
        if factory.said is not None:
            write_atomically(said, b"".join(sorted(factory.said)))
        return as_stored(record)

    def failed(error: Exception) -> Record:
        record = failed_record(spec, what, error)
        directory.write(record)
        return as_stored(record)

    def as_stored(record: Record) -> Record:
        """So that a later submission of it has the same bytes."""
        used.unlink(missing_ok=True)
        return directory.read() or record

    with directory.locked(waiting=waiting_for(directory.path)):
        try:
            return directory.from_intact(read_or_run)
        except DivergedError as error:
            if spec.role == "control" or factory.made is None:
                raise
            raise AttackError(ends_training(factory.made.name, error)) from error
        except DefenseError as error:
            return failed(error)
        except (AttackError, UserError, OSError):
            raise
        except Exception as error:  # such as of an aggregation of ours, whose result is not finite
            if factory.target is None:
                raise
            return failed(error)
        finally:
            if factory.made is not None:
                factory.made.close()


def _read_said(path: Path) -> set[Said]:
    """What an attack said in a finished cell."""
    content, size = path.read_bytes(), 2 * HASH_BYTES
    return {content[at : at + size] for at in range(0, len(content) - size + 1, size)}


def ends_training(name: str, error: DivergedError) -> str:
    """That weights are not finite any more beside an attack, in a sentence; what to set otherwise is not its author's
    to choose."""
    return f"beside the attack {name}, the training ends: {str(error).partition(';')[0]}"


class _Counting(LocalRuntime):
    """Keeps what the attack used, by round, and puts the sums into the record.

    Args:
        factory: makes the attack.
        path: the file that keeps it.
        role: of the cell; a placebo sends no payload, though a stage adds to its weights there, too.
    """

    counts = True

    def __init__(self, factory: AttackFactory, path: Path, role: Role) -> None:
        self._factory, self.path, self._role = factory, path, role
        self._earlier: Mapping[int, Cost] = {}
        with suppress(FileNotFoundError, ValidationError):  # the first time, or half written
            self._earlier = _COSTS.validate_json(path.read_bytes())

    def keep(self) -> None:
        """Write what was used so far to the cell's folder."""
        plain = {str(number): asdict(cost) for number, cost in self._costs().items()}
        write_atomically(self.path, json.dumps(plain).encode())

    def about(self) -> dict[str, Any]:
        """The sums over all rounds, and in how many rounds a payload was sent."""
        rounds = [asdict(cost) for cost in self._costs().values()]
        if self._role != "attack":
            rounds = [cost | {"sent": 0} for cost in rounds]
        sums = {name: sum(cost[name] for cost in rounds) for name in asdict(Cost())}
        return {COST: {"rounds": sum(cost["sent"] > 0 for cost in rounds), **sums}}

    def _costs(self) -> dict[int, Cost]:
        """Of every round; one that was played again counts once."""
        return {**self._earlier, **(self._factory.made.costs if self._factory.made else {})}
