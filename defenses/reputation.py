"""`reputation`: exclude senders whose rewarded completions another defense rejects more often than others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from thiefbench.defenses.base import DefenderView, Defense, JudgeSpec, Requirement, Verdict
from thiefbench.defenses.reference import weighted_median

LEAST_REJECTED = 3


class Reputation(Defense):
    """Keep a record of every sender over the rounds, and drop everything from bad senders for a while.

    The record counts a sender's rewarded completions, and how many of them the inner defense rejected or masked. A
    sender is bad if these are at least three, and too many by a one-sided binomial test at the median rate of the other
    senders (weighted by their completions, with one rejection and two completions added to each). So even if the inner
    defense rejects many honest completions, a sender that is like the others is not excluded. All completions of a bad
    sender are dropped for some rounds. Then its record starts again from zero; if the sender continues, it may be
    excluded again after one round.

    A sender that takes a new name each round has no record.

    Args:
        defense: the inner defense; completions of all other senders keep its verdicts.
        rounds: the number of rounds for which a bad sender is excluded, including the round in which it is found.
        level: the probability that an honest sender is found bad in one round.
    """

    name: ClassVar[str] = "reputation"

    def __init__(self, defense: Defense | str = "logit", rounds: int = 10, level: float = 1e-4) -> None:
        if isinstance(defense, str):
            raise TypeError(f"reputation: defense is a Defense; thiefbench.registry.make makes one of {defense!r}")
        if rounds < 1 or not 0 < level < 1:
            raise ValueError("reputation: rounds is at least 1, and level lies between 0 and 1")
        self.defense, self.rounds, self.level = defense, rounds, level
        self.records: dict[str, list[int]] = {}
        self.until: dict[str, int] = {}

    @property
    def requires(self) -> frozenset[Requirement]:  # type: ignore[override]  # of plain defenses a constant
        """What the inner defense needs."""
        return self.defense.requires

    @property
    def sees_labels(self) -> bool:  # type: ignore[override]  # as requires
        """Whether the inner defense sees labels."""
        return self.defense.sees_labels

    @property
    def judge(self) -> JudgeSpec | None:  # type: ignore[override]  # as requires
        """The judge of the inner defense."""
        return self.defense.judge

    def prove(self, states: NDArray[np.float32]) -> bytes:
        """As the inner defense."""
        return self.defense.prove(states)

    def inspect(self, view: DefenderView) -> Sequence[Verdict]:
        """The inner verdicts, but "drop" for every completion of a bad sender; the score is the rounds left."""
        verdicts = list(self.defense.inspect(view))
        for completion, verdict in zip(view.completions, verdicts, strict=True):
            if completion.reward > 0:
                record = self.records.setdefault(completion.sender, [0, 0])
                record[0] += 1
                record[1] += verdict.action != "accept" or min(verdict.token_weights or (1.0,)) < 1
        bad = [sender for sender in self.records if self.until.get(sender, 0) < view.round and self._is_bad(sender)]
        for sender in bad:
            self.until[sender] = view.round + self.rounds - 1
            self.records[sender] = [0, 0]
        return [
            verdict
            if (rounds_left := self.until.get(completion.sender, 0) - view.round + 1) < 1
            else _dropped(rounds_left)
            for completion, verdict in zip(view.completions, verdicts, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """The records, the last round of every exclusion, and the inner defense's state."""
        return {"records": self.records, "until": self.until, "defense": self.defense.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.records = {sender: list(record) for sender, record in state.get("records", {}).items()}
        self.until = dict(state.get("until", {}))
        self.defense.restore(state.get("defense", {}))

    def _is_bad(self, sender: str) -> bool:
        rewarded, rejected = self.records[sender]
        others = [record for other, record in self.records.items() if other != sender and record[0]]
        if rejected < LEAST_REJECTED or not others:
            return False
        usual = weighted_median([(r + 1) / (n + 2) for n, r in others], [n for n, _ in others])
        return float(binom.sf(rejected - 1, rewarded, usual)) < self.level


def _dropped(rounds_left: int) -> Verdict:
    return Verdict("drop", float(rounds_left), reason=f"its sender is sent away for {rounds_left} more rounds")
