"""Files of rollouts as rounds that defenses can be replayed on: the format found, every line or row used or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from thiefbench.errors import UsageError
from thiefbench.limits import MOST_COMPLETIONS
from thiefbench.pools.files import PoolFileError, Refused
from thiefbench.pools.rounds import FiledRounds, GatheredRound, Lacking
from thiefbench.pools.schema import MalformedError
from thiefbench.regular_files import NotRegularError
from thiefbench.rollouts.fields import label
from thiefbench.rollouts.grail import GRAIL
from thiefbench.rollouts.rows import Row, is_parquet, json_rows, parquet_columns, parquet_rows
from thiefbench.rollouts.source import Reading, Rollout, Source
from thiefbench.rollouts.trl import TRL
from thiefbench.rollouts.verifiers import PRIME_RL
from thiefbench.rollouts.verl import VERL
from thiefbench.tasks.text import one_line

SOURCES: Mapping[str, Source] = {source.name: source for source in (PRIME_RL, GRAIL, VERL, TRL)}
"""Every format of others, by name."""

MOST_KEPT = 4 << 30
"""Bytes of completions that are kept for the defenses."""
_NUMBER = 36
"""Bytes of a token or a log-prob in Python, with its place in a list."""

_LOOKED_AT = 20
"""Lines that are looked at to find the format."""
_STEP = re.compile(r"step_(\d{1,9})")


def format_of(path: Path) -> str:
    """The format of a file: a key of `SOURCES`, or "pool" where it is none of them.

    What is not a regular file, such as a pipe, can be read only once and is taken for a pool.

    Raises:
        PoolFileError: it cannot be read, or is Parquet with other columns than any format has.
    """
    try:
        if is_parquet(path):
            names = {name for name, _ in parquet_columns(path)}
            for source in SOURCES.values():
                if source.parquet and source.marks <= names:
                    return source.name
            shown = one_line(", ".join(sorted(names)), 120) or "none that can be read"
            raise PoolFileError(f"{path} is Parquet of no known format; its columns are: {shown}")
        for row in islice(json_rows(path), _LOOKED_AT):
            names = set(row.fields or ())
            if "thiefbench_pool" in names:
                break
            for source in SOURCES.values():
                if not source.parquet and source.marks <= names:
                    return source.name
    except NotRegularError as error:
        if path.is_dir():
            raise _unreadable(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return "pool"


def read_rollouts(paths: Sequence[Path], source: Source, reading: Reading) -> FiledRounds:
    """The rounds of files of one format.

    Args:
        paths: the files; each tells its step by its path where the format has it there.
        source: the format.
        reading: what the user says beside.

    Raises:
        PoolFileError: a file cannot be read, no line of them is sound, or they hold more than memory does.
        UsageError: a column that the user names is not there, or files have different columns of rewards.
    """
    gathering = _Gathering(source, len(paths) > 1)
    rewards: tuple[str, ...] = ()
    for path in paths:
        step = [int(found[1]) for part in path.absolute().parts if (found := _STEP.fullmatch(part))]
        here = replace(reading, step=step[-1] if step else None)
        try:
            if not source.parquet:
                gathering.read(path, json_rows(path), here)
                continue
            if source.rewards:
                here = replace(here, rewards=_rewards(path, source, reading))
                if rewards and here.rewards and rewards != here.rewards:
                    raise UsageError(
                        f"{path} has another column of rewards than the files before it; name those to be summed with "
                        "--reward, or replay it by itself"
                    )
                rewards = rewards or here.rewards
            columns = [*source.columns, *here.rewards, *([here.sender] if here.sender else [])]
            gathering.read(path, parquet_rows(path, list(dict.fromkeys(columns))), here)
        except OSError as error:
            raise _unreadable(path, error) from error
    return gathering.finished(paths, reading, rewards)


def _rewards(path: Path, source: Source, reading: Reading) -> tuple[str, ...]:
    """The columns whose sum is the reward: those that the user names, or the only one that can be it."""
    columns = parquet_columns(path)
    if not source.marks <= {name for name, _ in columns}:
        return ()  # no file of this format, which reading its rows will say
    assert source.rewards is not None
    possible = source.rewards(columns)
    if missing := [name for name in reading.rewards if name not in possible]:
        known = one_line(", ".join(possible), 200) or "none"
        raise UsageError(f"{path} has no column of rewards {one_line(missing[0], 60)}; its columns of numbers: {known}")
    return reading.rewards or (possible if len(possible) == 1 else ())


class _Gathering:
    """The rounds of several files, as far as they have been read."""

    def __init__(self, source: Source, several: bool) -> None:
        self._source, self._several = source, several
        self.rounds: dict[int, GatheredRound] = {}
        self.refused = Refused()
        self.lacking = Lacking()
        self._kept = self._count = 0
        self._seen: set[str] = set()

    def read(self, path: Path, rows: Iterator[Row], reading: Reading) -> None:
        """Take every row of a file, or count it as refused."""
        for row in rows:
            where = self._where(path, row)
            try:
                if row.mistake is not None:
                    raise row.mistake
                assert row.fields is not None
                rollouts = self._source.rollouts(row.fields, reading)
                self._check_new(row.fields)
                self._add(rollouts, row.first, where)
            except MalformedError as mistake:
                self.refused.add(row.first, mistake, where)

    def _check_new(self, fields: Mapping[str, Any]) -> None:
        """Raise MalformedError where an earlier line had the same identity: files may hold parts of one another."""
        name = self._source.identity
        if not name or fields.get(name) is None:
            return
        identity = label(fields, name)
        if identity in self._seen:
            raise MalformedError("the same episode as an earlier line's")
        self._seen.add(identity)

    def _where(self, path: Path, row: Row) -> str:
        unit = "row" if self._source.parquet else "line"
        number = f"{unit} {row.first}" if row.first == row.last else f"{unit}s {row.first} to {row.last}"
        return f"{number} of {path}" if self._several else number

    def _add(self, rollouts: Sequence[Rollout], number: int, where: str) -> None:
        for place, each in enumerate(rollouts):
            gathered = self.rounds.get(each.round) or GatheredRound(each.round)
            self._keep(each, each.item.id not in gathered.items)
            gathered.add(each.item, [each.completion], self.lacking, number, where, each.group, place)
            self.rounds[each.round] = gathered

    def _keep(self, rollout: Rollout, new_item: bool) -> None:
        """Count what is kept.

        Raises:
            PoolFileError: it is more than one replay can hold.
        """
        completion = rollout.completion
        self._count += 1
        texts = (completion.text, *((rollout.item.question, rollout.item.answer) if new_item else ()))
        numbers = (completion.ids, completion.logprobs)
        self._kept += sum(len(text or "") for text in texts) + _NUMBER * sum(len(each or ()) for each in numbers)
        if self._count > MOST_COMPLETIONS or self._kept > MOST_KEPT:
            raise PoolFileError(
                f"the files hold more than {MOST_COMPLETIONS:,} completions or {MOST_KEPT >> 30} GiB of them; replay "
                "fewer files at a time"
            )

    def finished(self, paths: Sequence[Path], reading: Reading, rewards: Sequence[str]) -> FiledRounds:
        """The rounds.

        Raises:
            PoolFileError: there is none.
        """
        name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files from {paths[0]}"
        if not self.rounds:
            first = f"; {self.refused.shown()[0]}" if self.refused.first else ""
            verb = "holds" if len(paths) == 1 else "hold"
            raise PoolFileError(f"{name} {verb} no rollout of {self._source.name}{first}")
        notes = []
        if reading.tokenizer is None and self._source.texts:
            notes.append("texts: none, as no tokenizer is named; EOS counts as a token like any other")
        if self._source.rewards:
            shown = one_line(" + ".join(rewards), 200)
            notes.append(f"reward: {shown}" if rewards else "reward: none; name the columns to be summed with --reward")
        return FiledRounds(
            None, self.rounds, self.refused, self._lacking(), name, self._source.name, notes, _no_policy(self._source)
        )

    def _lacking(self) -> Lacking:
        """The stand-ins in the rounds, each with what this format says of it."""
        source, lacking = self._source, self.lacking
        lacking.ids.what = "token ids, which the files do not hold: name a tokenizer for their texts with --tokenizer"
        lacking.rewards.what = "rewards, and several columns may be them: name those to be summed with --reward"
        lacking.answers.what = f"reference answers, which rollouts of {source.name} do not hold"
        for stand_in, what in ((lacking.senders, source.senders), (lacking.texts, source.texts)):
            stand_in.what = what or stand_in.what
        lacking.questions.what = source.texts or lacking.questions.what
        return lacking


def _no_policy(source: Source) -> str:
    return f"the policy, which rollouts of {source.name} do not come with: neither its weights nor how it sampled"


def _unreadable(path: Path, error: OSError) -> PoolFileError:
    if path.is_dir():
        return PoolFileError(f"{path} is a folder; name the files in it, as many as you like")
    return PoolFileError(f"{path} cannot be read: {error.strerror or 'it is not a plain file'}")
