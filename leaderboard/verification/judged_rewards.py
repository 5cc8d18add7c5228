"""The rewards of a judging model in a submitted cell, asked for again.

The rows of a round are rebuilt from the rewards that they state (`thiefbench.engine.backends.recorded`); this module
finds out whether the judge gives these. Its replies depend only on question, completion, seed and round, and on the
last bits of its logits: with the versions, the kind of processor and the threads of the record, they are the same
replies, to the letter. Elsewhere, a few draws that were close to a tie fall otherwise, and with them a few decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.special import bdtrc  # the binomial distribution of scipy.stats, which takes a second to import

from thiefbench.engine.context import items_of
from thiefbench.engine.reward_judge import RewardJudge, Scored
from thiefbench.engine.rewarding import judge_rewards, reply_noise
from thiefbench.engine.round_record import CompletionRow
from thiefbench.engine.spec import SwarmSpec
from thiefbench.reward_judges import NO_DECISION, TOO_LONG
from thiefbench.tasks.base import Task

ROUNDS = 2
"""Rounds of a cell whose judge is asked again, drawn at random in each verification: about a minute for a round of 384
completions on one core."""
OTHERWISE = 0.0033
"""How often a reward differs with other vector instructions, at most: the upper 95 % limit of 0 in 1,152
(`tests/benchmarks/judge_replies.py`; docs/log/2026-11-25-rewards-v1.md)."""
BY_CHANCE = 1e-4
"""A cell is refused if so many rewards differ that chance explains it with less than this probability: 10 of 768."""
FAULTS = (NO_DECISION, TOO_LONG)
"""What the judge says where it gives no reward."""


def most_differing(asked: int) -> int:
    """How many of these rewards may differ where equal bits are not promised."""
    return next(count for count in range(asked + 1) if bdtrc(count, asked, OTHERWISE) < BY_CHANCE)


def differing(
    rows: Sequence[CompletionRow], spec: SwarmSpec, task: Task, seed: int, judge: RewardJudge
) -> tuple[int, int]:
    """How many rewards of a round the judge does not give.

    Args:
        rows: all rows of one round's pool.
        spec: the swarm's, in which a judge rewards.
        task, seed: the cell's.
        judge: the swarm's judge of rewards.

    Returns:
        How many differ, and how many the judge was asked for: those of completions that were not refused before it.

    Raises:
        JudgeError: the judge gives no decision in any reply.
        KeyError: an item is not the task's.
    """
    questions = {item.id: item.question for item in items_of(task, "train")}
    asked = [row for row in rows if row.refused in ("", *FAULTS) and judge_rewards(spec, row.item_id)]
    pairs = [(questions[row.item_id], row.text) for row in asked]
    scores = judge.score(pairs, reply_noise(seed, rows[0].round)) if pairs else []
    return sum(_stated(row) != scored for row, scored in zip(asked, scores, strict=True)), len(asked)


def _stated(row: CompletionRow) -> Scored:
    return Scored(0.0 if row.refused else row.reward, row.refused)
