from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from thiefbench.defenses.answer_keys import KeyedCompletion
from thiefbench.defenses.base import ACCEPT, PastRound, PoolCompletion
from thiefbench.defenses.rule_rewards import JudgedCompletion
from thiefbench.leaderboard.isolation.frames import HEADER, MOST_TEXT, FrameError, sizes
from thiefbench.leaderboard.isolation.wire import (
    Malformed,
    offered_in,
    offered_out,
    past_in,
    past_out,
    said_in,
    verdicts_in,
)
from thiefbench.tasks.answer_keys import AnswerKey

FULL = JudgedCompletion(
    "one",
    1,
    2,
    "sender",
    (3, 4),
    "text",
    True,
    0.5,
    (-1.0, -2.0, -0.5),
    7,
    b"proof",
    9,
    True,
    AnswerKey("4", "[]"),
    0.25,
)


def test_a_completion_crosses_with_all_that_is_said_of_it() -> None:
    unsaid = [field.name for field in fields(JudgedCompletion) if getattr(FULL, field.name) in (None, 0, "", ())]
    assert not unsaid, f"the test names a value for every field, but not for {unsaid}"
    assert offered_in(offered_out(FULL)) == FULL, "an isolated defense sees what one in the swarm's own process sees"
    bare = PoolCompletion("one", 0, 0, "sender", (), "", False, 0.0)
    assert offered_in(offered_out(bare)) == bare
    keyed = KeyedCompletion(**vars(bare), answer_key=AnswerKey("4", ""))
    assert offered_in(offered_out(keyed)) == keyed
    judged = replace(FULL, rule_reward=None)
    assert offered_in(offered_out(judged)) == judged
    unread = replace(FULL, answer_key=None)
    assert offered_in(offered_out(unread)) == unread


def test_a_finished_round_crosses_too() -> None:
    past = PastRound(3, (FULL,), (ACCEPT,))
    assert past_in(past_out(past)) == past


def test_a_reason_that_no_table_holds_is_refused() -> None:
    view: Any = SimpleNamespace(completions=[FULL])
    assert verdicts_in([["drop", 1.0, None, "an odd \U0001f600"]], view, 500)[0].reason == "an odd \U0001f600"
    with pytest.raises(Malformed, match="lone surrogate"):
        verdicts_in([["drop", 1.0, None, "an odd \ud83d"]], view, 500)
    with pytest.raises(Malformed, match="reason is not text"):
        said_in(["reject", 1.0, "an odd \ud83d"], ("accept", "reject"), 500)


def test_text_has_a_limit_of_its_own() -> None:
    """Read, it takes many times its size in memory, where arrays take their own."""
    most = 4 * MOST_TEXT
    assert sizes(HEADER.pack(MOST_TEXT, 2 * MOST_TEXT), most) == (MOST_TEXT, 2 * MOST_TEXT)
    with pytest.raises(FrameError, match="bytes of text, and at most 16,777,216 are allowed"):
        sizes(HEADER.pack(MOST_TEXT + 1, 0), most)
    with pytest.raises(FrameError, match="a message of 67,108,865 bytes"):
        sizes(HEADER.pack(MOST_TEXT + 1, 3 * MOST_TEXT), most)
