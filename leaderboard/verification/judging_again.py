"""Whether the code of a defense gives the verdicts that its cells record.

Archives are public, so completions alone do not show whose they are: without this, an entry could take another's
archive and name code that never ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from thiefbench.defenses.base import Defense
from thiefbench.leaderboard.checking.verdict_differences import weights_alike
from thiefbench.leaderboard.verification.rescoring import SubmittedCell
from thiefbench.suite.analysis.recorded_rounds import LackingError
from thiefbench.suite.analysis.replay import Recording, replay
from thiefbench.suite.analysis.untrained_lines import task_of
from thiefbench.suite.store.records import Store

MOST_OTHER: Final = 0.01
"""Of the recorded verdicts of a cell, so many may be given otherwise: another processor's last bits may decide a close
one."""
MOST_SECONDS: Final = 3600.0
"""After so many seconds no further cell is judged: a defense may take a minute for every round."""


class OtherVerdictsError(Exception):
    """The code gives other verdicts than those recorded."""


class TwoWaysError(Exception):
    """The code gives other verdicts than those recorded, and yet others when it is asked once more."""


def judge_again(
    cells: Sequence[SubmittedCell], archive: Store, make: Callable[[], Defense], make_otherwise: Callable[[], Defense]
) -> int:
    """Let a defense judge the recorded rounds of all its cells, and compare its verdicts with those recorded.

    Args:
        cells: own ones of an entry, with completions.
        archive: has their completions.
        make: returns a fresh defense.
        make_otherwise: returns one with another hash seed, to tell code that judges by chance from another's verdicts.

    Returns:
        The number of completions that it judged.

    Raises:
        LackingError: it cannot be asked. It asks the policy, and archives hold no weights; it asks a judge, which is
            slow; it is itself too slow (`MOST_SECONDS`); or the seeds that senders announced are not recorded.
        ReplayError, DefenseError: it fails.
        OtherVerdictsError, TwoWaysError: it judges otherwise.
    """
    if "judge" in make().requires:
        raise LackingError("the defense asks a judge for every completion")
    judged, begun = 0, time.monotonic()
    for cell in cells:
        if judged and time.monotonic() - begun > MOST_SECONDS:
            raise LackingError("the defense takes too long to judge all its recorded rounds")
        recording = Recording(archive.cell(cell.record.cell_id), cell.record, task_of(cell.record.cell["task"]))
        if recording.swarm.seeds == "announced":
            raise LackingError("the seeds that senders announced are not recorded")
        given, recorded = _in_order(replay(recording, make).verdicts), _in_order(recording.pools)
        other = sum(not _acts_alike(one, before) for one, before in zip(given, recorded, strict=True))
        if other > MOST_OTHER * len(recorded):
            again = _in_order(replay(recording, make_otherwise).verdicts)
            if not all(map(_acts_alike, given, again)):
                raise TwoWaysError(f"it judged the recorded rounds of the {cell.name} in two ways")
            of = f"of {len(recorded):,} recorded verdicts of the {cell.name}"
            raise OtherVerdictsError(f"{of}, its code gives {other:,} otherwise")
        judged += len(recorded)
    return judged


class _Given(Protocol):
    """What a verdict does, from a defense or from a row of completions."""

    @property
    def action(self) -> str:
        """As `Verdict.action`."""

    @property
    def token_weights(self) -> Sequence[float] | None:
        """As `Verdict.token_weights`."""


def _in_order(of_rounds: Mapping[int, Sequence[_Given]]) -> list[_Given]:
    return [each for number in sorted(of_rounds) for each in of_rounds[number]]


def _acts_alike(one: _Given, other: _Given) -> bool:
    """Whether two verdicts do the same; scores and reasons do nothing."""
    return one.action == other.action and weights_alike(one.token_weights or None, other.token_weights or None)
