"""The results of defenses on a file of pools as plain data, for JSON and for CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thiefbench.pools.rounds import FiledRounds
from thiefbench.pools.scores import RATES, FileReplay
from thiefbench.spreadsheet import csv_of
from thiefbench.suite.store.records import Score

OUTPUT_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """The results of all defenses on one file.

    Attributes:
        recorded: the file's rounds.
        model: the policy's model; empty without one.
        replays: the results of scored defenses.
        left_out: by defense, the data that it needs and the file lacks.
        failed: by defense, the error of its own code.
    """

    recorded: FiledRounds
    model: str
    replays: tuple[FileReplay, ...]
    left_out: Mapping[str, str]
    failed: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        """Counts of the file's content; senders are None where the file does not name them."""
        entries = self.recorded.all_entries
        return {
            "file": self.recorded.name,
            "format": self.recorded.format,
            "rounds": len(self.recorded.pools),
            "senders": len({entry.sender for entry in entries}) if self.recorded.names_senders else None,
            "completions": len(entries),
            "labelled_payload": sum(entry.payload is not None for entry in entries),
            "labelled_malicious": sum(entry.malicious is not None for entry in entries),
        }

    def notes(self) -> list[str]:
        """Remarks that a reader of the numbers needs."""
        notes = list(self.recorded.notes)
        if not self.labelled:
            notes.append(
                "no completion has a label of poison, so these are shares of all completions: stop rates and false "
                "rejection rates cannot be known"
            )
        if self.model:
            notes.append(
                f"policy: {self.model}, the same weights in every round, which may differ from the swarm's own"
            )
            if self.recorded.unprompted:
                notes.append("prompts: the bare question as one user message, where lines have no prompt")
        return notes

    @property
    def labelled(self) -> bool:
        """Whether any completion has a label, without which there is no stop rate and no false rejection rate."""
        return any(entry.payload is not None or entry.malicious is not None for entry in self.recorded.all_entries)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        refused = self.recorded.refused
        return {
            "thiefbench_replay": OUTPUT_VERSION,
            **self.facts(),
            "malformed": {
                "lines": refused.count,
                "reasons": dict(refused.reasons.most_common()),
                "first": [
                    {"line": number, "problem": problem, "where": where}
                    for where, (number, problem) in zip(refused.where, refused.first, strict=True)
                ],
            },
            "notes": self.notes(),
            "defenses": [_as_dict(each) for each in self.replays],
            "left_out": dict(self.left_out),
            "failed": dict(self.failed),
        }

    def csv(self) -> str:
        """One line per defense, scope and rate; limits are 95 % intervals clustered by sender and item."""
        lines: list[Sequence[object]] = [("defense", "scope", "name", "measure", "value", "low", "high", "count")]
        for replay in self.replays:
            for scope, name, scores in _scopes(replay):
                for measure in RATES:
                    score = scores[measure]
                    numbers = (score.value, score.low, score.high, score.count)
                    lines.append((replay.defense, scope, name, measure, *numbers))
        return csv_of(lines)


def _scopes(replay: FileReplay) -> Iterator[tuple[str, str | int, Mapping[str, Score]]]:
    yield "all", "", replay.scores
    for sender, scores in replay.by_sender.items():
        yield "sender", sender, scores
    for number, scores in replay.by_round.items():
        yield "round", number, scores


def _as_dict(replay: FileReplay) -> dict[str, Any]:
    columns = ("round", "sender", "item", "line", "where", "position", "reward", "malicious", "payload")
    return {
        "defense": replay.defense,
        "asks_policy": replay.asks_policy,
        "milliseconds_per_completion": replay.milliseconds,
        "scores": _plain(replay.scores),
        "by_sender": [{"sender": sender, "scores": _plain(scores)} for sender, scores in replay.by_sender.items()],
        "by_round": [{"round": number, "scores": _plain(scores)} for number, scores in replay.by_round.items()],
        "rejected": [
            {name: asdict(each)[name] for name in columns}
            | {"action": each.action, "score": _number(each.score), "reason": each.reason}
            for each in replay.rejected
        ],
    }


def _number(score: float | None) -> float | None:
    """The score that a defense gave, which may be anything; JSON has no infinities."""
    return None if score is None or not math.isfinite(score) else float(score)


def _plain(scores: Mapping[str, Score]) -> dict[str, Any]:
    return {name: scores[name].model_dump() for name in RATES}


def problems(recorded: FiledRounds) -> Sequence[str]:
    """The mistakes in a file's lines: how many of each kind, and the first of them."""
    refused = recorded.refused
    kinds = [f"{count} x {reason}" for reason, count in refused.reasons.most_common()]
    return [*kinds, *refused.shown()]
