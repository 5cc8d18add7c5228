"""What a judge that rewards has said, stored for cells whose pools are the same.

Where a judge rewards, its replies take longer than all else in a round, and an attacker may ask it about texts of its
own. Cells with the same first mark (see `thiefbench.suite.execution.sharing.marks`) ask it the same in every round that
they share; what an attacker tries is often the same in all of their rounds, as it depends on the round's items and not
on the models.

A judge answers all completions of one call in one batch, and the size of a batch may change a reply's last bits. So an
answer is taken over only for a call with exactly the same completions and noise, and every cell has the rewards that it
would have if it asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from thiefbench.attacks.reward_judges import JudgeForm
from thiefbench.engine.reward_judge import RewardJudge, Scored
from thiefbench.suite.execution.sharing.marks import digest
from thiefbench.suite.store.records import BrokenRecordError, read_sealed, write_sealed

REWARDS = "rewards"
"""The name of their folder, among those of cells with the same first mark."""


class StoredRewards:
    """A judge that rewards and stores what it says (`thiefbench.engine.reward_judge.RewardJudge`).

    Args:
        judge: the judge; what it says depends on the set of completions and the noise alone.
    """

    def __init__(self, judge: RewardJudge) -> None:
        self._judge = judge
        self._folder: Path | None = None
        self._cell = ""

    def store_in(self, folder: Path, cell: str) -> None:
        """Store from now on what it says, and take over what is stored.

        Args:
            folder: of cells with the same first mark.
            cell: the id of the cell that asks; `usable` removes what it left half-written.
        """
        self._folder, self._cell = folder / REWARDS, cell

    @property
    def form(self) -> JudgeForm:
        """The judge's."""
        return self._judge.form

    def score(self, answers: Sequence[tuple[str, str]], noise: int) -> list[Scored]:
        """The judge's rewards; raises like it, and then stores nothing."""
        if self._folder is None:
            return self._judge.score(answers, noise)
        pairs = sorted(set(answers))
        call = digest(repr([noise, pairs]))  # JSON writes two lone surrogates like the character of the pair
        path = self._folder / f"{call}.json"
        if (scores := _read(path, len(pairs))) is None:
            scores = self._judge.score(pairs, noise)
            with suppress(OSError):  # a full disk; whatever a cell itself has to write will say so
                write_sealed(path, {"call": call, "scores": [[each.reward, each.fault] for each in scores]}, self._cell)
        known = dict(zip(pairs, scores, strict=True))
        return [known[pair] for pair in answers]


def _read(path: Path, count: int) -> list[Scored] | None:
    """The stored rewards of the call that a file is named after, so many; None if it has none, or something else."""
    try:
        content: Any = read_sealed(path)
    except BrokenRecordError:
        return None
    stored = content.get("scores")
    if content.get("call") != path.stem or not isinstance(stored, list) or len(stored) != count:
        return None
    return None if not all(map(_is_score, stored)) else [Scored(float(reward), fault) for reward, fault in stored]


def _is_score(stored: Any) -> bool:
    if not isinstance(stored, list) or len(stored) != 2:
        return False
    reward, fault = stored
    return type(reward) in (int, float) and 0 <= reward <= 1 and isinstance(fault, str) and not (fault and reward)
