"""The record of a round: its completions with labels, and what later rounds remember of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from thiefbench.defenses.base import PastRound, PoolCompletion, Verdict
from thiefbench.engine.answer_keys import with_key
from thiefbench.engine.pool import shuffled
from thiefbench.engine.rewarding import shows_rule, with_rule
from thiefbench.engine.spec import SwarmSpec
from thiefbench.tasks.answer_keys import AnswerKey


@dataclass(frozen=True)
class CompletionRow:
    """One completion of one round with its labels, as stored.

    Attributes:
        phase: "train" for a round's pool, "eval" for an evaluation after it (round 0: before the first), "probe" for
            the part of an evaluation that asks an attack's own probes.
        round: rounds finished so far for "eval", the round's own number for "train".
        node: who sent it; -1 for an evaluation.
        sender: the pseudonym the defense saw.
        item_id: of the task's item that it answers.
        group, place: its group, and its index in the group.
        ids: its token ids, without the closing EOS.
        text: decoded from them.
        ended: whether it ended with EOS; otherwise it reached the token limit.
        malicious: sent by a malicious node.
        payload: carries the attack's payload.
        reward: the task's or the judge's reward, before any verdict; in evaluations always the task's.
        refused: why it was refused, whatever the verdict, or empty.
        action, score, reason, token_weights: the verdict; "accept" in evaluations.
        advantage: the advantage that multiplied its log-prob gradient.
        outcome: the attack's outcome on it; None if it cannot be judged.
        cohort: in "train" rows, the cohort of the pool and verdict; in evaluations, the cohort whose model answered.
        label: the class of that cohort's nodes; empty if all nodes are equal and always present.
        version: the number of updates of the weights from which its sender says it sampled; None in swarms without
            delay.
        answer_key: the answer and tests by which it was rewarded; None in swarms in which every node knows the task's,
            and where a sender's could not be read.
        rule_reward: the task's own reward, in swarms in which a judge rewards; None in all others.
    """

    phase: str
    round: int
    node: int
    sender: str
    item_id: str
    group: int
    place: int
    ids: tuple[int, ...]
    text: str
    ended: bool
    malicious: bool
    payload: bool
    reward: float
    refused: str
    action: str
    score: float | None
    reason: str
    token_weights: tuple[float, ...] | None
    advantage: float
    outcome: float | None
    cohort: int = 0
    label: str = ""
    version: int | None = None
    answer_key: AnswerKey | None = None
    rule_reward: float | None = None


def by_rule(row: CompletionRow) -> float:
    """The task's own reward of a recorded completion."""
    return row.reward if row.rule_reward is None else row.rule_reward


@dataclass(frozen=True)
class RoundRecord:
    """The record of one round or evaluation: its rows, seconds by phase, and the update's gradient norm."""

    rows: list[CompletionRow]
    seconds: dict[str, float]
    grad_norm: float = 0.0


@dataclass
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of a `with` block for a phase."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def as_offered(
    row: CompletionRow, seed: int | None = None, keyed: bool = False, spec: SwarmSpec | None = None
) -> PoolCompletion:
    """A recorded completion as defenses saw it, with its slot's seed if there was a beacon.

    Args:
        row: the record.
        seed: of its slot.
        keyed: whether completions came with answers and tests.
        spec: the swarm's; it says which rewards of the task nodes know beside a judge's.
    """
    offered = PoolCompletion(
        row.item_id, row.group, row.place, row.sender, row.ids, row.text, row.ended, row.reward,
        seed=seed, version=row.version, refused=bool(row.refused),
    )  # fmt: skip
    offered = with_key(offered, row.answer_key) if keyed else offered
    if spec is None or spec.reward == "rule":
        return offered
    return with_rule(offered, row.rule_reward if shows_rule(spec, row.item_id) else None)


def remembered(rows: Sequence[CompletionRow], seed: int, spec: SwarmSpec | None = None) -> PastRound:
    """A finished round as later rounds remember it.

    Args:
        rows: of the round's pool, ordered by group and index.
        seed: the cell's.
        spec: the swarm's, as for `as_offered`.
    """
    ordered = [rows[i] for i in shuffled(seed, rows[0].round, len(rows))]
    verdicts = (Verdict(r.action, r.score, r.token_weights, r.reason) for r in ordered)  # type: ignore[arg-type]
    keyed = any(row.answer_key for row in rows)
    return PastRound(rows[0].round, tuple(as_offered(row, keyed=keyed, spec=spec) for row in ordered), tuple(verdicts))
