"""Fast tests: a defense inspects rounds that come with the package, with their labels and weights.

Each recording is an undefended attacked pool and its placebo, sampled from the same weights; `recipe.py` makes them.
This takes seconds, because no swarm is trained: it shows what the defense rejects, but not what models would have
learned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from thiefbench import registry
from thiefbench.attacks.wrapper import AttackWrapper
from thiefbench.defenses.base import Defense
from thiefbench.engine.model.policy import Policy
from thiefbench.engine.round_record import CompletionRow
from thiefbench.suite.analysis.clustered import clustered_rate, numbered
from thiefbench.suite.analysis.replay import Recording, Replay, ReplayError
from thiefbench.suite.analysis.replay import replay as replay_cell
from thiefbench.suite.store import weights
from thiefbench.suite.store.records import BrokenRecordError, CellDir, Record, Score
from thiefbench.tasks.base import Task
from thiefbench.zoo.models import resolve

RECORDINGS = Path(__file__).with_name("recordings")
"""One folder per recording: a cell each for attack and placebo, and beside them the weights that both were sampled
with; a round without weights of its own was sampled with the model's."""

Case = tuple[bool, str, str]
"""Whether a completion was rejected, its sender and its item."""

RATES = ("stop_rate", "placebo_rejection_rate", "false_rejection_rate")


@dataclass(frozen=True)
class RecordedReplay:
    """What a defense rejected in recorded rounds.

    Attributes:
        scores: over all of them, with 95 % intervals clustered by sender and item. stop_rate: share rejected among
            rewarded completions with the payload; placebo_rejection_rate: among rewarded completions of the same slots
            in the placebo; false_rejection_rate: among rewarded honest completions of the attacked pools.
        by_recording: the same for each recording, by its name.
        let_through: by recording, the text of the first rewarded completion with the payload that was accepted.
        wrongly_rejected: by recording, the text of the first rewarded honest completion that was rejected.
        placebo_rejected: by recording, the text of the first rewarded completion of the placebo that was rejected.
        milliseconds: time of `inspect` per completion; the median over recordings.
    """

    scores: dict[str, Score]
    by_recording: dict[str, dict[str, Score]]
    let_through: dict[str, str]
    wrongly_rejected: dict[str, str]
    placebo_rejected: dict[str, str]
    milliseconds: float

    @property
    def attacks(self) -> tuple[str, ...]:
        """The recordings that were inspected."""
        return tuple(self.by_recording)


def replay(make: Callable[[], Defense], attack: str | None = None, folder: Path = RECORDINGS) -> RecordedReplay:
    """Let a defense inspect the recorded rounds.

    Args:
        make: returns a fresh defense at every call; each recording's attack and placebo get one each.
        attack: an attack's name, such as "text", or a recording's, such as "text_paper"; None takes all attacks.
            Recordings whose model had learned the payload are judged only if they are named: a filter that asks the
            policy would have prevented the model from learning it.
        folder: the folder of recordings.

    Raises:
        ReplayError: no recording has this name, or the defense fails or needs what is not recorded.
    """
    chosen = _named(attack, folder)
    scores: dict[str, dict[str, Score]] = {}
    cases: dict[str, list[Case]] = {rate: [] for rate in RATES}
    let_through: dict[str, str] = {}
    wrongly_rejected: dict[str, str] = {}
    placebo_rejected: dict[str, str] = {}
    milliseconds: list[float] = []
    for name in chosen:
        attacked, placebo = opened(name, "attack", folder), opened(name, "placebo", folder)
        on_attack, on_placebo = _judged(attacked, make, name), _judged(placebo, make, name)
        scores[name] = {rate: on_attack.scores[rate] for rate in ("stop_rate", "false_rejection_rate")}
        scores[name]["placebo_rejection_rate"] = on_placebo.scores["clean_rejection_rate"]
        for row, accepted in _rewarded(attacked, on_attack):
            if row.payload or not row.malicious:
                rate = "stop_rate" if row.payload else "false_rejection_rate"
                cases[rate].append((not accepted, f"{name} {row.sender}", row.item_id))
            if row.payload and accepted:
                let_through.setdefault(name, row.text)
            if not row.malicious and not accepted:
                wrongly_rejected.setdefault(name, row.text)
        for row, accepted in _rewarded(placebo, on_placebo):
            if row.malicious and not row.payload:
                cases["placebo_rejection_rate"].append((not accepted, f"{name} {row.sender}", row.item_id))
                if not accepted:
                    placebo_rejected.setdefault(name, row.text)
        milliseconds += [on_attack.milliseconds, on_placebo.milliseconds]
    return RecordedReplay(
        scores={rate: _pooled(cases[rate]) for rate in RATES},
        by_recording=scores,
        let_through=let_through,
        wrongly_rejected=wrongly_rejected,
        placebo_rejected=placebo_rejected,
        milliseconds=median(milliseconds),
    )


def names(folder: Path = RECORDINGS) -> list[str]:
    """The names of all recordings."""
    return sorted(path.name for path in folder.iterdir() if (path / "attack").is_dir())


def opened(name: str, role: Literal["attack", "placebo"], folder: Path = RECORDINGS) -> Recording:
    """A recording's attacked or placebo pools.

    Raises:
        ReplayError: its files are missing or damaged.
    """
    directory = CellDir(folder / name / role)
    record = _record(directory)
    return _Sampled(directory, record, _task(record.cell["task"]))


def sampled_by(folder: Path, model: str, number: int) -> Policy:
    """The model that sampled a round of a recording; it is shared, and callers must not change it.

    Args:
        folder: the recording's.
        model: what it started from.
        number: the round.
    """
    has_weights = number in weights.kept(CellDir(folder))
    return _policy(model, folder if has_weights else None, number if has_weights else 0)


class _Sampled(Recording):
    """A recording whose every round has its model: that of the weights beside it, or the start model."""

    def __init__(self, directory: CellDir, record: Record, task: Task) -> None:
        super().__init__(directory, record, task)
        self.kept = list(self.pools)

    def policy(self, number: int) -> Policy:
        """The model that sampled a round, on as many threads as the caller has set."""
        return sampled_by(self.directory.path.parent, self.record.cell["model"], number)


def _named(attack: str | None, folder: Path) -> list[str]:
    """The recordings that `attack` selects.

    Raises:
        ReplayError: it selects none.
    """
    available = names(folder)
    if attack in available:
        return [attack]
    families = {name: _family(name, folder) for name in available}
    chosen = [name for name in available if attack in (None, families[name]) and not _poisoned(name, folder)]
    if not chosen:
        raise ReplayError(
            f"there are no recorded rounds of {attack!r}; write one of the attacks "
            f"{', '.join(sorted(set(families.values())))}, or of the recordings {', '.join(available)}, "
            "or train swarms with thiefbench.run(defense=...)"
        )
    return chosen


def _poisoned(name: str, folder: Path) -> bool:
    """Whether a recording's model had learned from the payload."""
    return bool(_record(CellDir(folder / name / "attack")).identity["learned"]["under"] == "none")


def _record(directory: CellDir) -> Record:
    """A cell's record.

    Raises:
        ReplayError: it is missing, or its files are damaged.
    """
    try:
        record = directory.read()
    except BrokenRecordError as error:
        raise ReplayError(f"{error}; install thiefbench again") from error
    if record is None:
        raise ReplayError(f"there is no {directory.record_path}; install thiefbench again")
    return record


def _family(name: str, folder: Path) -> str:
    """The name of the attack on a recording, without variants around it."""
    attack = registry.make("attack", _record(CellDir(folder / name / "attack")).cell["attack"])
    while isinstance(attack, AttackWrapper):
        attack = attack.attack
    return str(attack.name)


def _judged(recording: Recording, make: Callable[[], Defense], name: str) -> Replay:
    """One pass over a recording's rounds.

    Raises:
        ReplayError: the defense fails or needs what is not recorded.
    """
    try:
        return replay_cell(recording, make)
    except ReplayError as error:
        raise ReplayError(f"recording {name}: {error}") from error


def _rewarded(recording: Recording, judged: Replay) -> Iterator[tuple[CompletionRow, bool]]:
    """The rewarded completions of the judged rounds, and whether each was accepted."""
    for number in judged.rounds:
        for row, verdict in zip(recording.pools[number], judged.verdicts[number], strict=True):
            if row.reward > 0:
                yield row, verdict.action == "accept"


def _pooled(cases: Sequence[Case]) -> Score:
    """The rate over the completions of all recordings, each of which has senders of its own."""
    rejected, senders, items = zip(*cases, strict=True) if cases else ((), (), ())
    return clustered_rate(np.array(rejected, bool), numbered(senders), numbered(items))


@cache
def _task(spec: str) -> Task:
    task: Task = registry.make("task", spec)
    return task


@cache
def _policy(model: str, folder: Path | None, number: int) -> Policy:
    """The start model, or the same with the weights that a folder keeps for a round."""
    if folder is None:
        return Policy.load(resolve(model))
    policy = copy.deepcopy(_policy(model, None, 0))
    weights.load(CellDir(folder), number, policy)
    return policy
