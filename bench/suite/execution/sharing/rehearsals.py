"""Rehearsals that take over rounds from other cells' rehearsals.

An attack that rehearses plays candidates on copies of the swarm, defense included, before round 1. As in the rounds of
cells (see `thiefbench.suite.execution.sharing.shared_rounds`), a copy is the same as in another cell until the verdicts
differ. So the rounds of all copies are stored by their marks: a file for every round, named by the marks before and
after it, and one for the evaluation at the end. They form a tree. A copy follows any round that began at its mark, with
its own defense. If its mark after the round is known, the update is deferred, and the evaluation may be taken over.
Otherwise, it carries out the update, continues on its own and stores what is new.

The first mark of a copy covers the cell's first mark in the role "attack" (a placebo's attack rehearses in an attacked
swarm, too) and the fields of the attack that is played. If these change during the rounds, nothing of the copy is
stored or taken over from there on, so what was skipped cannot have changed them.

Files that are damaged, deleted or behind a link only cost time. A cell that was killed while it rehearsed finds the
rounds that it had finished.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from thiefbench.attacks.base import Attack
from thiefbench.engine.rehearsal import Rounds
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.swarm import Swarm
from thiefbench.suite.execution.sharing.following import RehearsingSwarm, WatchingBackend, seeds_unrecorded
from thiefbench.suite.execution.sharing.marks import digest, fields_of, round_mark
from thiefbench.suite.execution.sharing.shared_folder import REHEARSALS, NotReproducedError, make_room, usable
from thiefbench.suite.store.records import (
    STORED,
    BrokenRecordError,
    file_sha256,
    lacking,
    read_sealed,
    rows_table,
    table_rows,
    write_sealed,
    write_table,
)
from thiefbench.suite.store.tables import TableError, TableLimit, limit_of, read_limited

_NAME = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{32})-([0-9a-f]{32}|evaluation-\d{1,9})")


@dataclass(frozen=True)
class KeptRound:
    """What a round or an evaluation of a rehearsal has left.

    Attributes:
        cell: the cell that played it.
        grad_norm: its update's gradient norm; 0 for an evaluation.
        asked: whether the attack queried the defense.
        rows: its rows.
    """

    cell: str
    grad_norm: float
    asked: bool
    rows: list[CompletionRow]


class KeptRounds:
    """The stored rounds of rehearsals with the same first mark.

    Args:
        folder: the folder of cells with this first mark; its parent is the store's folder `shared`.
        cell: the id of the cell that rehearses.
        parameters: its parameters, which bound the size of files that are read.
        most_bytes: the most bytes for all that cells share.
    """

    def __init__(self, folder: Path, cell: str, parameters: Mapping[str, Any], most_bytes: int) -> None:
        self._folder, self._root = folder / REHEARSALS, folder.parent
        self._cell, self._parameters, self._most = cell, parameters, most_bytes
        self._usable = usable(cell, self._root, folder, self._folder)
        self._names: dict[str, dict[str, list[str]]] = {}

    def look(self) -> None:
        """Find all stored rounds; other cells may have added some."""
        self._names = {}
        for path in sorted(self._folder.glob("*.json")) if self._usable else ():
            if found := _NAME.fullmatch(path.stem):
                self._add(found[2], found[3], path.stem)

    def following(self, mark: str) -> KeptRound | None:
        """A round that began at a mark, with its rows; all of these have the same pool."""
        for after in list(self._names.get(mark, ())):
            if not after.startswith("evaluation") and (found := self._read(mark, after)) is not None:
                return found
        return None

    def between(self, mark: str, after: str) -> KeptRound | None:
        """The round from one mark to another, without its rows."""
        return self._read(mark, after, rows=False)

    def evaluation(self, mark: str, completions: int) -> KeptRound | None:
        """The evaluation of this many completions after a mark."""
        return self._read(mark, f"evaluation-{completions}", completions=completions)

    def keep(self, mark: str, after: str, record: RoundRecord, asked: bool = False) -> None:
        """Store a round by the marks before and after it, unless it is known."""
        table = rows_table(record.rows)
        if not self._usable or self.between(mark, after) is not None or table.nbytes > self._most:
            return
        name = f"{self._cell}.{mark}-{after}"
        path = self._folder / f"{name}.parquet"
        write_table(path, table)
        facts = {"sha256": file_sha256(path), "grad_norm": record.grad_norm, "asked": asked}
        write_sealed(path.with_suffix(".json"), facts)
        self._add(mark, after, name)

    def keep_evaluation(self, mark: str, completions: int, record: RoundRecord) -> None:
        """Store the evaluation after a mark, and delete what is oldest if there is too much."""
        self.keep(mark, f"evaluation-{completions}", record)
        make_room(self._root, self._most)

    def _add(self, mark: str, after: str, name: str) -> None:
        names = self._names.setdefault(mark, {}).setdefault(after, [])
        if name not in names:
            names.append(name)

    def _read(self, mark: str, after: str, rows: bool = True, completions: int = 1) -> KeptRound | None:
        """What is stored under two names; None if it is not, or damaged."""
        names = self._names.get(mark, {}).get(after, [])
        for name in list(names):
            path = self._folder / f"{name}.parquet"
            try:
                facts = read_sealed(path.with_suffix(".json"))
                norm, asked = facts["grad_norm"], facts["asked"]
                if type(norm) is not float or type(asked) is not bool or file_sha256(path) != facts["sha256"]:
                    raise BrokenRecordError(f"{path} is damaged")
                table = read_limited(path, self._limit(completions), None, STORED) if rows else None
                if table is not None and lacking(table):
                    raise BrokenRecordError(f"{path} is incomplete")
            except (OSError, KeyError, BrokenRecordError, TableError):
                names.remove(name)
                continue
            return KeptRound(name.partition(".")[0], norm, asked, [] if table is None else list(table_rows(table)))
        if not names:
            self._names.get(mark, {}).pop(after, None)
        return None

    def _limit(self, completions: int) -> TableLimit:
        evaluation = {"every": 1, "completions": completions, "final": completions}
        return limit_of({**self._parameters, "rounds": 1, "evaluation": evaluation})


class SharedRehearsal:
    """The rehearsal of a cell's attack (for `RehearsingSwarm.rehearses_on`).

    Args:
        swarm: the cell's swarm.
        start: the cell's first mark in the role "attack".
        kept: the rounds that cells with this mark have stored.
        stop: called after every round and evaluation of a copy; if it returns True, the rehearsal is given up.
        begins: called before the first copy is made.
        played: called after every round of a copy, with the number of the copy and of the round, both from 1 on.

    Attributes:
        reproduced: False once an update has not given the recorded gradient norm.
        taken: by copy, in order, the cell from which each round was taken over, under its number.
    """

    def __init__(
        self,
        swarm: RehearsingSwarm,
        start: str,
        kept: KeptRounds,
        stop: Callable[[], bool] = lambda: False,
        begins: Callable[[], None] = lambda: None,
        played: Callable[[int, int], None] = lambda copy, number: None,
    ) -> None:
        self._swarm, self._start, self.kept = swarm, start, kept
        self._stop, self._begins, self._played = stop, begins, played
        self.reproduced = True
        self.taken: list[dict[int, str]] = []

    def copied(self, attack: Attack) -> Rounds:
        """A fresh copy of the swarm for an attack."""
        if not self.taken:
            self._begins()
        copy = self._copied(attack)
        return _Watched(copy, partial(self._played, len(self.taken)), self._stop)

    def _copied(self, attack: Attack) -> Rounds:
        backend = WatchingBackend()
        copy = self._swarm.copied(attack, backend)
        self.taken.append({})
        fields = fields_of(copy.attack)
        if fields is None or seeds_unrecorded(copy.spec, copy.attack.threat):
            return copy
        self.kept.look()
        return _SharedCopy(copy, backend, digest(repr((self._start, fields))), fields, self)

    def not_reproduced(self) -> NotReproducedError:
        """Remember that an update was not reproduced, in case the attack catches the error, which is returned."""
        self.reproduced = False
        return NotReproducedError()

    def about(self) -> str:
        """Which rounds were taken over and from where, in words; empty if there are none."""
        copies = ((number, spans_of(taken)) for number, taken in enumerate(self.taken, 1))
        return "; ".join(f"copy {number}: {spans}" for number, spans in copies if spans)


@dataclass(frozen=True)
class _Watched:
    """A copy of the swarm that tells of its rounds and stops when it is told to (`thiefbench.engine.rehearsal.Rounds`).

    Raises:
        KeyboardInterrupt: `stop` returned True after a round or an evaluation, which is kept.
    """

    rounds: Rounds
    played: Callable[[int], None]
    stop: Callable[[], bool]

    def round(self, number: int) -> RoundRecord:
        """Play a round."""
        record = self.rounds.round(number)
        self.played(number)
        return self._unless_stopped(record)

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Evaluate after a round."""
        return self._unless_stopped(self.rounds.evaluate(number, completions))

    def _unless_stopped(self, record: RoundRecord) -> RoundRecord:
        if self.stop():
            raise KeyboardInterrupt
        return record


class _SharedCopy:
    """A copy of the swarm that takes over rounds (`thiefbench.engine.rehearsal.Rounds`).

    Args:
        swarm: the copy.
        backend: its backend.
        mark: its first mark.
        fields: those of its attack.
        rehearsal: what it is part of.
    """

    def __init__(
        self, swarm: Swarm, backend: WatchingBackend, mark: str, fields: str, rehearsal: SharedRehearsal
    ) -> None:
        self._swarm, self._backend, self._fields = swarm, backend, fields
        self._mark: str | None = mark
        self._rehearsal, self._kept, self._taken = rehearsal, rehearsal.kept, rehearsal.taken[-1]

    def round(self, number: int) -> RoundRecord:
        """Play a round, as far as it is not known.

        Raises:
            NotReproducedError: see there.
        """
        cohort, before = self._backend.cohort, self._mark
        followed = None if before is None else self._kept.following(before)
        cohort.defers = followed is not None
        if followed is not None:
            announced = self._swarm.spec.seeds == "announced"
            self._backend.follow(followed.rows, unasked=not followed.asked and not announced)
        record = self._swarm.round(number)
        self._backend.follow(())
        known = None
        if before is not None:
            self._mark = self._after(before, record)
            known = None if self._mark is None else self._kept.between(before, self._mark)
        norm = record.grad_norm
        if cohort.defers:
            norm = cohort.settle(number, None if known is None else known.grad_norm)
            cohort.defers = False
        if not cohort.reproduced:
            raise self._rehearsal.not_reproduced()
        record = RoundRecord(record.rows, record.seconds, norm)
        if known is not None:
            self._taken[number] = known.cell
        elif before is not None and self._mark is not None and math.isfinite(norm):
            self._kept.keep(before, self._mark, record, self._backend.asked)
        return record

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Evaluate after a round, if that is not known; raises NotReproducedError."""
        known = None if self._mark is None else self._kept.evaluation(self._mark, completions)
        if known is not None:
            return RoundRecord(known.rows, {})
        record = self._swarm.evaluate(number, completions)
        if not self._backend.cohort.reproduced:
            raise self._rehearsal.not_reproduced()
        if self._mark is not None and fields_of(self._swarm.attack) == self._fields:
            self._kept.keep_evaluation(self._mark, completions, record)
        return record

    def _after(self, mark: str, record: RoundRecord) -> str | None:
        """The mark after a round; None once the attack's fields have changed."""
        if fields_of(self._swarm.attack) != self._fields:
            return None
        return round_mark(mark, record.rows, "", self._backend.cohort.schedule)


def spans_of(taken: Mapping[int, str]) -> str:
    """The rounds that were taken over, each with its cell, in words; empty if there are none."""
    spans: list[tuple[int, int, str]] = []
    for number, cell in sorted(taken.items()):
        if spans and spans[-1][1:] == (number - 1, cell):
            spans[-1] = (spans[-1][0], number, cell)
        else:
            spans.append((number, number, cell))
    return ", ".join(f"{first}-{last} of {cell}" for first, last, cell in spans)
