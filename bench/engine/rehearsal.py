"""Rounds on copies of the swarm, in which an attack may try attacks before round 1."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Protocol

from thiefbench.attacks.base import Attack, Tried
from thiefbench.engine.compatibility import drawn
from thiefbench.engine.round_record import CompletionRow, RoundRecord
from thiefbench.engine.spec import SpecError, SwarmSpec
from thiefbench.tasks.base import Task, Topology


class Rounds(Protocol):
    """The methods of `Swarm` that a rehearsal uses on a copy."""

    def round(self, number: int) -> RoundRecord:
        """Play round `number`."""

    def evaluate(self, number: int, completions: int) -> RoundRecord:
        """Evaluate after round `number`."""


class SwarmRehearsal:
    """Plays an attack on copies of a swarm (`thiefbench.attacks.base.Rehearsal`).

    Args:
        spec, task: the swarm's.
        copied: makes a fresh copy of the swarm with the given attack.
    """

    def __init__(self, spec: SwarmSpec, task: Task, copied: Callable[[Attack], Rounds]) -> None:
        self._spec, self._task, self._copied = spec, task, copied

    @property
    def topology(self) -> Topology:
        """The swarm's."""
        return self._spec.topology

    def possible(self, attack: Attack) -> bool:
        """Whether the attack fits topology and task."""
        try:
            drawn(attack, 0, self._spec, self._task)
        except SpecError:
            return False
        return True

    def play(self, attack: Attack, rounds: int, completions: int) -> Tried:
        """Let the attack play a copy from round 1 on, and evaluate it."""
        swarm = self._copied(attack)
        taught = [_taught(swarm.round(number).rows) for number in range(1, rounds + 1)]
        rows = swarm.evaluate(rounds, completions).rows
        outcomes = [row.outcome for row in rows if row.outcome is not None]
        if not outcomes:
            return Tried(0.0, float("inf"), statistics.fmean(taught))
        error = statistics.stdev(outcomes) / len(outcomes) ** 0.5 if len(outcomes) > 1 else float("inf")
        return Tried(statistics.fmean(outcomes), error, statistics.fmean(taught))


def _taught(rows: list[CompletionRow]) -> float:
    """Positive advantages of accepted completions with the payload, per malicious slot; 0 without such slots."""
    malicious = [row for row in rows if row.malicious]
    learned = [row.advantage for row in malicious if row.payload and row.action == "accept" and row.advantage > 0]
    return sum(learned) / len(malicious) if malicious else 0.0
